//! Decoding of WebP files: still images of three or four channels, and animations, whose frames have four.

use super::{MOST_SAMPLES, Pixels, Samples, sample_count};
use device::{Error, Result};
use image_webp::{DecodingError, WebPDecoder};
use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Decodes a WebP file; `channels` 0 keeps the file's number of channels. At most the first `most`
/// frames of an animation are decoded.
pub(super) fn decode(file: &[u8], channels: usize, most: usize) -> Result<Pixels> {
    let header = |_| Error::invalid("Failed to decode WebP header.");
    let mut decoder = WebPDecoder::new(Cursor::new(file)).map_err(header)?;
    let (width, height) = decoder.dimensions();
    let (width, height) = (width as usize, height as usize);
    let stored = if decoder.has_alpha() { 4 } else { 3 };
    if channels != 0 && channels != stored {
        device::invalid!("Number of channels requested does not match input");
    }
    let size = sample_count(height, width, 4)? / 4 * stored;
    decoder.set_memory_limit(4 * MOST_SAMPLES);
    if !decoder.is_animated() {
        let mut samples = vec![0; size];
        let read = catch(|| decoder.read_image(&mut samples));
        read.map_err(|e| Error::invalid(format!("Failed to decode WebP image: {e}")))?;
        return Ok(Pixels { frames: 1, height, width, channels: stored, samples: Samples::Bytes(samples) });
    }
    if channels == 3 {
        device::invalid!("WebP Animation must be 4 channel RGBA");
    }
    let failed = |e: String| Error::invalid(format!("Failed to decode WebP Animation: {e}"));
    decoder.set_background_color([0; 4]).map_err(|e| failed(e.to_string()))?;
    let frames = most.min(decoder.num_frames() as usize);
    let (mut out, mut frame) = (Vec::new(), vec![0; size]);
    for _ in 0..frames {
        if out.len() + height * width * 4 >= MOST_SAMPLES {
            device::invalid!("Image too large: {frames} frames of {width} by {height}");
        }
        catch(|| decoder.read_frame(&mut frame)).map_err(failed)?;
        if stored == 4 {
            out.extend_from_slice(&frame);
        } else {
            out.extend(frame.as_chunks::<3>().0.iter().flat_map(|&[r, g, b]| [r, g, b, u8::MAX]));
        }
    }
    Ok(Pixels { frames, height, width, channels: 4, samples: Samples::Bytes(out) })
}

/// Runs a part of the decoder, which panics at some damaged files, such as one with a frame whose parts differ in size.
/// Returns the text of an error.
fn catch<T>(part: impl FnOnce() -> Result<T, DecodingError>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(part)) {
        Ok(result) => result.map_err(|e| e.to_string()),
        Err(_) => Err("its parts do not fit together".to_owned()),
    }
}
