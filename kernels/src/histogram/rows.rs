//! Counts of the integers in each row of dense, sparse and ragged tensors, as dense or sparse tensors.

use super::dispatch_four;
use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::Arithmetic;
use crate::sparse::matrix;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Result, invalid};
use graph::DType::{Double, Float};
use graph::{Shape, Tensor};

/// The values to count, with the row of each value.
pub(super) struct Rows {
    /// The number of rows; `None` if all values are counted together.
    count: Option<i64>,
    row_of_value: Vec<i64>,
    values: Vec<i64>,
}

/// Returns the row of each value of a ragged tensor with `count` values. Like in TensorFlow, splits that decrease in
/// between are permitted.
fn rows_of_splits(splits: &[i64], count: usize, fewest: usize) -> Result<Vec<i64>> {
    let (Some(&first), Some(&last)) = (splits.first(), splits.last()) else {
        invalid!("Splits must be non-empty");
    };
    if splits.len() < fewest {
        invalid!("Must provide at least {fewest} elements for the splits argument");
    }
    if first != 0 {
        invalid!("Splits must start with 0, not with {first}");
    }
    if last != count as i64 {
        invalid!("Splits must end with the number of values, got {last} instead of {count}");
    }
    let mut at = 0;
    // The loop ends at the last split at the latest, because the last split is the number of values.
    let next_row = |i: i64| {
        while splits.get(at).is_some_and(|&split| split <= i) {
            at += 1;
        }
        at as i64 - 1
    };
    Ok((0..count as i64).map(next_row).collect())
}

/// Returns the row of each value of a sparse tensor, and the number of rows, after checking that all indices are within
/// the shape. All values of a vector are in row 0.
fn rows_of_sparse(indices: &Tensor, values: &Tensor, shape: &Tensor) -> Result<(Option<i64>, Vec<i64>)> {
    let &[count, rank] = indices.shape().dims() else {
        invalid!("Input indices must be a 2-dimensional tensor. Got: {}", indices.shape());
    };
    if shape.shape().rank() != 1 || values.shape().rank() != 1 {
        invalid!("values and dense_shape must be vectors, not {} and {}", values.shape(), shape.shape());
    }
    if values.num_elements() != count {
        invalid!(
            "Number of values must match first dimension of indices. Got {} values, indices shape: {}",
            values.num_elements(),
            indices.shape()
        );
    }
    let shape = shape.values::<i64>()?;
    if shape.len() != rank {
        invalid!(
            "Number of dimensions must match second dimension of indices. Got {} dimensions, indices shape: {}",
            shape.len(),
            indices.shape()
        );
    }
    let Some(&rows) = shape.first() else {
        invalid!("The shape argument requires at least one element.");
    };
    let indices = indices.values::<i64>()?;
    for (i, index) in indices.chunks_exact(rank).enumerate() {
        let wrong = index.iter().zip(shape).position(|(at, size)| !(0..*size).contains(at));
        if let Some(axis) = wrong {
            invalid!(
                "Invalid index value at {i}: dimension {axis} has value {} which is not in [0, {})",
                index[axis],
                shape[axis]
            );
        }
    }
    match rank {
        1 => Ok((None, vec![0; count])),
        _ => Ok((Some(rows), indices.chunks_exact(rank).map(|index| index[0]).collect())),
    }
}

/// Returns the values that DenseCountSparseOutput counts: the rows of a matrix one by one, or all values of a vector
/// together.
pub(super) fn dense_rows(ctx: &KernelContext<'_>) -> Result<Rows> {
    let (values, weights) = (ctx.input(0)?, ctx.input(1)?);
    let numbers = values.to_i64s()?;
    let (count, row_of_value) = match *values.shape().dims() {
        [count] => (None, vec![0; count]),
        [0, _] => invalid!("Invalid input: Shapes dimension cannot be 0."),
        [rows, columns] => {
            let rows = rows as i64;
            (Some(rows), (0..rows).flat_map(|row| std::iter::repeat_n(row, columns)).collect())
        }
        _ => invalid!("Input must be a 1 or 2-dimensional tensor. Got: {}", values.shape()),
    };
    check_weights(values, weights)?;
    Ok(Rows { count, row_of_value, values: numbers })
}

