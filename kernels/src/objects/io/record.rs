//! TFRecord files. A record is stored as its length (8 bytes), the checksum of the length (4 bytes), its bytes, and
//! their checksum (4 bytes). Checksums are masked CRC-32C; numbers are little-endian.

use super::sink::Sink;
use super::source::{Compression, Source};
use bytes::Bytes;
use checkpoint::checksum;
use device::{Error, Result};
use graph::Code;
use std::fmt;
use std::path::Path;

const HEADER: u64 = 12;

/// A reader that returns TFRecords one after the other.
#[derive(Debug)]
pub struct RecordReader {
    source: Source,
    scratch: Vec<u8>,
}

impl RecordReader {
    /// Opens a TFRecord file.
    pub fn open(path: impl AsRef<Path>, compression: Compression) -> Result<RecordReader> {
        Ok(RecordReader::new(Source::open(path, compression)?))
    }

    /// Returns a reader of the TFRecords in `source`.
    pub fn new(source: Source) -> RecordReader {
        RecordReader { source, scratch: Vec::new() }
    }

    /// Returns the position of the next record, in decompressed bytes.
    pub fn offset(&self) -> u64 {
        self.source.position()
    }

    /// Moves forward to the record that starts at `offset`, in decompressed bytes.
    pub fn advance_to(&mut self, offset: u64) -> Result<()> {
        self.source.advance_to(offset)
    }

    /// Returns the next record, or `None` at the end. Like in TensorFlow, a truncated header also counts as the end.
    ///
    /// # Errors
    /// `DataLoss` for a wrong checksum or a truncated record.
    pub fn next_record(&mut self) -> Result<Option<Bytes>> {
        let Some((at, len)) = self.header()? else { return Ok(None) };
        let mut bytes = Vec::new();
        if self.source.read(len, &mut bytes)? < len {
            return Err(self.truncated(at));
        }
        let stored = self.number(at)?;
        if checksum::masked(&bytes) != stored {
            return Err(self.damaged(format!("corrupted record at {}", at + HEADER)));
        }
        Ok(Some(bytes.into()))
    }

    /// Skips up to `count` records without checking their bytes. Returns the number of records skipped.
    pub fn skip_records(&mut self, count: u64) -> Result<u64> {
        for skipped in 0..count {
            let Some((at, len)) = self.header()? else { return Ok(skipped) };
            let with_checksum = len.saturating_add(4);
            if self.source.skip(with_checksum)? < with_checksum {
                return Err(self.truncated(at));
            }
        }
        Ok(count)
    }

    /// Reads a record's header. Returns the header's offset in decompressed bytes and the record's length, or `None` at
    /// the end.
    fn header(&mut self) -> Result<Option<(u64, u64)>> {
        let at = self.source.position();
        self.scratch.clear();
        if self.source.read(HEADER, &mut self.scratch)? < HEADER {
            return Ok(None);
        }
        let (Some(len), Some(stored)) = (self.scratch.first_chunk::<8>(), self.scratch.last_chunk::<4>())
        else {
            return Ok(None);
        };
        if checksum::masked(len) != u32::from_le_bytes(*stored) {
            let doubt = if at == 0 { " (Is this even a TFRecord file?)" } else { "" };
            return Err(self.damaged(format!("corrupted record at {at}{doubt}")));
        }
        Ok(Some((at, u64::from_le_bytes(*len))))
    }

    fn number(&mut self, at: u64) -> Result<u32> {
        self.scratch.clear();
        self.source.read(4, &mut self.scratch)?;
        match self.scratch.first_chunk() {
            Some(bytes) => Ok(u32::from_le_bytes(*bytes)),
            None => Err(self.truncated(at)),
        }
    }

    fn truncated(&self, at: u64) -> Error {
        self.damaged(format!("truncated record at {at}' failed with Read less bytes than requested"))
    }

    fn damaged(&self, what: String) -> Error {
        Error::new(Code::DataLoss, format!("{what} in {}", self.source.path().display()))
    }
}

/// A writer that appends TFRecords to a file.
pub struct RecordWriter(Sink);

impl RecordWriter {
    /// Creates the file; an existing file is replaced.
    pub fn create(path: impl AsRef<Path>, compression: Compression) -> Result<RecordWriter> {
        Sink::create(path, compression).map(RecordWriter)
    }

    /// Appends one record to the file.
    pub fn write(&mut self, record: &[u8]) -> Result<()> {
        let len = (record.len() as u64).to_le_bytes();
        let parts: [&[u8]; 4] =
            [&len, &checksum::masked(&len).to_le_bytes(), record, &checksum::masked(record).to_le_bytes()];
        parts.iter().try_for_each(|part| self.0.write(part))
    }

