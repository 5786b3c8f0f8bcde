//! Reading of table rows from a text file. Each line is a row; its key and its value are each a column, the whole line,
//! or the line number.

use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, Shape, Tensor};
use std::fs::File;
use std::io::{BufRead, BufReader, ErrorKind};

/// Special values of `key_index` and `value_index`: the line number, and the whole line.
const LINE_NUMBER: i64 = -1;
const WHOLE_LINE: i64 = -2;

/// The format of a text file with one table row per line.
#[derive(Clone, Debug)]
pub struct TextFile {
    pub key_index: i64,
    pub value_index: i64,
    /// Number of lines to read; -1 for all lines.
    pub vocab_size: i64,
    pub delimiter: u8,
    /// Number added to each line number.
    pub offset: i64,
}

impl TextFile {
    /// Reads the keys and the values of a table from the file `path`; `key` and `value` are their dtypes.
    pub fn read(&self, path: &str, key: DType, value: DType) -> Result<(Tensor, Tensor)> {
        check_index("Key", self.key_index, "key", key)?;
        check_index("Value", self.value_index, "value", value)?;
        let file = File::open(path).map_err(|error| file_error(path, &error))?;
        let mut lines = BufReader::new(file);
        let (mut keys, mut values) = (CellValues::new(key)?, CellValues::new(value)?);
        let (mut count, mut line) = (0i64, Vec::new());
        if self.vocab_size == 0 {
            let message = format!("Finished reading 0 of lines from {path}");
            return Err(Error::new(Code::OutOfRange, message));
        }
        while self.vocab_size < 0 || count < self.vocab_size {
            line.clear();
            if lines.read_until(b'\n', &mut line).map_err(|error| file_error(path, &error))? == 0 {
                break;
            }
            let text = line.strip_suffix(b"\n").unwrap_or(&line);
            let text = text.strip_suffix(b"\r").unwrap_or(text);
            self.add(&mut keys, self.key_index, text, count, path)?;
            self.add(&mut values, self.value_index, text, count, path)?;
            count += 1;
        }
        if self.vocab_size > count {
            device::invalid!("Invalid vocab_size in {path}: expected {} but got {count}", self.vocab_size);
        }
        Ok((keys.finish()?, values.finish()?))
    }

    /// Appends one cell of a line to `cells`: the column `index`, the whole line, or the line number.
    fn add(&self, cells: &mut CellValues, index: i64, line: &[u8], number: i64, path: &str) -> Result<()> {
        match index {
            LINE_NUMBER => {
                let CellValues::Int64(all) = cells else {
                    return Err(Error::internal("line numbers are int64"));
                };
                all.push(number.wrapping_add(self.offset));
                Ok(())
            }
            WHOLE_LINE => cells.parse(line, number),
            column => {
                let mut columns = line.split(|&byte| byte == self.delimiter);
                let cell = usize::try_from(column).ok().and_then(|column| columns.nth(column));
                let Some(cell) = cell else {
                    device::invalid!(
                        "Invalid number of columns in {path} line {number} ({}) : expected at least {} got {}",
                        String::from_utf8_lossy(line),
                        self.key_index.max(self.value_index) + 1,
                        line.split(|&byte| byte == self.delimiter).count()
                    );
                };
                cells.parse(cell, number)
            }
        }
    }
}

fn check_index(name: &str, index: i64, attr: &str, dtype: DType) -> Result<()> {
    let is_integer = matches!(dtype, DType::Int32 | DType::Int64);
    match index {
        LINE_NUMBER if dtype != DType::Int64 => {
            device::invalid!("{name} index for line number requires table {attr} dtype of int64, got {dtype}")
        }
        WHOLE_LINE if dtype != DType::String && !is_integer => {
            device::invalid!(
                "{name} index for whole line requires string or integer table {attr}, got {dtype}"
            )
        }
        _ => Ok(()),
    }
}

fn file_error(path: &str, error: &std::io::Error) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::new(Code::NotFound, format!("{path}; No such file or directory")),
        ErrorKind::PermissionDenied => {
            Error::new(Code::PermissionDenied, format!("{path}; Permission denied"))
        }
        _ => Error::new(Code::Unknown, format!("{path}; {error}")),
    }
}

/// The keys or the values of all lines, by dtype.
enum CellValues {
    Text(Vec<Bytes>),
    Int32(Vec<i32>),
    Int64(Vec<i64>),
    Float(Vec<f32>),
    Double(Vec<f64>),
}

impl CellValues {
    fn new(dtype: DType) -> Result<CellValues> {
        Ok(match dtype {
            DType::String => CellValues::Text(Vec::new()),
            DType::Int32 => CellValues::Int32(Vec::new()),
            DType::Int64 => CellValues::Int64(Vec::new()),
            DType::Float => CellValues::Float(Vec::new()),
            DType::Double => CellValues::Double(Vec::new()),
            other => device::invalid!("Data type {other} not supported."),
        })
    }

    fn parse(&mut self, cell: &[u8], line: i64) -> Result<()> {
        fn number<T: std::str::FromStr>(cell: &[u8], line: i64, kind: &str) -> Result<T> {
            let text = String::from_utf8_lossy(cell);
            let parsed = text.trim().parse();
            parsed.map_err(|_| Error::invalid(format!("Field {text} in line {line} is not a valid {kind}.")))
        }
        match self {
            CellValues::Text(all) => all.push(Bytes::copy_from_slice(cell)),
            CellValues::Int32(all) => all.push(number(cell, line, "int32")?),
            CellValues::Int64(all) => all.push(number(cell, line, "int64")?),
            CellValues::Float(all) => all.push(number(cell, line, "float")?),
            CellValues::Double(all) => all.push(number(cell, line, "double")?),
        }
        Ok(())
    }

    fn finish(self) -> Result<Tensor> {
        Ok(match self {
            CellValues::Text(all) => {
                let shape = Shape::new(&[all.len()])?;
                Tensor::strings(all, shape)?
            }
            CellValues::Int32(all) => Tensor::vector(&all)?,
            CellValues::Int64(all) => Tensor::vector(&all)?,
            CellValues::Float(all) => Tensor::vector(&all)?,
            CellValues::Double(all) => Tensor::vector(&all)?,
        })
    }
}
