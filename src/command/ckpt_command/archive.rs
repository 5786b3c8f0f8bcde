//! Zip archives in the form of NumPy's `.npz` files: written uncompressed, and read with or without
//! compression.

use super::Fallible;
use flate2::Crc;
use flate2::read::DeflateDecoder;
use std::io::Read;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// The date 1980-01-01, the earliest in the zip format.
const DATE: u16 = 0x21;

/// Returns an archive of files, given as names and contents.
///
/// # Errors
/// If the archive would be larger than 4 GiB, the limit of the zip format without the Zip64 extension.
pub(super) fn encode(files: &[(String, Vec<u8>)]) -> Fallible<Vec<u8>> {
    let (mut out, mut central) = (Vec::new(), Vec::new());
    for (name, bytes) in files {
        let mut crc = Crc::new();
        crc.update(bytes);
        let offset = u32::try_from(out.len()).map_err(|_| "the archive would be larger than 4 GiB")?;
        let size = u32::try_from(bytes.len()).map_err(|_| format!("{name} is larger than 4 GiB"))?;
        let length = u16::try_from(name.len()).map_err(|_| format!("{name} is too long a name"))?;
        let mut common = Vec::new();
        // The header fields: version, flags (names are UTF-8), compression method, time, date.
        [20, 1 << 11, STORED, 0, DATE].iter().for_each(|v: &u16| common.extend(v.to_le_bytes()));
        [crc.sum(), size, size].iter().for_each(|v| common.extend(v.to_le_bytes()));
        [length, 0].iter().for_each(|v| common.extend(v.to_le_bytes()));
        out.extend(LOCAL.to_le_bytes());
        out.extend(&common);
        out.extend(name.as_bytes());
        out.extend(bytes);
        central.extend(CENTRAL.to_le_bytes());
        central.extend(20u16.to_le_bytes());
        central.extend(&common);
        // The file has no comment, is on disk 0, and has no attributes.
        central.extend([0; 10]);
        central.extend(offset.to_le_bytes());
        central.extend(name.as_bytes());
    }
    let count = u16::try_from(files.len()).map_err(|_| "too many files for an archive")?;
    let start = u32::try_from(out.len()).map_err(|_| "the archive would be larger than 4 GiB")?;
    let size = u32::try_from(central.len())?;
    out.extend(central);
    out.extend(END.to_le_bytes());
    [0, 0, count, count].iter().for_each(|v| out.extend(v.to_le_bytes()));
    [size, start].iter().for_each(|v| out.extend(v.to_le_bytes()));
    out.extend([0, 0]);
    Ok(out)
}

/// Returns the names and contents of the files in an archive.
pub(super) fn decode(bytes: &[u8]) -> Fallible<Vec<(String, Vec<u8>)>> {
    let malformed = || "is no zip archive";
    let end = bytes.windows(4).rposition(|w| w == END.to_le_bytes()).ok_or_else(malformed)?;
    let (count, mut at) = (number16(bytes, end + 10)?, number32(bytes, end + 16)? as usize);
    let mut files = Vec::new();
    for _ in 0..count {
        if number32(bytes, at)? != CENTRAL {
            return Err(malformed().into());
        }
        let (method, crc) = (number16(bytes, at + 10)?, number32(bytes, at + 16)?);
        let (packed, size) = (number32(bytes, at + 20)? as usize, number32(bytes, at + 24)? as usize);
        let lengths = [28, 30, 32].map(|field| number16(bytes, at + field).map(usize::from));
        let [name_length, extra, comment] = lengths;
        let (name_length, skipped) = (name_length?, extra? + comment?);
        let local = number32(bytes, at + 42)? as usize;
        let name = bytes.get(at + 46..at + 46 + name_length).ok_or_else(malformed)?;
        let name = String::from_utf8(name.to_vec())?;
        let start = local
            + 30
            + usize::from(number16(bytes, local + 26)?)
            + usize::from(number16(bytes, local + 28)?);
        let stored = start.checked_add(packed).and_then(|end| bytes.get(start..end)).ok_or_else(malformed)?;
        let contents = match method {
            STORED => stored.to_vec(),
            DEFLATED => {
                let mut contents = Vec::new();
                DeflateDecoder::new(stored).take(size as u64 + 1).read_to_end(&mut contents)?;
                contents
            }
            other => return Err(format!("{name}: compression {other} is not there").into()),
        };
        let mut actual = Crc::new();
        actual.update(&contents);
        if contents.len() != size || actual.sum() != crc {
            return Err(format!("{name} is damaged").into());
        }
        files.push((name, contents));
        at += 46 + name_length + skipped;
    }
    Ok(files)
}

fn number16(bytes: &[u8], at: usize) -> Fallible<u16> {
    let found = bytes.get(at..).and_then(|b| b.first_chunk::<2>()).ok_or("the archive is cut off")?;
    Ok(u16::from_le_bytes(*found))
}

fn number32(bytes: &[u8], at: usize) -> Fallible<u32> {
    let found = bytes.get(at..).and_then(|b| b.first_chunk::<4>()).ok_or("the archive is cut off")?;
    Ok(u32::from_le_bytes(*found))
}
