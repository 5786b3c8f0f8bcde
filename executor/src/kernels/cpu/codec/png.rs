//! PNG files.

use super::{Pixels, Samples, sample_count};
use crate::error::{Error, Result};
use ::png::{BitDepth, ColorType, Compression, Decoder, Encoder, Limits, Transformations};
use std::io::Cursor;

/// `channels` 0 stands for as many as the file has; `wide` asks for sixteen bits.
pub(super) fn decode(file: &[u8], channels: usize, wide: bool) -> Result<Pixels> {
    let invalid = |_| Error::invalid(format!("Invalid PNG data, size {}", file.len()));
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: super::MOST_SAMPLES });
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(invalid)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    let has_colours = reader.info().color_type;
    sample_count(height, width, 4)?;
    let size = reader.output_buffer_size().ok_or_else(|| Error::invalid("Image too large"))?;
    let mut bytes = vec![0; size];
    let frame = reader.next_frame(&mut bytes).map_err(invalid)?;
    bytes.truncate(frame.buffer_size());
    let words = frame.bit_depth == BitDepth::Sixteen;
    let given = frame.color_type.samples();
    let samples: Vec<u16> = if words {
        bytes.as_chunks::<2>().0.iter().map(|&b| u16::from_be_bytes(b)).collect()
    } else {
        bytes.into_iter().map(u16::from).collect()
    };
    let channels = match (channels, has_colours) {
        // Transparency counts where it is a channel, or belongs to a palette.
        (0, ColorType::Indexed) => given,
        (0, colours) => colours.samples(),
        (channels, _) => channels,
    };
    let samples = arranged(&samples, given, channels, words);
    let samples = match (wide, words) {
        (true, true) => Samples::Words(samples),
        (true, false) => Samples::Words(samples.into_iter().map(|v| v << 8 | v).collect()),
        (false, true) => Samples::Bytes(samples.into_iter().map(|v| (v >> 8) as u8).collect()),
        (false, false) => Samples::Bytes(samples.into_iter().map(|v| v as u8).collect()),
    };
    Ok(Pixels { frames: 1, height, width, channels, samples })
}

/// Pixels of `given` samples as pixels of `wanted`: colours become grey, grey becomes colours, and what has no
/// transparency is opaque.
fn arranged(samples: &[u16], given: usize, wanted: usize, words: bool) -> Vec<u16> {
    if given == wanted {
        return samples.to_vec();
    }
    let opaque = if words { u16::MAX } else { 255 };
    let mut out = Vec::with_capacity(samples.len() / given * wanted);
    for pixel in samples.chunks_exact(given) {
        match (pixel, wanted < 3) {
            (&[r, g, b, ..], true) => out.push(grey(r, g, b, words)),
            (&[r, g, b, ..], false) => out.extend([r, g, b]),
            (&[v, ..], true) => out.push(v),
            (&[v, ..], false) => out.extend([v; 3]),
            _ => {}
        }
        if wanted.is_multiple_of(2) {
            out.push(if given.is_multiple_of(2) { pixel[given - 1] } else { opaque });
        }
    }
    out
}

/// The luminance, by weights in units of 2^-15.
fn grey(r: u16, g: u16, b: u16, words: bool) -> u16 {
    if r == g && g == b {
        return r;
    }
    let sum = 9797 * u64::from(r) + 19234 * u64::from(g) + 3737 * u64::from(b);
    // Words are rounded, bytes are not.
    ((sum + if words { 1 << 14 } else { 0 }) >> 15) as u16
}

/// An image as a file. `bytes` has samples of sixteen bits in the order of the file's.
pub(super) fn encode(
    bytes: &[u8],
    [height, width, channels]: [usize; 3],
    wide: bool,
    level: i64,
) -> Result<Vec<u8>> {
    let side = |v: usize| u32::try_from(v).map_err(|_| Error::invalid("image is too large"));
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, side(width)?, side(height)?);
    encoder.set_color(match channels {
        1 => ColorType::Grayscale,
        2 => ColorType::GrayscaleAlpha,
        3 => ColorType::Rgb,
        _ => ColorType::Rgba,
    });
    encoder.set_depth(if wide { BitDepth::Sixteen } else { BitDepth::Eight });
    encoder.set_compression(match level {
        0 => Compression::NoCompression,
        1..=3 => Compression::Fast,
        7..=9 => Compression::High,
        _ => Compression::Balanced,
    });
    let failed = |e| Error::internal(format!("PNG encoding failed: {e}"));
    let mut writer = encoder.write_header().map_err(failed)?;
    writer.write_image_data(bytes).map_err(failed)?;
    writer.finish().map_err(failed)?;
    Ok(file)
}
