//! Datasets of what files hold: lines, records, blocks of one length.

use super::transform::{dataset, from_fn};
use super::{Dataset, Element, ElementSpec, UNKNOWN};
use crate::objects::io::{Compression, FixedFormat, FixedReader, LineReader, RecordReader, Returns, Source};
use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, Tensor};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The files of a dataset, in their order.
#[derive(Clone, Debug)]
pub(crate) struct Files {
    pub(crate) paths: Vec<PathBuf>,
    pub(crate) compression: Compression,
    /// Bytes read at once; `None`: as many as reading does by itself.
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

/// What reads one file; `None` at its end.
type Read = Box<dyn FnMut() -> Result<Option<Bytes>> + Send>;

/// Where the pull after one that found something wrong within a file goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AtError {
    /// In that file.
    Same,
    /// In the one after it.
    Next,
}

/// A dataset of the strings in files, one file after the other. What `open` makes for a file, with its place,
/// reads it. A file that cannot be opened is tried again.
fn strings(
    name: &'static str,
    files: Files,
    at_error: AtError,
    open: impl Fn(&Files, usize, &Path) -> Result<Read> + Send + Sync + 'static,
) -> Result<Arc<Dataset>> {
    let shared = Arc::new((files, open));
    dataset(name, ElementSpec::scalars(&[DType::String]), UNKNOWN, &[], move |_| {
        let shared = shared.clone();
        let mut next = 0;
        let mut reading: Option<Read> = None;
        from_fn(move |pull| {
            let (files, open) = &*shared;
            loop {
                pull.check()?;
                if let Some(read) = &mut reading {
                    match read() {
                        Ok(Some(bytes)) => return Ok(Some(Element::from([Tensor::string(bytes)]))),
                        Ok(None) => reading = None,
                        Err(error) => {
                            if at_error == AtError::Next {
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

pub(crate) fn text_lines(files: Files) -> Result<Arc<Dataset>> {
    strings("TextLine", files, AtError::Same, |files, _, path| {
        let mut reader = LineReader::new(files.open(path)?, Returns::Dropped);
        Ok(Box::new(move || reader.next_line()))
    })
}

/// Records from these offsets on, one a file, or from the beginning.
pub(crate) fn records(files: Files, offsets: Vec<u64>) -> Result<Arc<Dataset>> {
    if !offsets.is_empty() && offsets.len() != files.paths.len() {
        device::invalid!("`byte_offsets` must have the same size as `filenames`");
    }
    // What is decompressed comes in pieces of one size, whatever is asked for.
    let buffer = files.buffer.filter(|_| files.compression == Compression::None);
    strings("TFRecord", Files { buffer, ..files }, AtError::Next, move |files, i, path| {
        let mut reader = RecordReader::new(files.open(path)?);
        if let Some(offset) = offsets.get(i) {
            reader.advance_to(*offset)?;
        }
        Ok(Box::new(move || reader.next_record()))
    })
}

pub(crate) fn fixed_length_records(files: Files, format: FixedFormat) -> Result<Arc<Dataset>> {
    strings("FixedLengthRecord", files, AtError::Next, move |files, _, path| {
        let source = files.open(path)?;
        let is_plain = files.compression == Compression::None;
        let length = std::fs::metadata(path).map(|m| m.len()).ok().filter(|_| is_plain);
        if let Some(length) = length {
            let body = i128::from(length) - i128::from(format.header) - i128::from(format.footer);
            if body % i128::from(format.record) != 0 {
                return Err(Error::invalid(uneven(format, path, body)));
            }
        }
        let mut reader = FixedReader::new(source, format)?;
        let (mut read, path) = (0u64, path.to_owned());
        Ok(Box::new(move || {
            let record = reader.next_record()?;
            if record.is_some() {
                read += 1;
            } else if reader.excess() != 0 {
                // Of a compressed file the length is known only now.
                let body = read.saturating_mul(format.record).saturating_add(reader.excess());
                return Err(Error::new(Code::DataLoss, uneven(format, &path, body.into())));
            }
            Ok(record)
        }))
    })
}

/// What is wrong with a file that is no whole number of records: of less than none, where header or footer are cut off.
fn uneven(format: FixedFormat, path: &Path, body: i128) -> String {
    let FixedFormat { header, record, footer, .. } = format;
    format!(
        "Excluding the header ({header} bytes) and footer ({footer} bytes), input file \"{}\" has body length \
         {body} bytes, which is not an exact multiple of the record length ({record} bytes).",
        path.display()
    )
}
