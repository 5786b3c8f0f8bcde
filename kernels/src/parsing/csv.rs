//! Records of comma-separated values (RFC 4180): one tensor per column.

use super::super::string::parse_float;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::{DType, Tensor};
use std::str::FromStr;

/// The attributes of DecodeCSV.
struct Format {
    delimiter: u8,
    has_quotes: bool,
    /// The text of a field that, like an empty field, stands for a missing value.
    missing: Bytes,
    /// The indices of the selected columns, ascending; empty selects all columns.
    columns: Vec<usize>,
}

pub(super) fn decode(init: &KernelInit<'_>) -> Result<Kernel> {
    let delimiter = init.attr::<Bytes>("field_delim")?;
    let &[delimiter] = &delimiter[..] else { device::invalid!("field_delim should be only 1 char") };
    let columns = init.attr::<Vec<i64>>("select_cols")?;
    if columns.first().is_some_and(|&c| c < 0) || columns.windows(2).any(|w| w[0] >= w[1]) {
        device::invalid!("select_cols should be strictly increasing indices");
    }
    let types = init.attr::<Vec<DType>>("OUT_TYPE")?;
    if !columns.is_empty() && columns.len() != types.len() {
        device::invalid!("select_cols should match output size");
    }
    let format = Format {
        delimiter,
        has_quotes: init.attr("use_quote_delim")?,
        missing: init.attr("na_value")?,
        columns: columns.into_iter().map(|c| c as usize).collect(),
    };
    Kernel::sync(move |ctx| columns_of(ctx, &format))
}

