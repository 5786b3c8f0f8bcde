//! How the records of a work unit, mostly a file's name, are found.

use crate::objects::io::{Compression, FixedFormat, FixedReader, LineReader, RecordReader, Returns, path_of};
use bytes::Bytes;
use device::{Error, Result};

/// What a reader takes work units for.
#[derive(Clone, Debug)]
pub enum Format {
    /// Names of files that are one record each.
    WholeFile,
    /// Records themselves.
    Identity,
    /// Text files, of which the first lines may be none.
    TextLine {
        skipped: u64,
    },
    FixedLength {
        format: FixedFormat,
        compression: Compression,
    },
    TfRecord {
        compression: Compression,
    },
}

/// A record and where it is from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    pub key: Bytes,
    pub value: Bytes,
}

/// What there is next in a work unit.
pub(super) enum Next {
    Record(Record),
    /// A record after which the work unit is done.
    Last(Record),
    End,
}

/// What reads a work unit.
pub(super) type Records = Box<dyn FnMut() -> Result<Next> + Send>;

impl Format {
    /// The kind of reader in messages.
    pub(super) fn name(&self) -> &'static str {
        match self {
            Format::WholeFile => "WholeFileReader",
            Format::Identity => "IdentityReader",
            Format::TextLine { .. } => "TextLineReader",
            Format::FixedLength { .. } => "FixedLengthRecordReader",
            Format::TfRecord { .. } => "TFRecordReader",
        }
    }

    /// Whether a reader can be put back to where it was: only one that is never within a work unit.
    pub(super) fn keeps_state(&self) -> bool {
        matches!(self, Format::WholeFile | Format::Identity)
    }

    /// Starts with a work unit.
    pub(super) fn open(&self, work: &Bytes) -> Result<Records> {
        let (work, path) = (work.clone(), path_of(work));
        Ok(match *self {
            Format::WholeFile => Box::new(move || {
                let value = std::fs::read(&path).map_err(|e| checkpoint::Error::file(&path, &e))?;
                Ok(Next::Last(Record { key: work.clone(), value: value.into() }))
            }),
            Format::Identity => {
                Box::new(move || Ok(Next::Last(Record { key: work.clone(), value: work.clone() })))
            }
            Format::TextLine { skipped } => {
                let mut lines = LineReader::open(path, Returns::EndLines)?;
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

/// Records by number, with keys `work:number`. What is wrong within a file stays wrong however often it is asked.
fn numbered(work: Bytes, mut next: impl FnMut() -> Result<Option<(u64, Bytes)>> + Send + 'static) -> Records {
    let mut failed: Option<Error> = None;
    Box::new(move || {
        if let Some(error) = &failed {
            return Err(error.clone());
        }
        match next() {
            Ok(None) => Ok(Next::End),
            Ok(Some((number, value))) => {
                let key = [&work[..], b":", number.to_string().as_bytes()].concat();
                Ok(Next::Record(Record { key: key.into(), value }))
            }
            Err(error) => {
                failed = Some(error.clone());
                Err(error)
            }
        }
    })
}
