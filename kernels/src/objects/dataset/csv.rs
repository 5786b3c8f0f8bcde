//! A dataset of the records in files of comma-separated values (RFC 4180).

use super::files::Files;
use super::state::{ExchangedState, StateExchange, mismatch};
use super::transform::{dataset, from_state};
use super::{Dataset, Element, ElementSpec, UNKNOWN};
use crate::objects::io::Source;
use bytes::Bytes;
use device::invalid;
use device::{Error, Result};
use graph::{DType, Tensor};
use std::sync::Arc;

/// The format of the records, and the columns to read.
pub(crate) struct Csv {
    pub(crate) delimiter: u8,
    pub(crate) has_quotes: bool,
    /// True if the first record of each file is a header.
    pub(crate) has_header: bool,
    /// Text that means a missing value, in addition to the empty text.
    pub(crate) missing: Bytes,
    pub(crate) columns: Columns,
    /// Default of each selected column, with the column's dtype; an empty tensor makes the column required.
    pub(crate) defaults: Vec<Tensor>,
    /// A function that parses a field as a scalar of a dtype, and returns `None` if the text is not valid for the
    /// dtype.
    pub(crate) parse: fn(&Bytes, DType) -> Option<Tensor>,
}

/// The columns to read, by ascending column numbers.
pub(crate) enum Columns {
    All,
    Only(Vec<usize>),
    Except(Vec<usize>),
}

/// Returns the dataset of the records of `files`. An invalid record is an error of the pull, and the next pull
/// continues with the following record.
pub(crate) fn csv(files: Files, csv: Csv, spec: ElementSpec) -> Result<Arc<Dataset>> {
    let shared = Arc::new((files, csv));
    dataset("CSV", spec, UNKNOWN, &[], move |_| {
        let state = CsvState { shared: shared.clone(), next: 0, reading: None };
        from_state("CSV", state, |CsvState { shared, next, reading }, pull| {
            let (files, csv) = &**shared;
            loop {
                pull.check()?;
                if let Some(source) = reading {
                    match csv.read_record(source) {
                        Ok(Some(record)) => return Ok(Some(Element::from_iter(record?))),
                        Ok(None) => *reading = None,
                        Err(error) => {
                            *reading = None;
                            return Err(error);
                        }
                    }
                }
                let Some(path) = files.paths.get(*next) else { return Ok(None) };
                let mut source = files.open(path)?;
                *next += 1;
                if csv.has_header {
                    let Some(header) = csv.skip_header(&mut source)? else {
                        invalid!("Can't read header of file");
                    };
                    *reading = Some(source);
                    header?;
                } else {
                    *reading = Some(source);
                }
            }
        })
    })
}

/// The state of an iterator over the records of several files.
struct CsvState {
    shared: Arc<(Files, Csv)>,
    /// The index of the file that follows the open one.
    next: usize,
    /// The open file, at its next record.
    reading: Option<Source>,
}

impl ExchangedState for CsvState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange.value(&mut self.next)?;
        let mut offset = self.reading.as_ref().map(Source::position);
        exchange.value(&mut offset)?;
        if exchange.is_restoring() {
            self.reading = None;
            if let Some(offset) = offset {
                let files = &self.shared.0;
                let path = self.next.checked_sub(1).and_then(|index| files.paths.get(index));
                self.reading.insert(files.open(path.ok_or_else(mismatch)?)?).advance_to(offset)?;
            }
        }
        Ok(())
    }
}

/// The separator that ended a field.
#[derive(PartialEq, Eq)]
enum Separator {
    /// The delimiter, after which another field of the record follows.
    Field,
    /// A line end or the end of the file.
    Record,
}

/// The values of the selected fields of a record, and the first error found in the record.
struct RecordValues<'a> {
    csv: &'a Csv,
    values: Vec<Tensor>,
    error: Option<Error>,
}

impl RecordValues<'_> {
    fn set_error(&mut self, what: String) {
        self.error.get_or_insert_with(|| Error::invalid(what));
    }

    fn push(&mut self, field: Vec<u8>) {
        if self.error.is_some() {
            return;
        }
        let (at, field) = (self.values.len(), Bytes::from(field));
        let Some(default) = self.csv.defaults.get(at) else {
            return self.set_error(format!("Expect {at} fields but have more in record"));
        };
        let is_missing = field.is_empty() || field == self.csv.missing;
        let value = match is_missing {
            true => default.clone().reshaped(graph::Shape::scalar()).ok(),
            false => (self.csv.parse)(&field, default.dtype()),
        };
        match value {
            Some(value) => self.values.push(value),
            None if is_missing => self.set_error(format!("Field {at} is required but missing in record!")),
            None => {
                let text = String::from_utf8_lossy(&field);
                self.set_error(format!("Field {at} in record is not a valid {}: {text}", default.dtype()));
            }
        }
    }
}

