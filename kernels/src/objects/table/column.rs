//! A column of a table: the values of all rows, one row after another in memory.

use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, ResourceHandle, Shape, Tensor, Variant};

/// The values of all rows of a table.
pub(super) struct Column {
    dtype: DType,
    /// Number of tensor elements per row.
    width: usize,
    elements: ColumnElements,
}

/// The elements of a column, in the representation of their dtype.
enum ColumnElements {
    Plain { size: usize, bytes: Vec<u8> },
    Strings(Vec<Bytes>),
    Variants(Vec<Variant>),
    Resources(Vec<ResourceHandle>),
}

/// Evaluates an expression for the column's representation: `$all` is the vector of the column, `$from` the slice of
/// the tensor, and `$per` the number of vector items per row.
macro_rules! with_elements {
    ($column:expr, $tensor:expr, |$all:ident, $from:ident, $per:ident| $body:expr) => {{
        let width = $column.width;
        match &mut $column.elements {
            ColumnElements::Plain { size, bytes: $all } => {
                let ($from, $per) = ($tensor.bytes()?, width * *size);
                $body
            }
            ColumnElements::Strings($all) => {
                let ($from, $per) = ($tensor.as_strings()?, width);
                $body
            }
            ColumnElements::Variants($all) => {
                let ($from, $per) = ($tensor.as_variants()?, width);
                $body
            }
            ColumnElements::Resources($all) => {
                let ($from, $per) = ($tensor.as_resources()?, width);
                $body
            }
        }
    }};
}

impl Column {
    /// Returns an empty column.
    pub(super) fn new(dtype: DType, width: usize) -> Result<Column> {
        let elements = match dtype {
            DType::String => ColumnElements::Strings(Vec::new()),
            DType::Variant => ColumnElements::Variants(Vec::new()),
            DType::Resource => ColumnElements::Resources(Vec::new()),
            _ => {
                let size = dtype.size().ok_or_else(|| Error::unimplemented(format!("a table of {dtype}")))?;
                ColumnElements::Plain { size, bytes: Vec::new() }
            }
        };
        Ok(Column { dtype, width, elements })
    }

    /// Appends row `row` of a tensor.
    pub(super) fn push(&mut self, tensor: &Tensor, row: usize) -> Result<()> {
        with_elements!(self, tensor, |all, from, per| {
            all.try_reserve(per)
                .map_err(|_| Error::new(Code::ResourceExhausted, "no memory for another row"))?;
            all.extend_from_slice(&from[row * per..(row + 1) * per]);
        });
        Ok(())
    }

    /// Replaces the row at `index` by row `row` of a tensor.
    pub(super) fn set(&mut self, index: usize, tensor: &Tensor, row: usize) -> Result<()> {
        with_elements!(self, tensor, |all, from, per| {
            all[index * per..(index + 1) * per].clone_from_slice(&from[row * per..(row + 1) * per]);
        });
        Ok(())
    }

    /// Removes the row at `index`; the last row takes its index.
    pub(super) fn swap_remove(&mut self, index: usize) {
        fn remove<T: Clone>(all: &mut Vec<T>, index: usize, per: usize) {
            let last = all.len().saturating_sub(per);
            let tail = all.split_off(last);
            if index * per < last {
                all[index * per..(index + 1) * per].clone_from_slice(&tail);
            }
        }
        match &mut self.elements {
            ColumnElements::Plain { size, bytes } => remove(bytes, index, self.width * *size),
            ColumnElements::Strings(all) => remove(all, index, self.width),
            ColumnElements::Variants(all) => remove(all, index, self.width),
            ColumnElements::Resources(all) => remove(all, index, self.width),
        }
    }

    /// Returns whether the row at `index` equals row `row` of a tensor.
    pub(super) fn is_same(&mut self, index: usize, tensor: &Tensor, row: usize) -> Result<bool> {
        Ok(with_elements!(self, tensor, |all, from, per| {
            all[index * per..(index + 1) * per] == from[row * per..(row + 1) * per]
        }))
    }