/// The values of one output column read so far, by dtype.
enum Column {
    Float(Vec<f32>),
    Double(Vec<f64>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Text(Vec<Bytes>),
}

fn columns_of(ctx: &mut KernelContext<'_>, format: &Format) -> Result<()> {
    let records = ctx.input(0)?;
    let defaults = ctx.inputs_from(1)?;
    let mut columns = Vec::with_capacity(defaults.len());
    for (i, default) in defaults.iter().enumerate() {
        if default.num_elements() > 1 {
            device::invalid!(
                "There should only be 1 default per field but field {i} has {}",
                default.num_elements()
            );
        }
        if default.shape().rank() > 1 {
            device::invalid!("Each record default should be at most rank 1");
        }
        columns.push(match default.dtype() {
            DType::Float => Column::Float(Vec::new()),
            DType::Double => Column::Double(Vec::new()),
            DType::Int32 => Column::Int32(Vec::new()),
            DType::Int64 => Column::Int64(Vec::new()),
            _ => Column::Text(Vec::new()),
        });
    }
    for (row, record) in records.as_strings()?.iter().enumerate() {
        let fields = format.fields(record)?;
        if fields.len() != columns.len() {
            device::invalid!("Expect {} fields but have {} in record {row}", columns.len(), fields.len());
        }
        for (i, (column, field)) in columns.iter_mut().zip(fields).enumerate() {
            let is_missing = field.is_empty() || field == format.missing;
            column.push(if is_missing { None } else { Some(field) }, defaults[i], i, row)?;
        }
    }
    let shape = records.shape().clone();
    drop(defaults);
    for (i, column) in columns.into_iter().enumerate() {
        let tensor = match column {
            Column::Float(v) => Tensor::from_slice(&v, shape.clone()),
            Column::Double(v) => Tensor::from_slice(&v, shape.clone()),
            Column::Int32(v) => Tensor::from_slice(&v, shape.clone()),
            Column::Int64(v) => Tensor::from_slice(&v, shape.clone()),
            Column::Text(v) => Tensor::strings(v, shape.clone()),
        }?;
        ctx.set_output(i, tensor);
    }
    Ok(())
}

impl Column {
    fn push(&mut self, field: Option<Bytes>, default: &Tensor, i: usize, row: usize) -> Result<()> {
        let Some(field) = field else {
            let required = || Error::invalid(format!("Field {i} is required but missing in record {row}!"));
            if default.num_elements() == 0 {
                return Err(required());
            }
            match self {
                Column::Float(v) => v.push(default.item()?),
                Column::Double(v) => v.push(default.item()?),
                Column::Int32(v) => v.push(default.item()?),
                Column::Int64(v) => v.push(default.item()?),
                Column::Text(v) => v.extend(default.as_strings()?.iter().cloned()),
            }
            return Ok(());
        };
        if let Column::Text(v) = self {
            v.push(field);
            return Ok(());
        }
        let text = String::from_utf8_lossy(&field);
        let wrong = || {
            Error::invalid(format!("Field {i} in record {row} is not a valid {}: {text}", default.dtype()))
        };
        match self {
            Column::Float(v) => v.push(parse_float(&text).ok_or_else(wrong)? as f32),
            Column::Double(v) => v.push(parse_float(&text).ok_or_else(wrong)?),
            Column::Int32(v) => v.push(parse_integer(&text).ok_or_else(wrong)?),
            Column::Int64(v) => v.push(parse_integer(&text).ok_or_else(wrong)?),
            Column::Text(_) => {}
        }
        Ok(())
    }
}

/// Parses an integer, with or without surrounding blanks.
fn parse_integer<T: FromStr>(text: &str) -> Option<T> {
    text.trim_matches(|c: char| c.is_ascii_whitespace() || c == '\x0b').parse().ok()
}

/// Parses a field as a scalar of the dtype; `None` if the field is not a valid value of the dtype.
pub(crate) fn scalar(field: &Bytes, dtype: DType) -> Option<Tensor> {
    let text = String::from_utf8_lossy(field);
    match dtype {
        DType::Float => parse_float(&text).map(|v| Tensor::scalar(v as f32)),
        DType::Double => parse_float(&text).map(Tensor::scalar),
        DType::Int32 => parse_integer::<i32>(&text).map(Tensor::scalar),
        DType::Int64 => parse_integer::<i64>(&text).map(Tensor::scalar),
        _ => Some(Tensor::string(field.clone())),
    }
}

impl Format {
    /// Returns the selected fields of a record. An empty record has no fields.
    fn fields(&self, record: &Bytes) -> Result<Vec<Bytes>> {
        let mut fields = Vec::new();
        if record.is_empty() {
            return Ok(fields);
        }
        let mut at = 0;
        let mut number = 0;
        loop {
            let is_selected = self.columns.is_empty() || self.columns.binary_search(&number).is_ok();
            let field = match record.get(at) {
                Some(b'"') if self.has_quotes => self.quoted(record, &mut at)?,
                _ => self.plain(record, &mut at)?,
            };
            if is_selected {
                fields.push(field);
            }
            number += 1;
            // The field ends at a delimiter, after which another field begins, or at the end of the record.
            if at >= record.len() {
                return Ok(fields);
            }
            at += 1;
        }
    }

    /// Reads an unquoted field at `at`, and moves `at` to its end.
    fn plain(&self, record: &Bytes, at: &mut usize) -> Result<Bytes> {
        let start = *at;
        let rest = &record[start..];
        *at = start + rest.iter().position(|&b| b == self.delimiter).unwrap_or(rest.len());
        let field = record.slice(start..*at);
        if self.has_quotes && field.iter().any(|b| matches!(b, b'"' | b'\n' | b'\r')) {
            device::invalid!("Unquoted fields cannot have quotes/CRLFs inside");
        }
        Ok(field)
    }

    /// Reads a quoted field at `at`, and moves `at` past its closing quote.
    fn quoted(&self, record: &Bytes, at: &mut usize) -> Result<Bytes> {
        let mut field = Vec::new();
        *at += 1;
        loop {
            let Some(&byte) = record.get(*at) else {
                device::invalid!("Quoted field has to end with quote followed by delim or end");
            };
            *at += 1;
            match (byte, record.get(*at)) {
                (b'"', Some(b'"')) => {
                    field.push(b'"');
                    *at += 1;
                }
                (b'"', next) if next.is_none_or(|&n| n == self.delimiter) => return Ok(field.into()),
                (b'"', _) => device::invalid!("Quote inside a string has to be escaped by another quote"),
                (other, _) => field.push(other),
            }
        }
    }
}
