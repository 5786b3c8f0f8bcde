//! Decoding and encoding of PNG files.

use super::{Pixels, Samples, sample_count};
use ::png::{BitDepth, ColorType, Compression, Decoder, Encoder, Limits, Transformations};
use device::{Error, Result};
use std::io::Cursor;

/// Decodes a PNG file; `channels` 0 keeps the file's number of channels. `wide` requests samples of 16 bits.
pub(super) fn decode(file: &[u8], channels: usize, wide: bool) -> Result<Pixels> {
    let invalid = |_| Error::invalid(format!("Invalid PNG data, size {}", file.len()));
    let mut decoder = Decoder::new_with_limits(Cursor::new(file), Limits { bytes: super::MOST_SAMPLES });
    decoder.set_transformations(Transformations::EXPAND);
    let mut reader = decoder.read_info().map_err(invalid)?;
    let (width, height) = (reader.info().width as usize, reader.info().height as usize);
    let color_type = reader.info().color_type;
    sample_count(height, width, 4)?;
    let size = reader.output_buffer_size().ok_or_else(|| Error::invalid("Image too large"))?;
    let mut bytes = vec![0; size];
    let frame = reader.next_frame(&mut bytes).map_err(invalid)?;
    bytes.truncate(frame.buffer_size());
    let is_16_bit = frame.bit_depth == BitDepth::Sixteen;
    let file_channels = frame.color_type.samples();
    let samples: Vec<u16> = if is_16_bit {
        bytes.as_chunks::<2>().0.iter().map(|&b| u16::from_be_bytes(b)).collect()
    } else {
        bytes.into_iter().map(u16::from).collect()
    };
    let channels = match (channels, color_type) {
        // Transparency counts as a channel if the colour type has one or the file has a palette.
        (0, ColorType::Indexed) => file_channels,
        (0, colours) => colours.samples(),
        (channels, _) => channels,
    };
    let samples = convert_channels(&samples, file_channels, channels, is_16_bit);
    let samples = match (wide, is_16_bit) {
        (true, true) => Samples::Words(samples),
        (true, false) => Samples::Words(samples.into_iter().map(|v| v << 8 | v).collect()),
        (false, true) => Samples::Bytes(samples.into_iter().map(|v| (v >> 8) as u8).collect()),
        (false, false) => Samples::Bytes(samples.into_iter().map(|v| v as u8).collect()),
    };
    Ok(Pixels { frames: 1, height, width, channels, samples })
}

/// Converts pixels of `from` channels to pixels of `to` channels: colours become grey or grey becomes colours, and
/// pixels without transparency become opaque.
fn convert_channels(samples: &[u16], from: usize, to: usize, is_16_bit: bool) -> Vec<u16> {
    if from == to {
        return samples.to_vec();
    }
    let opaque = if is_16_bit { u16::MAX } else { 255 };
    let mut out = Vec::with_capacity(samples.len() / from * to);
    for pixel in samples.chunks_exact(from) {
        match (pixel, to < 3) {
            (&[r, g, b, ..], true) => out.push(grey(r, g, b, is_16_bit)),
            (&[r, g, b, ..], false) => out.extend([r, g, b]),
            (&[v, ..], true) => out.push(v),
            (&[v, ..], false) => out.extend([v; 3]),
            _ => {}
        }
        if to.is_multiple_of(2) {
            out.push(if from.is_multiple_of(2) { pixel[from - 1] } else { opaque });
        }
    }
    out
}

/// Returns the luminance of a pixel; the weights of the colours are in units of 2^-15.
fn grey(r: u16, g: u16, b: u16, is_16_bit: bool) -> u16 {
    if r == g && g == b {
        return r;
    }
    let sum = 9797 * u64::from(r) + 19234 * u64::from(g) + 3737 * u64::from(b);
    // Samples of 16 bits are rounded, samples of 8 bits are truncated.
    ((sum + if is_16_bit { 1 << 14 } else { 0 }) >> 15) as u16
}

/// Encodes an image as a PNG file; samples of 16 bits in `bytes` have the upper byte first, like in the file.
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