impl Csv {
    /// Skips the first record. The outer error is an error of reading the file; the inner error is a quoting error in
    /// the header.
    fn skip_header(&self, source: &mut Source) -> Result<Option<Result<()>>> {
        let nothing =
            Csv { columns: Columns::Only(Vec::new()), defaults: Vec::new(), missing: Bytes::new(), ..*self };
        Ok(nothing.read_record(source)?.map(|header| header.map(|_| ())))
    }

    /// Reads the next record and returns its values or the error in the record; returns `None` at the end of the file.
    ///
    /// # Errors
    /// The errors of reading the file, and `InvalidArgument` if the file ends within quotes.
    fn read_record(&self, source: &mut Source) -> Result<Option<Result<Vec<Tensor>>>> {
        if source.peek()?.is_empty() {
            return Ok(None);
        }
        let mut record =
            RecordValues { csv: self, values: Vec::with_capacity(self.defaults.len()), error: None };
        for number in 0.. {
            let (field, end) = match source.peek()?.first() {
                Some(b'"') if self.has_quotes => self.read_quoted(source, &mut record)?,
                _ => self.read_plain(source, &mut record)?,
            };
            let is_selected = match &self.columns {
                Columns::All => true,
                Columns::Only(selected) => selected.binary_search(&number).is_ok(),
                Columns::Except(left) => left.binary_search(&number).is_err(),
            };
            if is_selected {
                record.push(field);
            }
            if end == Separator::Record {
                break;
            }
        }
        let (selected, given) = (self.defaults.len(), record.values.len());
        if given < selected {
            record.set_error(format!("Expect {selected} fields but have {given} in record"));
        }
        Ok(Some(record.error.map_or(Ok(record.values), Err)))
    }

    /// Returns the kind of separator that `byte`, the first byte after a field, begins; `None` if it begins no
    /// separator.
    fn separator(&self, byte: u8) -> Option<Separator> {
        match byte {
            b'\n' | b'\r' => Some(Separator::Record),
            byte if byte == self.delimiter => Some(Separator::Field),
            _ => None,
        }
    }

    /// Consumes the separator after a field, which begins with `byte`; a CR LF pair is one separator.
    fn consume_separator(source: &mut Source, byte: u8) -> Result<()> {
        source.consume(1);
        if byte == b'\r' && source.peek()?.first() == Some(&b'\n') {
            source.consume(1);
        }
        Ok(())
    }

    fn read_plain(&self, source: &mut Source, record: &mut RecordValues<'_>) -> Result<(Vec<u8>, Separator)> {
        let mut field = Vec::new();
        loop {
            let bytes = source.peek()?;
            if bytes.is_empty() {
                return Ok((field, Separator::Record));
            }
            let length = bytes.iter().position(|&byte| self.separator(byte).is_some());
            let taken = &bytes[..length.unwrap_or(bytes.len())];
            if self.has_quotes && taken.contains(&b'"') {
                record.set_error("Unquoted fields cannot have quotes inside".to_owned());
            }
            field.extend_from_slice(taken);
            let (count, last) = (taken.len(), length.map(|at| bytes[at]));
            source.consume(count);
            if let Some((byte, end)) = last.and_then(|byte| Some((byte, self.separator(byte)?))) {
                Csv::consume_separator(source, byte)?;
                return Ok((field, end));
            }
        }
    }

    fn read_quoted(
        &self,
        source: &mut Source,
        record: &mut RecordValues<'_>,
    ) -> Result<(Vec<u8>, Separator)> {
        let mut field = Vec::new();
        source.consume(1);
        loop {
            let Some(&byte) = source.peek()?.first() else {
                invalid!("Reached end of file without closing quoted field in record");
            };
            source.consume(1);
            if byte != b'"' {
                field.push(byte);
                continue;
            }
            match source.peek()?.first().copied() {
                None => return Ok((field, Separator::Record)),
                Some(b'"') => {
                    source.consume(1);
                    field.push(b'"');
                }
                Some(next) => match self.separator(next) {
                    Some(end) => {
                        Csv::consume_separator(source, next)?;
                        return Ok((field, end));
                    }
                    None => {
                        record
                            .set_error("Quote inside a string has to be escaped by another quote".to_owned());
                    }
                },
            }
        }
    }
}
