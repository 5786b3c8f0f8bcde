//! Decoding of JPEG files, and reading of their sizes.

use super::{Pixels, Samples, jpeg_scans, sample_count};
use device::kernel::KernelInit;
use device::{Error, Result};
use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

/// Options of the JPEG decoder.
#[derive(Clone, Copy, Debug)]
pub(super) struct Options {
    /// The factor by which width and height are divided.
    ratio: usize,
    /// Set if the decoded part of a truncated file is accepted.
    recover: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options { ratio: 1, recover: false }
    }
}

impl Options {
    /// Reads the attributes of a decoding op.
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Options> {
        let ratio: i64 = init.attr("ratio")?;
        if !matches!(ratio, 1 | 2 | 4 | 8) {
            device::invalid!("ratio must be 1, 2, 4, or 8, got {ratio}");
        }
        let method: String = init.attr("dct_method")?;
        if !matches!(method.as_str(), "" | "INTEGER_FAST" | "INTEGER_ACCURATE") {
            device::invalid!("dct_method must be one of {{'', 'INTEGER_FAST', 'INTEGER_ACCURATE'}}");
        }
        Ok(Options { ratio: ratio as usize, recover: init.attr("try_recover_truncated")? })
    }
}

fn decoder(file: &[u8], options: DecoderOptions) -> JpegDecoder<ZCursor<&[u8]>> {
    let options = options.set_max_width(usize::from(u16::MAX)).set_max_height(usize::from(u16::MAX));
    JpegDecoder::new_with_options(ZCursor::new(file), options)
}

/// Returns height, width and channels of the image in a file, without decoding its pixels.
pub(super) fn sizes(file: &[u8]) -> Result<[usize; 3]> {
    let mut decoder = decoder(file, DecoderOptions::new_safe());
    let invalid = || Error::invalid(format!("Invalid JPEG data, size {}", file.len()));
    decoder.decode_headers().map_err(|_| invalid())?;
    let info = decoder.info().ok_or_else(invalid)?;
    Ok([usize::from(info.height), usize::from(info.width), usize::from(info.components)])
}

/// Decodes a JPEG file; `channels` 0 keeps the file's number of channels. `window` is the part of the image to return:
/// the first row, the first column, the number of rows and the number of columns.
pub(super) fn decode(
    file: &[u8],
    channels: usize,
    options: &Options,
    window: Option<[usize; 4]>,
) -> Result<Pixels> {
    let invalid = || Error::invalid("jpeg::Uncompress failed. Invalid JPEG data or crop window.");
    let [height, width, components] = sizes(file).map_err(|_| invalid())?;
    let channels = match channels {
        0 if components == 1 => 1,
        0 => 3,
        requested => requested,
    };
    sample_count(height, width, 3)?;
    // The decoder converts colours to grey by their luminance; grey is converted to three equal colours further below.
    let decoded = if components == 1 || channels == 1 { 1 } else { 3 };
    let space = if decoded == 1 { ColorSpace::Luma } else { ColorSpace::RGB };
    let decode_as = |file: &[u8], space| {
        let options = DecoderOptions::new_safe().jpeg_set_out_colorspace(space).set_strict_mode(false);
        decoder(file, options).decode().ok()
    };
    let is_whole = options.recover || has_end_marker(file);
    let bytes = match has_separate_scans(file) {
        _ if !is_whole => None,
        true => jpeg_scans::decode(file, decoded, options.recover, |file| decode_as(file, ColorSpace::Luma))?,
        false => decode_as(file, space),
    };
    let bytes = bytes.filter(|b| b.len() == height * width * decoded).ok_or_else(invalid)?;
    let (mut bytes, mut height, mut width) = shrink(bytes, [height, width, decoded], options.ratio);
    if let Some([y, x, rows, columns]) = window {
        let inside = |from: usize, len: usize, size: usize| {
            len > 0 && from.checked_add(len).is_some_and(|e| e <= size)
        };
        if !inside(y, rows, height) || !inside(x, columns, width) {
            return Err(invalid());
        }
        let line = |row: usize| &bytes[((y + row) * width + x) * decoded..][..columns * decoded];
        bytes = (0..rows).flat_map(line).copied().collect();
        (height, width) = (rows, columns);
    }
    if decoded == 1 && channels == 3 {
        bytes = bytes.into_iter().flat_map(|v| [v; 3]).collect();
    }
    Ok(Pixels { frames: 1, height, width, channels, samples: Samples::Bytes(bytes) })
}

/// Returns the segments of a file up to the header of the first scan, each as its marker and its content.
fn segments(file: &[u8]) -> Vec<(u8, &[u8])> {
    let (mut out, mut at) = (Vec::new(), 2);
    while let Some(&[0xff, marker, high, low]) = file.get(at..).and_then(|rest| rest.first_chunk::<4>()) {
        let end = at + 2 + usize::from(u16::from_be_bytes([high, low]));
        let Some(segment) = file.get(at + 4..end) else { break };
        out.push((marker, segment));
        if marker == 0xda {
            break;
        }
        at = end;
    }
    out
}

/// Returns whether a file that is not progressive has one scan per component; the decoder mixes up the components of
/// such a file if they differ in size.
fn has_separate_scans(file: &[u8]) -> bool {
    let segments = segments(file);
    let frame = segments.iter().find(|(marker, _)| matches!(marker, 0xc0 | 0xc1));
    let scan = segments.iter().find(|(marker, _)| *marker == 0xda);
    // The number of components follows the frame's height and width in the frame header.
    let frame_components = frame.and_then(|(_, frame)| frame.get(5));
    let scan_components = scan.and_then(|(_, scan)| scan.first());
    frame_components.zip(scan_components).is_some_and(|(frame, scan)| scan < frame)
}

/// Returns whether the file contains the marker that ends an image.
fn has_end_marker(file: &[u8]) -> bool {
    file.windows(2).rev().any(|w| w == [0xff, 0xd9])
}

/// Returns the image shrunk by `ratio`: each pixel is the mean of a square of `ratio` by `ratio` pixels, or of fewer at
/// the right and bottom edges.
fn shrink(bytes: Vec<u8>, [height, width, channels]: [usize; 3], ratio: usize) -> (Vec<u8>, usize, usize) {
    if ratio == 1 {
        return (bytes, height, width);
    }
    let (rows, columns) = (height.div_ceil(ratio), width.div_ceil(ratio));
    let mut out = Vec::with_capacity(rows * columns * channels);
    for row in 0..rows {
        let ys = row * ratio..((row + 1) * ratio).min(height);
        for column in 0..columns {
            let xs = column * ratio..((column + 1) * ratio).min(width);
            let count = ys.len() * xs.len();
            for c in 0..channels {
                let line_samples = |y: usize| xs.clone().map(move |x| (y * width + x) * channels + c);
                let sum: usize = ys.clone().flat_map(line_samples).map(|at| usize::from(bytes[at])).sum();
                out.push(((sum + count / 2) / count) as u8);
            }
        }
    }
    (out, rows, columns)
}
