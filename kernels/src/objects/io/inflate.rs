//! Decompression of a zlib or gzip file, one buffer at a time. An error in the data of a buffer is reported before any
//! byte of the buffer is returned, like in TensorFlow's readers.

use flate2::{Crc, Decompress, FlushDecompress, Status};
use std::fs::File;
use std::io::{self, ErrorKind, Read};

/// The stream of a file's decompressed bytes. A truncated file ends the stream without an error.
pub(super) struct Inflater {
    file: File,
    input: Box<[u8]>,
    /// The range of `input` that has not been decompressed.
    pending: std::ops::Range<usize>,
    output: Vec<u8>,
    /// Number of bytes of `output` that have been consumed.
    read: usize,
    state: StreamPart,
}

/// The part of the compressed stream that the next input byte belongs to.
enum StreamPart {
    /// The only stream of a zlib file.
    Zlib(Decompress),
    /// The header of a gzip member; the bytes are the part that has been read.
    Header(Vec<u8>),
    /// The data of a gzip member, with its checksum so far.
    Data(Decompress, Crc),
    /// The trailer of a gzip member: the part that has been read, and the checksum of the member's data.
    Trailer(Vec<u8>, Crc),
    /// The end of a zlib stream; later bytes of the file are ignored.
    End,
    /// An error in the data, which every further read reports.
    Damaged(String),
}

/// Length of a gzip trailer: checksum and data length, 4 bytes each.
const TRAILER: usize = 8;

/// Maximum length of a gzip header; larger than the names and comments that any program writes.
const MAX_HEADER: usize = 1 << 20;

impl Inflater {
    /// Returns an inflater that reads and decompresses at most `buffer` bytes at once.
    pub(super) fn new(file: File, is_gzip: bool, buffer: usize) -> Inflater {
        let state =
            if is_gzip { StreamPart::Header(Vec::new()) } else { StreamPart::Zlib(Decompress::new(true)) };
        let input = vec![0; buffer].into_boxed_slice();
        Inflater { file, input, pending: 0..0, output: Vec::with_capacity(buffer), read: 0, state }
    }

    /// Returns decompressed bytes that have not been consumed; an empty slice at the end.
    ///
    /// # Errors
    /// `InvalidData` if the file is damaged.
    pub(super) fn peek(&mut self) -> io::Result<&[u8]> {
        while self.read == self.output.len() {
            self.output.clear();
            self.read = 0;
            if let Err(error) = self.inflate() {
                self.output.clear();
                self.state = StreamPart::Damaged(error.to_string());
                return Err(error);
            }
            if self.output.is_empty() && self.pending.is_empty() && !self.refill()? {
                break;
            }
        }
        Ok(&self.output[self.read..])
    }

    /// Marks `count` bytes of [`Inflater::peek`] as consumed.
    pub(super) fn consume(&mut self, count: usize) {
        self.read = self.output.len().min(self.read + count);
    }