/// Returns the values that SparseCountSparseOutput counts; the first index of a value is its row.
pub(super) fn rows_of_indices(ctx: &KernelContext<'_>) -> Result<Rows> {
    let (values, weights) = (ctx.input(1)?, ctx.input(3)?);
    let (count, row_of_value) = rows_of_sparse(ctx.input(0)?, values, ctx.input(2)?)?;
    if count.is_some_and(|count| !(1..i64::from(i32::MAX)).contains(&count)) {
        invalid!("Cannot allocate {} batches, is the dense shape too wide?", count.unwrap_or(0));
    }
    check_weights(values, weights)?;
    Ok(Rows { count, row_of_value, values: values.to_i64s()? })
}

/// Returns the values that RaggedCountSparseOutput counts, row by row.
pub(super) fn ragged_rows(ctx: &KernelContext<'_>) -> Result<Rows> {
    let (splits, values, weights) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    check_weights(values, weights)?;
    let splits = splits.values::<i64>()?;
    if splits.is_empty() {
        invalid!("Must provide at least 2 elements for the splits argument");
    }
    let row_of_value = rows_of_splits(splits, values.num_elements(), 2)?;
    Ok(Rows { count: Some(splits.len() as i64 - 1), row_of_value, values: values.to_i64s()? })
}

fn check_weights(values: &Tensor, weights: &Tensor) -> Result<()> {
    if weights.num_elements() > 0 && weights.shape() != values.shape() {
        invalid!(
            "Weights and values must have the same shape. Weight shape: {}; values shape: {}",
            weights.shape(),
            values.shape()
        );
    }
    Ok(())
}

/// A function `(groups, order, weights, binary)` that returns the sum of each group of values; see [`sums`].
type SumGroups = fn(&[std::ops::Range<usize>], &[usize], &Tensor, bool) -> Result<Tensor>;

/// Returns the sum of the weights of each group of values, or the size of the group without weights, or 1 if `binary`.
/// A group is a range of `order`, which holds indices of values.
fn sums<T: Arithmetic>(
    groups: &[std::ops::Range<usize>],
    order: &[usize],
    weights: &Tensor,
    binary: bool,
) -> Result<Tensor> {
    let weights = weights.values::<T>()?;
    let weight = |i: &usize| if weights.is_empty() { T::ONE } else { weights[*i] };
    let sum = |group: &std::ops::Range<usize>| match binary {
        true => T::ONE,
        false => order[group.clone()].iter().map(weight).fold(T::ZERO, T::plus),
    };
    Ok(Tensor::vector(&groups.iter().map(sum).collect::<Vec<T>>())?)
}

