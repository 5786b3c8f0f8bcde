//! Sparse gradients: rows of a variable, given by index. The mean divides each row by the number of gradients that
//! contained the row.

use super::Reduction;
use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::Stored;
use device::Result;
use graph::{PartialShape, Shape, Tensor};

/// A gradient of some rows of a variable.
#[derive(Clone, Debug)]
pub struct SparseGradient {
    /// `int64` vector of row indices.
    pub indices: Tensor,
    /// The rows of the gradient, one per index.
    pub values: Tensor,
    /// `int64` shape of the whole gradient, -1 for an unknown dimension; `None` if an applied gradient has no shape.
    pub shape: Option<Tensor>,
}

/// The sum of sparse gradients.
pub(super) struct SparseSum {
    pub(super) indices: Vec<i64>,
    pub(super) values: Tensor,
    /// For each row of the sum, the number of applied gradients that contained the row.
    pub(super) counts: Vec<usize>,
}

/// Adds `gradient` to `sum`. Returns the sum and the result; if the result is an error, the sum is unchanged.
/// `declared` is the accumulator's shape.
pub(super) fn add(
    sum: Option<SparseSum>,
    gradient: SparseGradient,
    declared: &PartialShape,
) -> (Option<SparseSum>, Result<()>) {
    let indices = match check(sum.as_ref(), &gradient, declared) {
        Ok(indices) => indices,
        Err(error) => return (sum, Err(error)),
    };
    let Some(sum) = sum else {
        let counts = vec![1; indices.len()];
        return (Some(SparseSum { indices, values: gradient.values, counts }), Ok(()));
    };
    match merge(&sum, &indices, &gradient.values) {
        Ok(merged) => (Some(merged), Ok(())),
        Err(error) => (Some(sum), Err(error)),
    }
}

/// Checks that a gradient's shapes match the sum and the declared shape, and returns the gradient's row indices.
fn check(sum: Option<&SparseSum>, gradient: &SparseGradient, declared: &PartialShape) -> Result<Vec<i64>> {
    let SparseGradient { indices, values, shape } = gradient;
    if indices.shape().rank() != 1 {
        device::invalid!("Input indices should be vector but received shape: {}", indices.shape());
    }
    let indices = indices.values::<i64>()?.to_vec();
    let dims = values.shape().dims();
    let Some(&rows) = dims.first() else {
        device::invalid!("Values cannot be 0-dimensional.");
    };
    if rows != indices.len() {
        device::invalid!("Expected {} non-empty input values, got {rows}", indices.len());
    }
    let declared = declared.dims().unwrap_or_default();
    if let Some(shape) = shape {
        let shape = shape.values::<i64>()?;
        if shape.len() < declared.len() {
            device::invalid!(
                "Shape mismatch: expected shape rank at least {}, got {}",
                declared.len(),
                shape.len()
            );
        }
        for (i, (want, &got)) in declared.iter().zip(shape).enumerate() {
            if let Some(want) = want
                && usize::try_from(got) != Ok(*want)
            {
                device::invalid!("Shape mismatch: expected shape dim {i} to be {want}, got {got}");
            }
        }
    }
    if let Some(Some(limit)) = declared.first() {
        for (i, &index) in indices.iter().enumerate() {
            if usize::try_from(index).is_ok_and(|index| index >= *limit) {
                device::invalid!(
                    "Shape mismatch: index of slice {i} exceeded limits of shape; index is {index} exceeded \
                     {limit}"
                );
            }
        }
    }
    let expected: Vec<Option<usize>> = match sum {
        Some(sum) if sum.values.shape().rank() != dims.len() => device::invalid!(
            "Shape mismatch: expected values rank {}, got {}",
            sum.values.shape().rank(),
            dims.len()
        ),
        Some(sum) => sum.values.shape().iter().map(|&dim| Some(dim)).collect(),
        None if declared.len() > dims.len() => device::invalid!(
            "Shape mismatch: expected values rank at least {}, got {}",
            declared.len(),
            dims.len()
        ),
        None => declared.to_vec(),
    };
    for (i, (want, got)) in expected.iter().zip(dims).enumerate().skip(1) {
        if let Some(want) = want
            && want != got
        {
            device::invalid!("Shape mismatch: expected values dim {i} to be {want}, got {got}");
        }
    }
    Ok(indices)
}

