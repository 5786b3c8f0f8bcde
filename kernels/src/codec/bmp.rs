//! Decoding of BMP files without compression.

use super::{Pixels, Samples, sample_count};
use device::{Error, Result};

/// Decodes a BMP file without compression; `channels` 0 keeps the file's number of channels.
pub(super) fn decode(file: &[u8], channels: usize) -> Result<Pixels> {
    let short = || {
        Error::invalid(format!(
            "Incomplete bmp content, requires at least 32 bytes to find the header size, width, height, and bpp, got {} bytes",
            file.len()
        ))
    };
    let word = |at: usize| -> Result<i32> {
        let bytes = file.get(at..at + 4).and_then(|b| b.try_into().ok()).ok_or_else(short)?;
        Ok(i32::from_le_bytes(bytes))
    };
    if file.len() < 32 {
        return Err(short());
    }
    let (start, width, height) = (word(10)?, word(18)?, word(22)?);
    let bits = (word(28)? & 0xffff) as usize;
    let file_channels = bits / 8;
    if !matches!(file_channels, 1 | 3 | 4) {
        device::invalid!("Number of channels inherent in the image must be 1, 3 or 4, was {file_channels}");
    }
    // An opacity channel may be requested for a file that has none; all its pixels are then opaque.
    let is_made_opaque = (file_channels, channels) == (3, 4);
    if channels != 0 && channels != file_channels && !is_made_opaque {
        device::invalid!(
            "channels attribute {channels} does not match bits per pixel from file {file_channels}"
        );
    }
    let (Ok(start), Ok(columns)) = (usize::try_from(start), usize::try_from(width)) else {
        device::invalid!("header size and width must be positive, got {start} and {width}");
    };
    let rows = height.unsigned_abs() as usize;
    let channels = if is_made_opaque { 4 } else { file_channels };
    let size = sample_count(rows, columns, channels)?;
    // Rows are padded to a multiple of four bytes.
    let stride = (columns * file_channels).next_multiple_of(4);
    let needed = stride.checked_mul(rows - 1).and_then(|n| n.checked_add(columns * file_channels + start));
    if needed.is_none_or(|n| n > file.len()) {
        device::invalid!("Incomplete bmp content, got {} bytes of {columns} by {rows} pixels", file.len());
    }
    let mut out = Vec::with_capacity(size);
    for row in 0..rows {
        // Rows are stored from the bottom up, unless the height is negative.
        let row = if height > 0 { rows - 1 - row } else { row };
        let line = &file[start + row * stride..][..columns * file_channels];
        for pixel in line.chunks_exact(file_channels) {
            match *pixel {
                [b, g, r] if is_made_opaque => out.extend([r, g, b, u8::MAX]),
                [b, g, r] => out.extend([r, g, b]),
                [b, g, r, a] => out.extend([r, g, b, a]),
                _ => out.extend_from_slice(pixel),
            }
        }
    }
    Ok(Pixels { frames: 1, height: rows, width: columns, channels, samples: Samples::Bytes(out) })
}
