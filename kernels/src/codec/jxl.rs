//! Decoding of JPEG XL files: the first frame, with the channels of the file. Files that are not lossless decode to
//! within one level of TensorFlow's values, because both libraries compute with floating-point numbers.

use super::{MOST_SAMPLES, Pixels, Samples, sample_count};
use device::{Error, Result};
use graph::tensor::memory_limit;
use jxl_oxide::{AllocTracker, JxlImage, PixelFormat};
use std::io::Cursor;

/// Returns whether the file has the signature of JPEG XL, as a codestream or in a container.
pub(super) fn has_signature(file: &[u8]) -> bool {
    file.starts_with(b"\xff\x0a") || file.starts_with(b"\0\0\0\x0cJXL \r\n\x87\n")
}

/// Decodes a JPEG XL file; `channels` 0 keeps the file's number of channels.
pub(super) fn decode(file: &[u8], channels: usize) -> Result<Pixels> {
    let limit = usize::try_from(memory_limit() / 4).unwrap_or(usize::MAX).min(16 * MOST_SAMPLES);
    let memory = AllocTracker::with_limit(limit);
    let image = JxlImage::builder().alloc_tracker(memory).read(Cursor::new(file));
    let image = image.map_err(|_| Error::invalid("Failed to decode JXL header"))?;
    let stored = match image.pixel_format() {
        PixelFormat::Gray => 1,
        PixelFormat::Graya => 2,
        PixelFormat::Rgb => 3,
        PixelFormat::Rgba => 4,
        other => return Err(Error::unimplemented(format!("JPEG XL files of the pixel format {other:?}"))),
    };
    if channels != 0 && channels != stored {
        device::invalid!("Number of channels requested does not match input");
    }
    let (height, width) = (image.height() as usize, image.width() as usize);
    let count = sample_count(height, width, stored)?;
    let failed = || Error::invalid("Failed to decode JXL image");
    let frame = image.render_frame(0).map_err(|_| failed())?;
    let mut samples = vec![0u8; count];
    let mut stream = frame.stream();
    let is_expected = stream.channels() as usize == stored;
    if !is_expected || stream.write_to_buffer(&mut samples) != count {
        return Err(failed());
    }
    Ok(Pixels { frames: 1, height, width, channels: stored, samples: Samples::Bytes(samples) })
}
