//! Formats of work units: the ways in which a reader finds the records of a work unit, which usually is a file name.

use crate::objects::io::{
    CarriageReturns, Compression, FixedFormat, FixedReader, LineReader, RecordReader, path_of,
};
use bytes::Bytes;
use device::{Error, Result};

/// The format of a reader's work units.
#[derive(Clone, Debug)]
pub enum Format {
    /// Work units are file names; the content of a file is one record.
    WholeFile,
    /// Work units are records themselves.
    Identity,
    /// Work units are names of text files; each line after `skipped` header lines is a record.
    TextLine { skipped: u64 },
    /// Work units are names of files with fixed-length records.
    FixedLength { format: FixedFormat, compression: Compression },
    /// Work units are names of TFRecord files.
    TfRecord { compression: Compression },
}

/// A record and its key, which identifies the work unit and the record's position in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Bytes,
    pub value: Bytes,
}

/// The result of reading the next record of a work unit.
pub(super) enum NextRecord {
    /// A record, which may not be the last of the work unit.
    Record(Record),
    /// The last record of the work unit.
    Last(Record),
    /// The work unit has no more records.
    End,
}

/// A function that returns the next record of a work unit, or its end, at each call.
pub(super) type RecordsFn = Box<dyn FnMut() -> Result<NextRecord> + Send>;

impl Format {
    /// Returns the name of the kind of reader for messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Format::WholeFile => "WholeFileReader",
            Format::Identity => "IdentityReader",
            Format::TextLine { .. } => "TextLineReader",
            Format::FixedLength { .. } => "FixedLengthRecordReader",
            Format::TfRecord { .. } => "TFRecordReader",
        }
    }

    /// Returns whether the reader's state can be restored, which only formats with one record per work unit support.
    pub(super) fn can_restore(&self) -> bool {
        matches!(self, Format::WholeFile | Format::Identity)
    }

    /// Opens a work unit, and returns the function that reads its records.
    pub(super) fn open(&self, work: &Bytes) -> Result<RecordsFn> {
        let (work, path) = (work.clone(), path_of(work));
        Ok(match *self {
            Format::WholeFile => Box::new(move || {
                let value = std::fs::read(&path).map_err(|e| checkpoint::Error::file(&path, &e))?;
                Ok(NextRecord::Last(Record { key: work.clone(), value: value.into() }))
            }),
            Format::Identity => {
                Box::new(move || Ok(NextRecord::Last(Record { key: work.clone(), value: work.clone() })))
            }
            Format::TextLine { skipped } => {
                let mut lines = LineReader::open(path, CarriageReturns::RemoveAtLineEnd)?;
                let mut number = 0;
                while number < skipped && lines.next_line()?.is_some() {
                    number += 1;
                }
                numbered(work, move || {
                    number += 1;
                    Ok(lines.next_line()?.map(|line| (number, line)))
                })
            }
            Format::FixedLength { format, compression } => {
                let mut blocks = FixedReader::open(path, compression, format)?;
                blocks.skip_header()?;
                let mut number = 0;
                numbered(work, move || {
                    let block = blocks.next_record()?.map(|block| (number, block));
                    number += 1;
                    Ok(block)
                })
            }
            Format::TfRecord { compression } => {
                let mut records = RecordReader::open(path, compression)?;
                numbered(work, move || {
                    let offset = records.offset();
                    Ok(records.next_record()?.map(|record| (offset, record)))
                })
            }
        })
    }
}

/// Returns a function that returns the records of `next` one by one, with keys `work:number`. After an error each call
/// returns the same error.
fn numbered(
    work: Bytes,
    mut next: impl FnMut() -> Result<Option<(u64, Bytes)>> + Send + 'static,
) -> RecordsFn {
    let mut failed: Option<Error> = None;
    Box::new(move || {
        if let Some(error) = &failed {
            return Err(error.clone());
        }
        match next() {
            Ok(None) => Ok(NextRecord::End),
            Ok(Some((number, value))) => {
                let key = [&work[..], b":", number.to_string().as_bytes()].concat();
                Ok(NextRecord::Record(Record { key: key.into(), value }))
            }
            Err(error) => {
                failed = Some(error.clone());
                Err(error)
            }
        }
    })
}