/// The sources of a row of a merged sum: its position among the rows of the old sum and among the rows of the gradient;
/// `None` if the old sum or the gradient lacks the row.
type MergedRow = (Option<usize>, Option<usize>);

/// Merges the rows of `sum` with the rows `values` of a gradient by ascending index, and adds two rows of equal index.
/// The order of the indices is not checked: in unsorted lists, rows of equal index may stay separate.
fn merge(sum: &SparseSum, indices: &[i64], values: &Tensor) -> Result<SparseSum> {
    let most = sum.indices.len() + indices.len();
    let mut rows: Vec<MergedRow> = Vec::with_capacity(most);
    let (mut merged_indices, mut counts) = (Vec::with_capacity(most), Vec::with_capacity(most));
    let (mut i, mut j) = (0, 0);
    loop {
        let (from_old, from_new) = match (sum.indices.get(i), indices.get(j)) {
            (Some(a), Some(b)) => (a <= b, b <= a),
            (Some(_), None) => (true, false),
            (None, Some(_)) => (false, true),
            (None, None) => break,
        };
        merged_indices.push(if from_old { sum.indices[i] } else { indices[j] });
        counts.push(if from_old { sum.counts[i] } else { 0 } + usize::from(from_new));
        rows.push((from_old.then_some(i), from_new.then_some(j)));
        i += usize::from(from_old);
        j += usize::from(from_new);
    }
    let shape = Shape::new(&[&[merged_indices.len()], &values.shape()[1..]].concat())?;
    let values = dispatch!(float, sum.values.dtype(), T => add_rows::<T>(&sum.values, values, &rows, shape))?;
    Ok(SparseSum { indices: merged_indices, values, counts })
}

/// Returns a tensor of the merged rows; each is a row of `old`, a row of `new`, or the sum of a row of `old` and a row
/// of `new`.
fn add_rows<T: Stored>(old: &Tensor, new: &Tensor, rows: &[MergedRow], shape: Shape) -> Result<Tensor> {
    let size: usize = shape[1..].iter().product();
    let (old, new) = (old.values::<T>()?, new.values::<T>()?);
    let mut merged: Vec<T> = Vec::with_capacity(rows.len().saturating_mul(size));
    for &(i, j) in rows {
        let start = merged.len();
        if let Some(i) = i {
            merged.extend_from_slice(&old[i * size..(i + 1) * size]);
        }
        if let Some(j) = j {
            let by = &new[j * size..(j + 1) * size];
            match i {
                Some(_) => merged[start..].iter_mut().zip(by).for_each(|(sum, &by)| *sum = sum.plus(by)),
                None => merged.extend_from_slice(by),
            }
        }
    }
    Ok(Tensor::from_slice(&merged, shape)?)
}

/// Divides each row of `values` by the count in `counts` that has the row's position.
fn divide_rows<T: Stored>(values: &mut Tensor, counts: &[usize]) -> Result<()> {
    let size: usize = values.shape()[1..].iter().product();
    for (row, &count) in values.values_mut::<T>()?.chunks_exact_mut(size.max(1)).zip(counts) {
        row.iter_mut().for_each(|value| *value = value.over_count(count));
    }
    Ok(())
}

impl SparseSum {
    /// Returns the sum or the mean of the applied gradients; `declared` is the accumulator's shape.
    pub(super) fn finish(mut self, reduction: Reduction, declared: &PartialShape) -> Result<SparseGradient> {
        if reduction == Reduction::Mean {
            dispatch!(float, self.values.dtype(), T => divide_rows::<T>(&mut self.values, &self.counts))?;
        }
        let first = declared.dim(0).and_then(|dim| i64::try_from(dim).ok()).unwrap_or(-1);
        let rest = self.values.shape()[1..].iter().map(|&dim| dim as i64);
        let shape: Vec<i64> = std::iter::once(first).chain(rest).collect();
        Ok(SparseGradient {
            indices: Tensor::vector(&self.indices)?,
            values: self.values,
            shape: Some(Tensor::vector(&shape)?),
        })
    }
}
