//! SparseFillEmptyRows and RaggedFillEmptyRows, which give each empty row a default value, and their gradients.

use super::coo::matrix;
use crate::numeric::copied::{CopiedElement, copied};
use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::Semiring;
use device::Result;
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::{Shape, Tensor};

/// The sizes of a sparse tensor whose empty rows are filled.
struct Sizes {
    /// The number of rows of the dense shape.
    rows: usize,
    /// The number of values of the sparse tensor.
    count: usize,
    rank: usize,
}

impl Sizes {
    /// Checks inputs 0 to 3 (indices, values, dense shape and default value), and returns their sizes.
    fn of(ctx: &KernelContext<'_>) -> Result<Sizes> {
        let (indices, values) = (ctx.input(0)?, ctx.input(1)?);
        let (shape, default) = (ctx.input(2)?, ctx.input(3)?);
        if shape.shape().rank() != 1 || shape.num_elements() == 0 {
            invalid!("dense_shape must be a vector with elements, saw: {}", shape.shape());
        }
        let [count, rank] = *indices.shape().dims() else {
            invalid!("indices must be a matrix, saw: {}", indices.shape());
        };
        if values.shape().rank() != 1 {
            invalid!("values must be a vector, saw: {}", values.shape());
        }
        if values.num_elements() != count {
            invalid!(
                "The length of `values` ({}) must match the first dimension of `indices` ({count}).",
                values.num_elements()
            );
        }
        if default.shape().rank() != 0 {
            invalid!("default_value must be a scalar, saw: {}", default.shape());
        }
        if shape.num_elements() != rank {
            invalid!(
                "The length of `dense_shape` ({}) must match the second dimension of `indices` ({rank}).",
                shape.num_elements()
            );
        }
        if rank == 0 {
            invalid!("indices must have a column for the rows, saw: {}", indices.shape());
        }
        let dense_rows = shape.to_i64s()?[0];
        let Ok(rows) = usize::try_from(dense_rows) else {
            invalid!("dense_shape[0] must not be negative, saw: {dense_rows}");
        };
        Ok(Sizes { rows, count, rank })
    }
}

/// The layout of the output's rows.
struct RowLayout {
    /// For each row, true if the input has no values in the row; this is output 2.
    empty: Tensor,
    /// For each row, the index in the output of the row's first value.
    starts: Tensor,
    /// The number of values of the output.
    total: usize,
}

impl RowLayout {
    /// Returns the layout of the output for the given input indices; a row without values gets one value.
    fn new(indices: &[i64], &Sizes { rows, count, rank }: &Sizes) -> Result<RowLayout> {
        // The marks of empty rows are a tensor, so that their size is checked against the memory limit before they are
        // allocated.
        let mut empty = Tensor::full(graph::Bool8::TRUE, Shape::new(&[rows])?)?;
        let marks = empty.values_mut::<graph::Bool8>()?;
        let mut sizes = Tensor::zeros(graph::DType::Int64, Shape::new(&[rows])?)?;
        let starts = sizes.values_mut::<i64>()?;
        for i in 0..count {
            let row = indices[i * rank];
            let Some(row) = usize::try_from(row).ok().filter(|&r| r < rows) else {
                if rows == 0 {
                    invalid!("Received SparseTensor with dense_shape[0] = 0 but indices.shape[0] = {count}");
                }
                invalid!("indices({i}, 0) is invalid: {row} >= {rows}");
            };
            marks[row] = graph::Bool8::FALSE;
            starts[row] += 1;
        }
        let mut total = 0;
        for start in starts.iter_mut() {
            let size = (*start).max(1);
            *start = total;
            total += size;
        }
        Ok(RowLayout { empty, starts: sizes, total: total as usize })
    }
}

/// A sparse or ragged tensor whose empty rows have a default value.
struct Filled {
    /// The indices of the values, `rank` numbers for each.
    indices: Vec<i64>,
    values: Tensor,
    /// For each row, true if the input has no values in the row.
    empty: Tensor,
    /// The output index of each input value.
    reverse: Tensor,
}

impl Filled {
    /// Adds a default value to each empty row; `flat` holds the indices of the values.
    fn new(flat: &[i64], values: &Tensor, default: &Tensor, sizes: &Sizes) -> Result<Filled> {
        let RowLayout { empty, mut starts, total } = RowLayout::new(flat, sizes)?;
        let &Sizes { count, rank, .. } = sizes;
        let starts = starts.values_mut::<i64>()?;
        // After the loop, `starts` has the end of each row that has values.
        let mut reverse = Tensor::zeros(graph::DType::Int64, Shape::new(&[count])?)?;
        let targets = reverse.values_mut::<i64>()?;
        for (i, target) in targets.iter_mut().enumerate() {
            let row = flat[i * rank] as usize;
            *target = starts[row];
            starts[row] += 1;
        }
        let (targets, starts) = (&*targets, &*starts);
        let out_values = copied!(values.dtype(), E => E::build(values.dtype(), Shape::new(&[total])?, |out| {
            let (values, default) = (E::view(values)?, &E::view(default)?[0]);
            out.iter_mut().for_each(|o| o.clone_from(default));
            for (value, &target) in values.iter().zip(targets) {
                out[target as usize].clone_from(value);
            }
            Ok(())
        }))?;
        let mut indices = vec![0i64; total * rank];
        for (row, mark) in empty.values::<graph::Bool8>()?.iter().enumerate() {
            if mark.get() {
                indices[starts[row] as usize * rank] = row as i64;
            }
        }
        for (i, &target) in targets.iter().enumerate() {
            let at = target as usize * rank;
            indices[at..at + rank].copy_from_slice(&flat[i * rank..(i + 1) * rank]);
        }
        Ok(Filled { indices, values: out_values, empty, reverse })
    }

