//! Datasets of the content of files: text lines, TFRecords, fixed-length records.

use super::transform::{dataset, from_fn};
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

/// A function that returns the next string of an open file, or `None` at the end of the file.
type ReadFn = Box<dyn FnMut() -> Result<Option<Bytes>> + Send>;

/// The file with which a dataset continues after an error in a file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ErrorPolicy {
    /// The file in which the error occurred.
    SameFile,
    /// The file after the one in which the error occurred.
    NextFile,
}

/// Returns a dataset of the strings in the files, one file after the other. `open` gets the index and the path of a
/// file and returns the function that reads it. If a file cannot be opened, the next pull tries the same file again.
fn string_dataset(
    name: &'static str,
    files: Files,
    on_error: ErrorPolicy,
    open: impl Fn(&Files, usize, &Path) -> Result<ReadFn> + Send + Sync + 'static,
) -> Result<Arc<Dataset>> {
    let shared = Arc::new((files, open));
    dataset(name, ElementSpec::scalars(&[DType::String]), UNKNOWN, &[], move |_| {
        let shared = shared.clone();
        let mut next = 0;
        let mut reading: Option<ReadFn> = None;
        from_fn(move |pull| {
            let (files, open) = &*shared;
            loop {
                pull.check()?;
                if let Some(read) = &mut reading {
                    match read() {
                        Ok(Some(bytes)) => return Ok(Some(Element::from([Tensor::string(bytes)]))),
                        Ok(None) => reading = None,
                        Err(error) => {
                            if on_error == ErrorPolicy::NextFile {
                                reading = None;
                            }
                            return Err(error);
                        }
                    }
                }
                let Some(path) = files.paths.get(next) else { return Ok(None) };
                reading = Some(open(files, next, path)?);
                next += 1;
            }
        })
    })
}

/// Returns the dataset of the lines of text files, without line ends.
pub(crate) fn text_lines(files: Files) -> Result<Arc<Dataset>> {
    string_dataset("TextLine", files, ErrorPolicy::SameFile, |files, _, path| {
        let mut reader = LineReader::new(files.open(path)?, CarriageReturns::Remove);
        Ok(Box::new(move || reader.next_line()))
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
        Ok(Box::new(move || reader.next_record()))
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
        let mut reader = FixedReader::new(source, format)?;
        let (mut read, path) = (0u64, path.to_owned());
        Ok(Box::new(move || {
            let record = reader.next_record()?;
            if record.is_some() {
                read += 1;
            } else if reader.excess() != 0 {
                // The length of a compressed file's content is known only after reading it, so the length is checked at
                // the end.
                let body = read.saturating_mul(format.record).saturating_add(reader.excess());
                return Err(Error::new(Code::DataLoss, uneven_message(format, &path, body.into())));
            }
            Ok(record)
        }))
    })
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
