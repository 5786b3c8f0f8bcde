//! Datasets of the content of files: text lines, TFRecords, fixed-length records.

use super::state::{ExchangedState, StateExchange, mismatch};
use super::transform::{dataset, from_state};
use super::{Dataset, Element, ElementSpec, UNKNOWN};
use crate::objects::io::{
    CarriageReturns, Compression, FixedFormat, FixedReader, LineReader, RecordReader, Source,
};
use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, Tensor};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files that a dataset reads, in order.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) compression: Compression,
    /// Bytes per read; `None` uses the default of [`Source::open`].
    pub(crate) buffer: Option<usize>,
}

impl Files {
    pub(super) fn open(&self, path: &Path) -> Result<Source> {
        match self.buffer {
            Some(size) => Source::with_buffer(path, self.compression, size),
            None => Source::open(path, self.compression),
        }
    }
}

/// A reader of the strings in an open file.
trait StringReader: Send {
    /// Returns the next string, or `None` at the end of the file.
    fn next_string(&mut self) -> Result<Option<Bytes>>;

    /// Returns the position of the next string, in decompressed bytes.
    fn offset(&self) -> u64;

    /// Moves forward to the string that starts at `offset`: by reading if the file is compressed.
    fn advance_to(&mut self, offset: u64) -> Result<()>;
}

impl StringReader for LineReader {
    fn next_string(&mut self) -> Result<Option<Bytes>> {
        self.next_line()
    }

    fn offset(&self) -> u64 {
        LineReader::offset(self)
    }

    fn advance_to(&mut self, offset: u64) -> Result<()> {
        LineReader::advance_to(self, offset)
    }
}

impl StringReader for RecordReader {
    fn next_string(&mut self) -> Result<Option<Bytes>> {
        self.next_record()
    }

    fn offset(&self) -> u64 {
        RecordReader::offset(self)
    }

    fn advance_to(&mut self, offset: u64) -> Result<()> {
        RecordReader::advance_to(self, offset)
    }
}

/// A function that opens a file, given by its index and its path.
trait OpenFn: Fn(&Files, usize, &Path) -> Result<Box<dyn StringReader>> + Send + Sync {}

impl<F: Fn(&Files, usize, &Path) -> Result<Box<dyn StringReader>> + Send + Sync> OpenFn for F {}

/// The state of an iterator over the strings of several files.
struct FilesState<O> {
    shared: Arc<(Files, O)>,
    /// The index of the file that follows the open one.
    next: usize,
    /// The open file.
    reading: Option<Box<dyn StringReader>>,
}

impl<O: OpenFn> ExchangedState for FilesState<O> {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.next)?;
        let mut offset = self.reading.as_ref().map(|reading| reading.offset());
        exchange.value(&mut offset)?;
        if exchange.is_restoring() {
            self.reading = None;
            if let Some(offset) = offset {
                let (files, open) = &*self.shared;
                let index = self.next.checked_sub(1).ok_or_else(mismatch)?;
                let path = files.paths.get(index).ok_or_else(mismatch)?;
                self.reading.insert(open(files, index, path)?).advance_to(offset)?;
            }
        }
        Ok(())
    }
}

/// The file with which a dataset continues after an error in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ErrorPolicy {
    /// The file in which the error occurred.
    SameFile,
    /// The file after the one in which the error occurred.
    NextFile,
}

/// Returns a dataset of the strings in the files, one file after the other. `open` gets the index and the path of a
/// file and returns its reader. If a file cannot be opened, the next pull tries the same file again.
fn string_dataset(
    name: &'static str,
    files: Files,
    on_error: ErrorPolicy,
    open: impl OpenFn + 'static,
) -> Result<Arc<Dataset>> {
    let shared = Arc::new((files, open));
    dataset(name, ElementSpec::scalars(&[DType::String]), UNKNOWN, &[], move |_| {
        let state = FilesState { shared: shared.clone(), next: 0, reading: None };
        from_state(name, state, move |FilesState { shared, next, reading }, pull| {
            let (files, open) = &**shared;
            loop {
                pull.check()?;
                if let Some(open_file) = reading {
                    match open_file.next_string() {
                        Ok(Some(bytes)) => return Ok(Some(Element::from([Tensor::string(bytes)]))),
                        Ok(None) => *reading = None,
                        Err(error) => {
                            if on_error == ErrorPolicy::NextFile {
                                *reading = None;
                            }
                            return Err(error);
                        }
                    }
                }
                let Some(path) = files.paths.get(*next) else { return Ok(None) };
                *reading = Some(open(files, *next, path)?);
                *next += 1;
            }
        })
    })
}

