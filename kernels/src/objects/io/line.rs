//! A reader of the lines of text files.

use super::source::{Compression, Source};
use bytes::Bytes;
use device::{Error, Result};
use graph::Code;
use std::path::Path;

/// The carriage returns that are removed from lines; TensorFlow's datasets and readers remove different ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CarriageReturns {
    /// All carriage returns are removed.
    Remove,
    /// Only a carriage return at the end of a line is removed.
    RemoveAtLineEnd,
}

/// A reader that returns lines one after the other, without line ends.
#[derive(Debug)]
pub struct LineReader {
    source: Source,
    returns: CarriageReturns,
}

impl LineReader {
    /// Opens an uncompressed file.
    pub fn open(path: impl AsRef<Path>, returns: CarriageReturns) -> Result<LineReader> {
        Ok(LineReader::new(Source::open(path, Compression::None)?, returns))
    }

    /// Returns a reader of the lines in `source`.
    pub fn new(source: Source, returns: CarriageReturns) -> LineReader {
        LineReader { source, returns }
    }

    /// Returns the position of the next line, in decompressed bytes.
    pub fn offset(&self) -> u64 {
        self.source.position()
    }

    /// Moves forward to the line that starts at `offset`, in decompressed bytes.
    pub fn advance_to(&mut self, offset: u64) -> Result<()> {
        self.source.advance_to(offset)
    }

    /// Returns the next line, or `None` at the end. The last line may lack a line end.
    pub fn next_line(&mut self) -> Result<Option<Bytes>> {
        let mut line = Vec::new();
        loop {
            let bytes = self.source.peek()?;
            if bytes.is_empty() {
                let line = self.without_return(line);
                return Ok(if line.is_empty() { None } else { Some(line) });
            }
            let end = bytes.iter().position(|&b| b == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            line.try_reserve(part.len())
                .map_err(|_| Error::new(Code::ResourceExhausted, "no memory for a line"))?;
            match self.returns {
                CarriageReturns::Remove => line.extend(part.iter().copied().filter(|&b| b != b'\r')),
                CarriageReturns::RemoveAtLineEnd => line.extend_from_slice(part),
            }
            let read = part.len() + usize::from(end.is_some());
            self.source.consume(read);
            if end.is_some() {
                return Ok(Some(self.without_return(line)));
            }
        }
    }

    fn without_return(&self, mut line: Vec<u8>) -> Bytes {
        if self.returns == CarriageReturns::RemoveAtLineEnd && line.last() == Some(&b'\r') {
            line.pop();
        }
        line.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn lines(text: &[u8], buffer: usize, returns: CarriageReturns) -> Result<Vec<Bytes>> {
        let dir = TempDir::new()?;
        dir.write("text", text)?;
        let source = Source::with_buffer(dir.path().join("text"), Compression::None, buffer)?;
        let mut reader = LineReader::new(source, returns);
        let mut out = Vec::new();
        while let Some(line) = reader.next_line()? {
            out.push(line);
        }
        Ok(out)
    }

    #[test]
    fn lines_end_at_line_feeds_and_lose_carriage_returns() -> Result<()> {
        for buffer in [1, 2, 3, 1000] {
            let lines = |text: &[u8]| lines(text, buffer, CarriageReturns::Remove);
            assert_eq!(lines(b"abc\nd\ref\r\n\nxyz")?, [&b"abc"[..], b"def", b"", b"xyz"]);
            assert_eq!(lines(b"")?, <[&[u8]; 0]>::default());
            assert_eq!(lines(b"a\n")?, [&b"a"[..]]);
        }
        Ok(())
    }

    #[test]
    fn carriage_returns_within_a_line_are_kept_for_readers() -> Result<()> {
        for buffer in [1, 2, 3, 1000] {
            let lines = |text: &[u8]| lines(text, buffer, CarriageReturns::RemoveAtLineEnd);
            assert_eq!(lines(b"a\rb\r\n\r\r\n\r\nxyz\r")?, [&b"a\rb"[..], b"\r", b"", b"xyz"]);
            assert_eq!(lines(b"a\n\r")?, [&b"a"[..]]);
        }
        Ok(())
    }
}
