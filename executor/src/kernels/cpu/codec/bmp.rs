//! BMP files without compression.

use super::{Pixels, Samples, sample_count};
use crate::error::{Error, Result};

/// `channels` 0 stands for as many as the file has.
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
    let given = bits / 8;
    if !matches!(given, 1 | 3 | 4) {
        crate::invalid!("Number of channels inherent in the image must be 1, 3 or 4, was {given}");
    }
    // Colours without opacity may be asked for with one.
    let is_made_opaque = (given, channels) == (3, 4);
    if channels != 0 && channels != given && !is_made_opaque {
        crate::invalid!("channels attribute {channels} does not match bits per pixel from file {given}");
    }
    let (Ok(start), Ok(columns)) = (usize::try_from(start), usize::try_from(width)) else {
        crate::invalid!("header size and width must be positive, got {start} and {width}");
    };
    let rows = height.unsigned_abs() as usize;
    let channels = if is_made_opaque { 4 } else { given };
    let size = sample_count(rows, columns, channels)?;
    // Rows are padded to whole words of four bytes.
    let stride = (columns * given).next_multiple_of(4);
    let needed = stride.checked_mul(rows - 1).and_then(|n| n.checked_add(columns * given + start));
    if needed.is_none_or(|n| n > file.len()) {
        crate::invalid!("Incomplete bmp content, got {} bytes of {columns} by {rows} pixels", file.len());
    }
    let mut out = Vec::with_capacity(size);
    for row in 0..rows {
        // The last row comes first, unless the height is negative.
        let row = if height > 0 { rows - 1 - row } else { row };
        let line = &file[start + row * stride..][..columns * given];
        for pixel in line.chunks_exact(given) {
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
