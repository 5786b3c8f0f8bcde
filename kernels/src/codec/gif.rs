//! Decoding of GIF files: each frame is drawn on top of the frames before it.

use super::{MOST_SAMPLES, Pixels, Samples, sample_count};
use ::gif::{ColorOutput, DecodeOptions, MemoryLimit};
use device::{Error, Result};

/// Decodes at most the first `most` frames of a GIF file.
pub(super) fn decode(file: &[u8], most: usize) -> Result<Pixels> {
    let invalid = |e| Error::invalid(format!("Invalid GIF data (size {}), {e}", file.len()));
    let mut options = DecodeOptions::new();
    options.set_color_output(ColorOutput::RGBA);
    if let Some(limit) = std::num::NonZeroU64::new(4 * MOST_SAMPLES as u64) {
        options.set_memory_limit(MemoryLimit::Bytes(limit));
    }
    let mut decoder = options.read_info(file).map_err(invalid)?;
    let (width, height) = (usize::from(decoder.width()), usize::from(decoder.height()));
    let size = sample_count(height, width, 3)?;
    let (mut out, mut frames) = (Vec::new(), 0);
    while frames < most
        && let Some(frame) = decoder.read_next_frame().map_err(invalid)?
    {
        if out.len() + size >= MOST_SAMPLES {
            device::invalid!("Image too large: more than {frames} frames of {width} by {height}");
        }
        // Pixels that a frame leaves out show the previous frame.
        let before = out.len().checked_sub(size);
        match before {
            Some(start) => out.extend_from_within(start..),
            None => out.resize(size, 0),
        }
        let canvas = &mut out[frames * size..];
        let (left, top) = (usize::from(frame.left), usize::from(frame.top));
        let line = usize::from(frame.width);
        for (row, pixels) in (top..height).zip(frame.buffer.chunks_exact((4 * line).max(1))) {
            for (column, pixel) in (left..width).zip(pixels.as_chunks::<4>().0) {
                if pixel[3] > 0 {
                    canvas[(row * width + column) * 3..][..3].copy_from_slice(&pixel[..3]);
                }
            }
        }
        frames += 1;
    }
    if frames == 0 {
        device::invalid!("Invalid GIF data (size {}), no frames", file.len());
    }
    Ok(Pixels { frames, height, width, channels: 3, samples: Samples::Bytes(out) })
}
