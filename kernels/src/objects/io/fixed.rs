//! Reader of files with fixed-length records between a header and a footer.

use super::source::{Compression, Source};
use bytes::Bytes;
use device::{Error, Result};
use graph::Code;
use std::path::Path;

/// The lengths in bytes of the header, the records and the footer of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FixedFormat {
    pub header: u64,
    pub record: u64,
    pub footer: u64,
    /// Distance in bytes from the start of one record to the start of the next; 0 means the length of a record.
    pub hop: u64,
}

/// A reader that returns fixed-length records one after the other. It reads ahead by the footer's length, so that the
/// footer is not returned as a record.
#[derive(Debug)]
pub struct FixedReader {
    source: Source,
    format: FixedFormat,
    /// Bytes read from the source; the bytes from index `start` on have not been returned.
    buffer: Vec<u8>,
    start: usize,
    has_skipped_header: bool,
}

impl FixedReader {
    /// Opens a file.
    ///
    /// # Errors
    /// `InvalidArgument` if the record length is 0, and the errors of opening a file.
    pub fn open(
        path: impl AsRef<Path>,
        compression: Compression,
        format: FixedFormat,
    ) -> Result<FixedReader> {
        FixedReader::new(Source::open(path, compression)?, format)
    }

    /// Returns a reader of the fixed-length records in `source`.
    ///
    /// # Errors
    /// `InvalidArgument` if the record length is 0.
    pub fn new(source: Source, format: FixedFormat) -> Result<FixedReader> {
        if format.record == 0 {
            device::invalid!("records must have at least one byte");
        }
        Ok(FixedReader { source, format, buffer: Vec::new(), start: 0, has_skipped_header: false })
    }

    /// Returns the position of the next record, in decompressed bytes.
    pub fn offset(&self) -> u64 {
        let at = self.source.position() - (self.buffer.len() - self.start) as u64;
        if self.has_skipped_header { at } else { at + self.format.header }
    }

    /// Moves forward to the record that starts at `offset`, in decompressed bytes.
    pub fn advance_to(&mut self, offset: u64) -> Result<()> {
        self.buffer.clear();
        self.start = 0;
        self.has_skipped_header = true;
        self.source.advance_to(offset)
    }

    /// Skips the header if it has not been skipped; [`FixedReader::next_record`] does so before the first record.
    ///
    /// # Errors
    /// `OutOfRange` if the file is shorter than its header.
    pub fn skip_header(&mut self) -> Result<()> {
        if !self.has_skipped_header {
            self.has_skipped_header = true;
            if self.source.skip(self.format.header)? < self.format.header {
                return Err(Error::new(Code::OutOfRange, "reached end of file"));
            }
        }
        Ok(())
    }

    /// Returns the next record, or `None` if the remaining bytes are fewer than a record and the footer.
    ///
    /// # Errors
    /// The errors of [`FixedReader::skip_header`].
    pub fn next_record(&mut self) -> Result<Option<Bytes>> {
        self.skip_header()?;
        let needed = self.format.record.saturating_add(self.format.footer);
        if self.left() < needed {
            self.buffer.drain(..self.start);
            self.start = 0;
            // More bytes than needed are read at once, so that the unread bytes are rarely moved to the front of the
            // buffer.
            let spare = needed - self.left();
            self.source.read(spare.saturating_add(READ_AHEAD), &mut self.buffer)?;
        }
        if self.left() < needed {
            return Ok(None);
        }
        let (Ok(len), Some(rest)) = (usize::try_from(self.format.record), self.buffer.get(self.start..))
        else {
            return Ok(None);
        };
        let record = Bytes::copy_from_slice(&rest[..len]);
        let hop = if self.format.hop == 0 { self.format.record } else { self.format.hop };
        let held = hop.min(self.left());
        self.start += held as usize;
        self.source.skip(hop - held)?;
        Ok(Some(record))
    }

    /// Returns the number of bytes between the last whole record and the footer: 0 if the file has been read to its end
    /// and consists of whole records.
    pub fn excess(&self) -> u64 {
        self.left().saturating_sub(self.format.footer)
    }

    fn left(&self) -> u64 {
        (self.buffer.len() - self.start) as u64
    }
}

/// Bytes to read beyond the end of the next record.
const READ_AHEAD: u64 = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn records(bytes: &[u8], format: FixedFormat) -> Result<(Vec<Bytes>, u64)> {
        let dir = TempDir::new()?;
        dir.write("fixed", bytes)?;
        let mut reader = FixedReader::open(dir.path().join("fixed"), Compression::None, format)?;
        let mut out = Vec::new();
        while let Some(record) = reader.next_record()? {
            out.push(record);
        }
        Ok((out, reader.excess()))
    }

    #[test]
    fn header_and_footer_are_not_records() -> Result<()> {
        let format = FixedFormat { header: 1, record: 3, footer: 2, hop: 0 };
        assert_eq!(records(b"abcdefghij", format)?, (vec!["bcd".into(), "efg".into()], 1));
        assert_eq!(records(b"abcdefghi", format)?, (vec!["bcd".into(), "efg".into()], 0));
        assert_eq!(records(b"abc", format)?, (vec![], 0));
        assert_eq!(records(b"", format).map_err(|e| e.code()), Err(Code::OutOfRange));
        Ok(())
    }

    #[test]
    fn a_hop_makes_records_overlap_or_leaves_gaps() -> Result<()> {
        let format = FixedFormat { header: 0, record: 3, footer: 1, hop: 1 };
        assert_eq!(records(b"abcdef", format)?.0, ["abc", "bcd", "cde"]);
        let format = FixedFormat { hop: 4, footer: 0, ..format };
        assert_eq!(records(b"abcdefghij", format)?.0, ["abc", "efg"]);
        let long: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        let format = FixedFormat { header: 0, record: 7, footer: 0, hop: 100_000 };
        let expected: Vec<Bytes> =
            [0, 100_000, 200_000].iter().map(|&i| Bytes::copy_from_slice(&long[i..i + 7])).collect();
        assert_eq!(records(&long, format)?.0, expected);
        Ok(())
    }

    #[test]
    fn reading_continues_from_an_offset() -> Result<()> {
        let dir = TempDir::new()?;
        dir.write("fixed", b"Habcdefghi")?;
        let path = dir.path().join("fixed");
        let format = FixedFormat { header: 1, record: 2, footer: 0, hop: 0 };
        let mut reader = FixedReader::open(&path, Compression::None, format)?;
        assert_eq!(reader.offset(), 1);
        assert_eq!(reader.next_record()?, Some("ab".into()));
        let at = reader.offset();
        let mut again = FixedReader::open(&path, Compression::None, format)?;
        again.advance_to(at)?;
        assert_eq!(again.next_record()?, Some("cd".into()));
        assert!(FixedReader::open(&path, Compression::None, FixedFormat::default()).is_err());
        Ok(())
    }
}