    /// Sets the outputs 0 to 3.
    fn output(self, ctx: &mut KernelContext<'_>, indices: Tensor) {
        ctx.set_output(0, indices);
        ctx.set_output(1, self.values);
        ctx.set_output(2, self.empty);
        ctx.set_output(3, self.reverse);
    }
}

/// SparseFillEmptyRows: outputs the sparse tensor with a default value in each empty row, a mark for each row that
/// was empty, and the output index of each input value.
pub(super) fn fill(ctx: &mut KernelContext<'_>) -> Result<()> {
    let sizes = Sizes::of(ctx)?;
    let filled = Filled::new(ctx.input(0)?.values::<i64>()?, ctx.input(1)?, ctx.input(3)?, &sizes)?;
    let indices = matrix(&filled.indices, sizes.rank, filled.values.num_elements())?;
    filled.output(ctx, indices);
    Ok(())
}

/// RaggedFillEmptyRows: does the same as [`fill`] for a vector of values and the row number of each value.
pub(crate) fn fill_ragged(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (ids, values, rows, default) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    if ids.shape().rank() != 1 {
        invalid!("value_rowids must be a vector, saw: {}", ids.shape());
    }
    if values.shape().rank() != 1 {
        invalid!("values must be a vector, saw: {}", values.shape());
    }
    let count = ids.num_elements();
    if values.num_elements() != count {
        invalid!(
            "The length of `values` ({}) must match the first dimension of `value_rowids` ({count}).",
            values.num_elements()
        );
    }
    if rows.shape().rank() != 0 {
        invalid!("nrows must be a scalar, saw: {}", rows.shape());
    }
    if default.shape().rank() != 0 {
        invalid!("default_value must be a scalar, saw: {}", default.shape());
    }
    let Ok(rows) = usize::try_from(rows.item::<i64>()?) else {
        invalid!("Expected shape dimensions to be non-negative, got {}", rows.item::<i64>()?);
    };
    let filled = Filled::new(ids.values::<i64>()?, values, default, &Sizes { rows, count, rank: 1 })?;
    let ids = Tensor::vector(&filled.indices)?;
    filled.output(ctx, ids);
    Ok(())
}

/// SparseFillEmptyRowsGrad and RaggedFillEmptyRowsGrad: outputs the gradient of each input value, and the gradient of
/// the default value, which is the sum of the gradients at all other output values.
pub(crate) fn fill_grad(init: &KernelInit<'_>) -> Result<Kernel> {
    let sum = dispatch!(number, init.input_type(1), T => Ok(sum_of_unused::<T> as SumOfUnused))?;
    Kernel::sync(move |ctx| {
        let (map, grad) = (ctx.input(0)?, ctx.input(1)?);
        if map.shape().rank() != 1 {
            invalid!("reverse_index_map must be a vector, saw: {}", map.shape());
        }
        if grad.shape().rank() != 1 {
            invalid!("grad_values must be a vector, saw: {}", grad.shape());
        }
        let (map, count) = (map.values::<i64>()?, grad.num_elements());
        let mut used = vec![false; count];
        let mut out = Tensor::zeros(grad.dtype(), Shape::new(&[map.len()])?)?;
        let mut sources = Vec::with_capacity(map.len());
        for (i, &at) in map.iter().enumerate() {
            let Some(at) = usize::try_from(at).ok().filter(|&at| at < count) else {
                invalid!("Elements in reverse index must be in [0, {count}) but got {at} at {i}");
            };
            sources.push(at);
            used[at] = true;
        }
        copied!(grad.dtype(), E => E::edit(&mut out, |out| {
            let values = E::view(grad)?;
            out.iter_mut().zip(&sources).for_each(|(o, &at)| o.clone_from(&values[at]));
            Ok(())
        }))?;
        let rest = sum(grad, &used)?;
        ctx.set_output(0, out);
        ctx.set_output(1, rest);
        Ok(())
    })
}

type SumOfUnused = fn(&Tensor, &[bool]) -> Result<Tensor>;

/// Returns the sum of the values that are not marked in `used`.
fn sum_of_unused<T: Semiring>(values: &Tensor, used: &[bool]) -> Result<Tensor> {
    let unused = values.values::<T>()?.iter().zip(used).filter(|(_, used)| !**used);
    Ok(Tensor::scalar(unused.fold(T::ZERO, |sum, (&v, _)| sum.plus(v))))
}