/// Returns the dataset of the lines of text files, without line ends.
pub(crate) fn text_lines(files: Files) -> Result<Arc<Dataset>> {
    string_dataset("TextLine", files, ErrorPolicy::SameFile, |files, _, path| {
        Ok(Box::new(LineReader::new(files.open(path)?, CarriageReturns::Remove)))
    })
}

/// Returns the dataset of the TFRecords in the files. `offsets` has one byte offset per file at which reading starts,
/// or is empty to read each file from its start.
pub(crate) fn records(files: Files, offsets: Vec<u64>) -> Result<Arc<Dataset>> {
    if !offsets.is_empty() && offsets.len() != files.paths.len() {
        device::invalid!("`byte_offsets` must have the same size as `filenames`");
    }
    // Decompression always returns blocks of its own size, so the buffer size applies to uncompressed files only.
    let buffer = files.buffer.filter(|_| files.compression == Compression::None);
    string_dataset("TFRecord", Files { buffer, ..files }, ErrorPolicy::NextFile, move |files, i, path| {
        let mut reader = RecordReader::new(files.open(path)?);
        if let Some(offset) = offsets.get(i) {
            reader.advance_to(*offset)?;
        }
        Ok(Box::new(reader))
    })
}

/// Returns the dataset of the fixed-length records in the files.
pub(crate) fn fixed_length_records(files: Files, format: FixedFormat) -> Result<Arc<Dataset>> {
    string_dataset("FixedLengthRecord", files, ErrorPolicy::NextFile, move |files, _, path| {
        let source = files.open(path)?;
        let is_plain = files.compression == Compression::None;
        let length = std::fs::metadata(path).map(|m| m.len()).ok().filter(|_| is_plain);
        if let Some(length) = length {
            let body = i128::from(length) - i128::from(format.header) - i128::from(format.footer);
            if body % i128::from(format.record) != 0 {
                return Err(Error::invalid(uneven_message(format, path, body)));
            }
        }
        let reader = FixedReader::new(source, format)?;
        Ok(Box::new(FixedFile { reader, format, path: path.to_owned(), read: 0 }))
    })
}

/// An open file of fixed-length records.
struct FixedFile {
    reader: FixedReader,
    format: FixedFormat,
    path: PathBuf,
    /// Number of records read.
    read: u64,
}

impl StringReader for FixedFile {
    fn next_string(&mut self) -> Result<Option<Bytes>> {
        let FixedFile { reader, format, path, read } = self;
        let record = reader.next_record()?;
        if record.is_some() {
            *read += 1;
        } else if reader.excess() != 0 {
            // The length of a compressed file's content is known only after reading it, so the length is checked at the
            // end.
            let body = read.saturating_mul(format.record).saturating_add(reader.excess());
            return Err(Error::new(Code::DataLoss, uneven_message(*format, path, body.into())));
        }
        Ok(record)
    }

    fn offset(&self) -> u64 {
        self.reader.offset()
    }

    fn advance_to(&mut self, offset: u64) -> Result<()> {
        self.read = offset.saturating_sub(self.format.header) / self.format.record.max(1);
        self.reader.advance_to(offset)
    }
}

/// Returns the error message for a file whose body, the part between header and footer, is not a whole number of
/// records. `body` is the body's length in bytes, negative if the file is shorter than header and footer.
fn uneven_message(format: FixedFormat, path: &Path, body: i128) -> String {
    let FixedFormat { header, record, footer, .. } = format;
    format!(
        "Excluding the header ({header} bytes) and footer ({footer} bytes), input file \"{}\" has body length \
         {body} bytes, which is not an exact multiple of the record length ({record} bytes).",
        path.display()
    )
}