    /// Reads the next bytes of the file into `input`. Returns whether the file had more bytes.
    fn refill(&mut self) -> io::Result<bool> {
        if matches!(self.state, StreamPart::End) {
            return Ok(false);
        }
        loop {
            match self.file.read(&mut self.input) {
                Ok(count) => {
                    self.pending = 0..count;
                    return Ok(count > 0);
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }

    /// Decompresses the pending input until all of it is decompressed, the output is full, or a gzip member ends.
    fn inflate(&mut self) -> io::Result<()> {
        loop {
            let input = &self.input[self.pending.clone()];
            let (taken, next) = match &mut self.state {
                StreamPart::End => {
                    self.pending = 0..0;
                    return Ok(());
                }
                StreamPart::Damaged(what) => return Err(damaged(what)),
                StreamPart::Zlib(stream) => {
                    let (taken, ended) = decompress(stream, input, &mut self.output)?;
                    (taken, ended.then_some(StreamPart::End))
                }
                StreamPart::Header(header) => {
                    let before = header.len();
                    header.extend_from_slice(input);
                    match header_length(header)? {
                        Some(length) => {
                            let body = StreamPart::Data(Decompress::new(false), Crc::new());
                            (length - before, Some(body))
                        }
                        None if header.len() > MAX_HEADER => return Err(damaged("header is too long")),
                        None => (input.len(), None),
                    }
                }
                StreamPart::Data(stream, checksum) => {
                    let before = self.output.len();
                    let (taken, ended) = decompress(stream, input, &mut self.output)?;
                    checksum.update(&self.output[before..]);
                    (taken, ended.then(|| StreamPart::Trailer(Vec::new(), std::mem::take(checksum))))
                }
                StreamPart::Trailer(trailer, checksum) => {
                    let taken = input.len().min(TRAILER - trailer.len());
                    trailer.extend_from_slice(&input[..taken]);
                    if trailer.len() == TRAILER {
                        check_trailer(trailer, checksum)?;
                        self.pending.start += taken;
                        self.state = StreamPart::Header(Vec::new());
                        return Ok(());
                    }
                    (taken, None)
                }
            };
            self.pending.start += taken;
            match next {
                Some(state) => self.state = state,
                None => return Ok(()),
            }
        }
    }
}

fn damaged(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what)
}

/// Decompresses until the output is full or the whole input is decompressed. Returns the number of input bytes used,
/// and true if the stream has ended.
fn decompress(stream: &mut Decompress, input: &[u8], output: &mut Vec<u8>) -> io::Result<(usize, bool)> {
    let mut taken = 0;
    loop {
        let before = (stream.total_in(), output.len());
        let status = stream.decompress_vec(&input[taken..], output, FlushDecompress::None);
        taken += (stream.total_in() - before.0) as usize;
        match status.map_err(|e| damaged(&e.to_string()))? {
            Status::StreamEnd => return Ok((taken, true)),
            _ if (stream.total_in(), output.len()) == before => return Ok((taken, false)),
            _ if output.len() == output.capacity() => return Ok((taken, false)),
            _ => {}
        }
    }
}

/// Returns the length of a gzip member's header (RFC 1952), or `None` while the header is incomplete.
fn header_length(header: &[u8]) -> io::Result<Option<usize>> {
    const CHECKED: u8 = 2;
    const EXTRA: u8 = 4;
    const NAME: u8 = 8;
    const COMMENT: u8 = 16;
    const RESERVED: u8 = 0xe0;
    if header.len() >= 2 && header[..2] != [0x1f, 0x8b] {
        return Err(damaged("incorrect header check"));
    }
    let Some(&[_, _, method, flags]) = header.first_chunk() else { return Ok(None) };
    if method != 8 {
        return Err(damaged("unknown compression method"));
    }
    if flags & RESERVED != 0 {
        return Err(damaged("unknown header flags set"));
    }
    let mut length = 10;
    if flags & EXTRA != 0 {
        let Some(&[low, high]) = header.get(length..length + 2) else { return Ok(None) };
        length += 2 + usize::from(u16::from_le_bytes([low, high]));
    }
    for text in [NAME, COMMENT] {
        if flags & text != 0 {
            let rest = header.get(length..).unwrap_or_default();
            let Some(end) = rest.iter().position(|&byte| byte == 0) else { return Ok(None) };
            length += end + 1;
        }
    }
    if flags & CHECKED != 0 {
        let Some(&[low, high]) = header.get(length..length + 2) else { return Ok(None) };
        let mut checksum = Crc::new();
        checksum.update(&header[..length]);
        if checksum.sum() as u16 != u16::from_le_bytes([low, high]) {
            return Err(damaged("header crc mismatch"));
        }
        length += 2;
    }
    Ok((header.len() >= length).then_some(length))
}

fn check_trailer(trailer: &[u8], data: &Crc) -> io::Result<()> {
    if trailer[..4] != data.sum().to_le_bytes() {
        return Err(damaged("incorrect data check"));
    }
    if trailer[4..] != data.amount().to_le_bytes() {
        return Err(damaged("incorrect length check"));
    }
    Ok(())
}
