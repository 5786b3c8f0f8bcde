//! Text files line by line.

use super::source::{Compression, Source};
use crate::error::{Error, Result};
use bytes::Bytes;
use graph::Code;
use std::path::Path;

/// Reads lines one after the other, without their ends. Carriage returns are dropped wherever they stand, as
/// TensorFlow does.
#[derive(Debug)]
pub struct LineReader {
    source: Source,
}

impl LineReader {
    pub fn open(path: impl AsRef<Path>, compression: Compression) -> Result<LineReader> {
        Ok(LineReader::new(Source::open(path, compression)?))
    }

    pub fn new(source: Source) -> LineReader {
        LineReader { source }
    }

    /// Where the next line starts, in decompressed bytes.
    pub fn offset(&self) -> u64 {
        self.source.position()
    }

    /// Goes on at this offset.
    pub fn advance_to(&mut self, offset: u64) -> Result<()> {
        self.source.advance_to(offset)
    }

    /// The next line; `None` at the end. A last line needs no end.
    pub fn next_line(&mut self) -> Result<Option<Bytes>> {
        let mut line = Vec::new();
        let mut any = false;
        loop {
            let bytes = self.source.peek()?;
            if bytes.is_empty() {
                return Ok(if any && !line.is_empty() { Some(line.into()) } else { None });
            }
            any = true;
            let end = bytes.iter().position(|&b| b == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            line.try_reserve(part.len())
                .map_err(|_| Error::new(Code::ResourceExhausted, "no memory for a line"))?;
            line.extend(part.iter().copied().filter(|&b| b != b'\r'));
            let read = part.len() + usize::from(end.is_some());
            self.source.consume(read);
            if end.is_some() {
                return Ok(Some(line.into()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    fn lines(text: &[u8], buffer: usize) -> Result<Vec<Bytes>> {
        let dir = TempDir::new()?;
        dir.write("text", text)?;
        let source = Source::with_buffer(dir.path().join("text"), Compression::None, buffer)?;
        let mut reader = LineReader::new(source);
        let mut out = Vec::new();
        while let Some(line) = reader.next_line()? {
            out.push(line);
        }
        Ok(out)
    }

    #[test]
    fn lines_end_at_line_feeds_and_lose_carriage_returns() -> Result<()> {
        for buffer in [1, 2, 3, 1000] {
            assert_eq!(lines(b"abc\nd\ref\r\n\nxyz", buffer)?, [&b"abc"[..], b"def", b"", b"xyz"]);
            assert_eq!(lines(b"", buffer)?, <[&[u8]; 0]>::default());
            assert_eq!(lines(b"a\n", buffer)?, [&b"a"[..]]);
        }
        Ok(())
    }
}