    /// Returns the rows at the given indices. An index `None` takes the row from `default`: row 0 if `one_for_all`,
    /// otherwise the row whose number is the index's position in `row_indices`.
    pub(super) fn gather(
        &self,
        row_indices: impl Iterator<Item = Option<usize>>,
        default: &Tensor,
        one_for_all: bool,
        shape: Shape,
    ) -> Result<Tensor> {
        fn pick<'a, T>(all: &'a [T], default: &'a [T], per: usize, from: Row) -> &'a [T] {
            match from {
                Row::Present(index) => &all[index * per..(index + 1) * per],
                Row::Default(row) => &default[row * per..(row + 1) * per],
            }
        }
        enum Row {
            Present(usize),
            Default(usize),
        }
        let rows = row_indices.enumerate().map(|(i, index)| match index {
            Some(index) => Row::Present(index),
            None => Row::Default(if one_for_all { 0 } else { i }),
        });
        let width = self.width;
        Ok(match &self.elements {
            ColumnElements::Plain { size, bytes } => {
                let mut out = Tensor::unspecified(self.dtype, shape)?;
                let (default, per) = (default.bytes()?, width * size);
                if per > 0 {
                    for (to, row) in out.bytes_mut()?.chunks_exact_mut(per).zip(rows) {
                        to.copy_from_slice(pick(bytes, default, per, row));
                    }
                }
                out
            }
            ColumnElements::Strings(all) => {
                let default = default.as_strings()?;
                Tensor::strings(
                    rows.flat_map(|row| pick(all, default, width, row).to_vec()).collect(),
                    shape,
                )?
            }
            ColumnElements::Variants(all) => {
                let default = default.as_variants()?;
                Tensor::variants(
                    rows.flat_map(|row| pick(all, default, width, row).to_vec()).collect(),
                    shape,
                )?
            }
            ColumnElements::Resources(all) => {
                let default = default.as_resources()?;
                Tensor::resources(
                    rows.flat_map(|row| pick(all, default, width, row).to_vec()).collect(),
                    shape,
                )?
            }
        })
    }

    /// Returns all rows as one tensor of `shape`.
    pub(super) fn all(&self, shape: Shape) -> Result<Tensor> {
        Ok(match &self.elements {
            ColumnElements::Plain { bytes, .. } => Tensor::from_bytes(self.dtype, shape, bytes)?,
            ColumnElements::Strings(all) => Tensor::strings(all.clone(), shape)?,
            ColumnElements::Variants(all) => Tensor::variants(all.clone(), shape)?,
            ColumnElements::Resources(all) => Tensor::resources(all.clone(), shape)?,
        })
    }

    /// Returns the first element of the row at `index`, as a text for error messages.
    pub(super) fn text(&self, index: usize) -> String {
        let count = match &self.elements {
            ColumnElements::Plain { size, bytes } => bytes.len() / size.max(&1),
            ColumnElements::Strings(all) => all.len(),
            ColumnElements::Variants(all) => all.len(),
            ColumnElements::Resources(all) => all.len(),
        };
        let all = Shape::new(&[count]).map_err(Error::from).and_then(|shape| self.all(shape));
        all.map_or_else(|_| "?".to_owned(), |all| Column::text_of(&all, index * self.width))
    }

    /// Returns an element of a tensor as a text for error messages.
    pub(super) fn text_of(tensor: &Tensor, element: usize) -> String {
        use crate::numeric::dispatch::dispatch;
        if let Ok(strings) = tensor.as_strings() {
            return strings.get(element).map(|s| String::from_utf8_lossy(s).into_owned()).unwrap_or_default();
        }
        let text: Result<String> = dispatch!(plain, tensor.dtype(), T => {
            tensor.values::<T>().map(|all| format!("{:?}", all[element])).map_err(Error::from)
        });
        text.unwrap_or_else(|_| "?".to_owned())
    }
}