    /// Makes the written records visible to readers of the file.
    pub fn flush(&mut self) -> Result<()> {
        self.0.flush()
    }

    /// Writes the remaining bytes and closes the file. Dropping the writer does the same, but ignores errors.
    pub fn finish(self) -> Result<()> {
        self.0.finish()
    }

    /// Writes the remaining bytes, and returns once the file outlasts a loss of power.
    pub fn finish_stored(self) -> Result<()> {
        self.0.finish_stored()
    }
}

impl fmt::Debug for RecordWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RecordWriter({})", self.0.path().display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    /// The record `hello`, in the bytes that TensorFlow writes.
    const HELLO: &[u8] = b"\x05\0\0\0\0\0\0\0\xea\xb2\x04>hello\xbb\x1f\x1c\x19";

    fn all(mut reader: RecordReader) -> Result<Vec<Bytes>> {
        let mut out = Vec::new();
        while let Some(record) = reader.next_record()? {
            out.push(record);
        }
        Ok(out)
    }

    #[test]
    fn the_format_is_that_of_tensorflow() -> Result<()> {
        let dir = TempDir::new()?;
        let path = dir.path().join("plain");
        let mut writer = RecordWriter::create(&path, Compression::None)?;
        writer.write(b"hello")?;
        writer.finish()?;
        assert_eq!(std::fs::read(&path).unwrap_or_default(), HELLO);
        Ok(())
    }

    #[test]
    fn records_are_read_with_any_compression_and_from_any_offset() -> Result<()> {
        let dir = TempDir::new()?;
        let records: Vec<Bytes> = (0..100usize).map(|i| vec![i as u8; i * 37].into()).collect();
        for compression in [Compression::None, Compression::Zlib, Compression::Gzip] {
            let path = dir.path().join(format!("{compression:?}"));
            let mut writer = RecordWriter::create(&path, compression)?;
            for record in &records {
                writer.write(record)?;
            }
            writer.finish()?;
            assert_eq!(all(RecordReader::open(&path, compression)?)?, records);
            let mut reader = RecordReader::open(&path, compression)?;
            assert_eq!(reader.skip_records(40)?, 40);
            let at = reader.offset();
            assert_eq!(all(reader)?, records[40..]);
            let mut reader = RecordReader::open(&path, compression)?;
            reader.advance_to(at)?;
            assert_eq!(all(reader)?, records[40..]);
            let mut reader = RecordReader::open(&path, compression)?;
            assert_eq!(reader.skip_records(1000)?, 100);
            assert_eq!(reader.advance_to(1 << 40).map_err(|e| e.code()), Err(Code::OutOfRange));
        }
        Ok(())
    }

    #[test]
    fn damaged_records_are_data_loss() -> Result<()> {
        let dir = TempDir::new()?;
        let path = dir.path().join("damaged");
        for at in 0..HELLO.len() {
            let mut bytes = HELLO.to_vec();
            bytes[at] ^= 0x40;
            dir.write("damaged", &bytes)?;
            let error = all(RecordReader::open(&path, Compression::None)?).map_err(|e| e.code());
            assert_eq!(error, Err(Code::DataLoss), "byte {at}");
        }
        for cut in 0..HELLO.len() {
            dir.write("damaged", &HELLO[..cut])?;
            let read = all(RecordReader::open(&path, Compression::None)?);
            let expected = if cut < 12 { Ok(Vec::new()) } else { Err(Code::DataLoss) };
            assert_eq!(read.map_err(|e| e.code()), expected, "{cut} bytes");
        }
        dir.write("damaged", b"no zlib at all")?;
        let error = all(RecordReader::open(&path, Compression::Zlib)?).map_err(|e| e.code());
        assert_eq!(error, Err(Code::DataLoss));
        Ok(())
    }

    #[test]
    fn a_missing_file_gives_tensorflows_message() -> Result<()> {
        let dir = TempDir::new()?;
        let path = dir.path().join("none");
        let error =
            RecordReader::open(&path, Compression::None).map(|_| ()).map_err(|e| (e.code(), e.to_string()));
        let text = format!("{}; No such file or directory", path.display());
        assert_eq!(error, Err((Code::NotFound, text)));
        let error = RecordReader::open(dir.path(), Compression::None).map(|_| ()).map_err(|e| e.code());
        assert_eq!(error, Err(Code::FailedPrecondition));
        Ok(())
    }
}