/// Makes a kernel that outputs, as a sparse tensor, the number of occurrences of each value in each row, or the sum of
/// their weights.
pub(super) fn sparse_counts(
    init: &KernelInit<'_>,
    read: fn(&KernelContext<'_>) -> Result<Rows>,
) -> Result<Kernel> {
    let (least, most) = (init.attr::<i64>("minlength")?, init.attr::<i64>("maxlength")?);
    let binary = init.attr::<bool>("binary_output")?;
    let sum = dispatch_four!(init.output_type(1), T => sums::<T> as SumGroups)?;
    Kernel::sync(move |ctx| {
        let rows = read(ctx)?;
        if rows.values.iter().any(|&value| value < 0) {
            invalid!("Input values must all be non-negative");
        }
        let is_counted = |&i: &usize| most < 0 || rows.values[i] < most;
        let mut order: Vec<usize> = (0..rows.values.len()).filter(is_counted).collect();
        let place = |i: usize| (rows.row_of_value[i], rows.values[i]);
        // The sort is stable: weights are added in the order of the input.
        order.sort_by_key(|&i| place(i));
        let (mut groups, mut indices, mut start) = (Vec::new(), Vec::new(), 0);
        for group in order.chunk_by(|&a, &b| place(a) == place(b)) {
            let (row, value) = place(group[0]);
            if rows.count.is_some() {
                indices.push(row);
            }
            indices.push(value);
            groups.push(start..start + group.len());
            start += group.len();
        }
        let largest = order.iter().map(|&i| rows.values[i]).max().unwrap_or(0);
        let width = if most >= 0 { most } else { largest.saturating_add(1).max(least) };
        let weights = ctx.input(ctx.num_inputs() - 1)?;
        let sums = sum(&groups, &order, weights, binary)?;
        let shape: Vec<i64> = rows.count.into_iter().chain([width]).collect();
        ctx.set_output(0, matrix(&indices, shape.len(), groups.len())?);
        ctx.set_output(1, sums);
        ctx.set_output(2, Tensor::vector(&shape)?);
        Ok(())
    })
}

/// Returns the number of bins in input `at`.
fn bin_count(ctx: &KernelContext<'_>, at: usize) -> Result<usize> {
    let size = ctx.input(at)?;
    if size.shape().rank() != 0 {
        invalid!("Shape must be rank 0 but is rank {}", size.shape().rank());
    }
    let size = size.to_i64s()?[0];
    usize::try_from(size).or_else(|_| invalid!("size ({size}) must be non-negative"))
}

/// Makes the kernel of SparseBincount: for each row of a sparse tensor and each integer, the sum of the weights of its
/// occurrences.
pub(super) fn sparse_bins(init: &KernelInit<'_>) -> Result<Kernel> {
    let add = AddToBins::of(init)?;
    Kernel::sync(move |ctx| {
        let bins = bin_count(ctx, 3)?;
        let (count, row_of_value) = rows_of_sparse(ctx.input(0)?, ctx.input(1)?, ctx.input(2)?)?;
        let rows = Rows { count, row_of_value, values: ctx.input(1)?.to_i64s()? };
        // Like in TensorFlow, negative values of a matrix are not counted.
        if count.is_none() && rows.values.iter().any(|&value| value < 0) {
            invalid!("Input arr must be non-negative!");
        }
        let out = add.run(&rows, ctx.input(4)?, bins)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of RaggedBincount: for each row of a ragged tensor and each integer, the sum of the weights of its
/// occurrences.
pub(super) fn ragged_bins(init: &KernelInit<'_>) -> Result<Kernel> {
    let add = AddToBins::of(init)?;
    Kernel::sync(move |ctx| {
        let bins = bin_count(ctx, 2)?;
        let (splits, values) = (ctx.input(0)?.values::<i64>()?, ctx.input(1)?.to_i64s()?);
        let row_of_value = rows_of_splits(splits, values.len(), 1)?;
        if values.iter().any(|&value| value < 0) {
            invalid!("Input must be non-negative");
        }
        let rows = Rows { count: Some(splits.len() as i64 - 1), row_of_value, values };
        let out = add.run(&rows, ctx.input(3)?, bins)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The computation of weighted counts per bin, for weights of one dtype.
struct AddToBins {
    dtype: graph::DType,
    add: fn(&mut Tensor, &Rows, &Tensor, usize, bool) -> Result<()>,
    is_binary: bool,
}

impl AddToBins {
    fn of(init: &KernelInit<'_>) -> Result<AddToBins> {
        let dtype = init.output_type(0);
        type Add = fn(&mut Tensor, &Rows, &Tensor, usize, bool) -> Result<()>;
        let add = dispatch_four!(dtype, T => add_to_bins::<T> as Add)?;
        Ok(AddToBins { dtype, add, is_binary: init.attr::<bool>("binary_output")? })
    }

    /// Returns the counts, with `bins` elements for each row, or for all rows together.
    fn run(&self, rows: &Rows, weights: &Tensor, bins: usize) -> Result<Tensor> {
        let given = weights.num_elements();
        if given > 0 && given < rows.values.len() {
            invalid!(
                "`weights` must have an element for each value or none, but there are {given} for {} values",
                rows.values.len()
            );
        }
        let shape: Vec<i64> = rows.count.into_iter().chain([bins as i64]).collect();
        let mut out = Tensor::zeros(self.dtype, Shape::from_i64(&shape)?)?;
        (self.add)(&mut out, rows, weights, bins, self.is_binary)?;
        Ok(out)
    }
}

fn add_to_bins<T: Arithmetic>(
    out: &mut Tensor,
    rows: &Rows,
    weights: &Tensor,
    bins: usize,
    binary: bool,
) -> Result<()> {
    let (sums, weights) = (out.values_mut::<T>()?, weights.values::<T>()?);
    for (i, (&row, &value)) in rows.row_of_value.iter().zip(&rows.values).enumerate() {
        let Some(bin) = usize::try_from(value).ok().filter(|&bin| bin < bins) else { continue };
        let sum = &mut sums[row as usize * bins + bin];
        *sum = match (binary, weights.get(i)) {
            (true, _) => T::ONE,
            (_, Some(&weight)) => sum.plus(weight),
            _ => sum.plus(T::ONE),
        };
    }
    Ok(())
}
