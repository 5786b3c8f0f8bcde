//! The validated view of a sparse tensor that kernels use, and selection of its rows.

use crate::numeric::copied::{CopiedElement, copied};
use crate::plan::sparse::check_parts;
use device::kernel::KernelContext;
use device::{Error, Result, invalid};
use graph::{Shape, Tensor};
use std::cmp::Ordering;

/// The indices, values and shape of one sparse tensor.
#[derive(Debug)]
pub(in super::super) struct Coo<'a> {
    /// The indices of all values, row after row, with `rank` coordinates per value.
    indices: &'a [i64],
    pub(in super::super) values: &'a Tensor,
    pub(in super::super) shape: Vec<i64>,
    count: usize,
}

impl<'a> Coo<'a> {
    /// Returns the sparse tensor in the inputs `first`, `first + 1` and `first + 2`.
    pub(in super::super) fn of(ctx: &'a KernelContext<'_>, first: usize) -> Result<Coo<'a>> {
        Coo::new(ctx.input(first)?, ctx.input(first + 1)?, ctx.input(first + 2)?)
    }

    /// Returns the sparse tensor with the given indices, values and dense shape.
    ///
    /// # Errors
    /// `InvalidArgument` if the parts do not match or the shape is invalid. The indices may still be outside the shape.
    pub(in super::super) fn new(
        indices: &'a Tensor,
        values: &'a Tensor,
        shape: &'a Tensor,
    ) -> Result<Coo<'a>> {
        let coo = Coo::with_any_sizes(indices, values, shape)?;
        Shape::from_i64(&coo.shape)?;
        Ok(coo)
    }

    /// Returns the sparse tensor like [`Coo::new`], but the sizes may be negative or have an overflowing product.
    pub(super) fn with_any_sizes(
        indices: &'a Tensor,
        values: &'a Tensor,
        shape: &'a Tensor,
    ) -> Result<Coo<'a>> {
        let count = check_parts(indices.shape(), values.shape(), shape.shape())?;
        let shape = shape.to_i64s()?;
        Ok(Coo { indices: indices.values()?, values, shape, count })
    }

    pub(in super::super) fn len(&self) -> usize {
        self.count
    }

    pub(in super::super) fn rank(&self) -> usize {
        self.shape.len()
    }

    pub(in super::super) fn index(&self, i: usize) -> &'a [i64] {
        let rank = self.shape.len();
        &self.indices[i * rank..(i + 1) * rank]
    }

    pub(in super::super) fn rows(&self) -> impl Iterator<Item = &'a [i64]> {
        (0..self.len()).map(|i| self.index(i))
    }

    /// Returns an error for the first index that is outside the shape.
    pub(in super::super) fn check_bounds(&self) -> Result<()> {
        match self.rows().enumerate().find(|(_, index)| !inside(index, &self.shape)) {
            Some((i, index)) => Err(out_of_bounds(i, index, &self.shape)),
            None => Ok(()),
        }
    }

    /// Returns the positions of the values, sorted by the values' indices along `axes`, compared from first to last;
    /// the sort is stable.
    pub(in super::super) fn order_by(&self, axes: &[usize]) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.len()).collect();
        order.sort_by(|&a, &b| {
            let (a, b) = (self.index(a), self.index(b));
            axes.iter().map(|&axis| a[axis].cmp(&b[axis])).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
        });
        order
    }

    /// Returns the row-major position of an index in the dense tensor.
    pub(in super::super) fn position(&self, index: &[i64]) -> usize {
        index.iter().zip(&self.shape).fold(0, |at, (&i, &d)| at * d as usize + i as usize)
    }
}

/// Returns an error for the first index that is outside the shape, or not greater than the index before it.
pub(in super::super) fn check_sorted<'a>(
    indices: impl Iterator<Item = &'a [i64]>,
    shape: &[i64],
) -> Result<()> {
    let mut before: Option<&[i64]> = None;
    for (i, index) in indices.enumerate() {
        if !inside(index, shape) {
            return Err(out_of_bounds(i, index, shape));
        }
        match before.map_or(Ordering::Less, |before| before.cmp(index)) {
            Ordering::Less => before = Some(index),
            Ordering::Equal => invalid!("indices[{i}] = {} is repeated", text(index)),
            Ordering::Greater => invalid!(
                "indices[{i}] = {} is out of order. Many sparse ops require sorted indices.\n    Use \
                 `tf.sparse.reorder` to create a correctly ordered copy.",
                text(index)
            ),
        }
    }
    Ok(())
}

fn inside(index: &[i64], shape: &[i64]) -> bool {
    index.iter().zip(shape).all(|(&i, &d)| (0..d).contains(&i))
}

fn out_of_bounds(i: usize, index: &[i64], shape: &[i64]) -> Error {
    Error::invalid(format!(
        "indices[{i}] = {} is out of bounds: need 0 <= index < {}",
        text(index),
        text(shape)
    ))
}

/// Formats numbers as `[1,2,3]`.
pub(in super::super) fn text(numbers: &[i64]) -> String {
    let numbers: Vec<String> = numbers.iter().map(i64::to_string).collect();
    format!("[{}]", numbers.join(","))
}

/// Returns the elements of `values` at the positions in `order`, which must exist.
pub(in super::super) fn picked(values: &Tensor, order: &[usize]) -> Result<Tensor> {
    copied!(values.dtype(), E => E::build(values.dtype(), Shape::new(&[order.len()])?, |out| {
        let values = E::view(values)?;
        for (o, &i) in out.iter_mut().zip(order) {
            o.clone_from(&values[i]);
        }
        Ok(())
    }))
}

/// Concatenates vectors of one dtype.
pub(in super::super) fn joined(parts: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = parts.first() else { invalid!("nothing to join") };
    let count = parts.iter().map(|p| p.num_elements()).sum();
    copied!(first.dtype(), E => E::build(first.dtype(), Shape::new(&[count])?, |out| {
        let mut rest = out;
        for part in parts {
            let values = E::view(part)?;
            let (here, after) = rest.split_at_mut(values.len());
            here.clone_from_slice(values);
            rest = after;
        }
        Ok(())
    }))
}

/// Returns a matrix of `count` indices with `rank` coordinates each, one row per index.
pub(in super::super) fn matrix(rows: &[i64], rank: usize, count: usize) -> Result<Tensor> {
    Ok(Tensor::from_slice(rows, Shape::new(&[count, rank])?)?)
}
