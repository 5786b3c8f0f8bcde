//! Rows without values get a default one.

use super::super::dispatch::dispatch;
use super::super::moved::{Moved, moved};
use super::super::scalar::Semiring as _;
use super::coo::matrix;
use crate::error::Result;
use crate::invalid;
use crate::kernel::{Kernel, KernelContext, KernelInit};
use graph::{Element, Shape, Tensor};

pub(super) fn fill(ctx: &mut KernelContext<'_>) -> Result<()> {
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
    let flat = indices.values::<i64>()?;
    // The marks are a tensor: its memory is checked before it is taken.
    let mut empty = Tensor::full(graph::Bool8::TRUE, Shape::new(&[rows])?)?;
    let marks = empty.values_mut::<graph::Bool8>()?;
    let mut sizes = Tensor::zeros(graph::DType::Int64, Shape::new(&[rows])?)?;
    let starts = sizes.values_mut::<i64>()?;
    for i in 0..count {
        let row = flat[i * rank];
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
    let total = total as usize;
    // Where each output comes from, and where each input goes.
    let mut reverse = Tensor::zeros(graph::DType::Int64, Shape::new(&[count])?)?;
    let targets = reverse.values_mut::<i64>()?;
    for (i, target) in targets.iter_mut().enumerate() {
        let row = flat[i * rank] as usize;
        *target = starts[row];
        starts[row] += 1;
    }
    let (targets, starts) = (&*targets, &*starts);
    let out_values = moved!(values.dtype(), E => E::build(values.dtype(), Shape::new(&[total])?, |out| {
        let (values, default) = (E::view(values)?, &E::view(default)?[0]);
        out.iter_mut().for_each(|o| o.clone_from(default));
        for (value, &target) in values.iter().zip(targets) {
            out[target as usize].clone_from(value);
        }
        Ok(())
    }))?;
    let mut out_rows = vec![0i64; total * rank];
    for (row, mark) in marks.iter().enumerate() {
        if mark.get() {
            out_rows[starts[row] as usize * rank] = row as i64;
        }
    }
    for (i, &target) in targets.iter().enumerate() {
        let at = target as usize * rank;
        out_rows[at..at + rank].copy_from_slice(&flat[i * rank..(i + 1) * rank]);
    }
    let out_indices = matrix(&out_rows, rank, total)?;
    ctx.set_output(0, out_indices);
    ctx.set_output(1, out_values);
    ctx.set_output(2, empty);
    ctx.set_output(3, reverse);
    Ok(())
}

pub(super) fn fill_grad(init: &KernelInit<'_>) -> Result<Kernel> {
    dispatch!(number, init.input_type(1), T => Kernel::sync(|ctx| {
        let (map, grad) = (ctx.input(0)?, ctx.input(1)?);
        if map.shape().rank() != 1 {
            invalid!("reverse_index_map must be a vector, saw: {}", map.shape());
        }
        if grad.shape().rank() != 1 {
            invalid!("grad_values must be a vector, saw: {}", grad.shape());
        }
        let (map, values) = (map.values::<i64>()?, grad.values::<T>()?);
        let mut used = vec![false; values.len()];
        let mut out = Tensor::zeros(T::DTYPE, Shape::new(&[map.len()])?)?;
        for (i, (o, &at)) in out.values_mut::<T>()?.iter_mut().zip(map).enumerate() {
            let Some(at) = usize::try_from(at).ok().filter(|&at| at < values.len()) else {
                invalid!("Elements in reverse index must be in [0, {}) but got {at} at {i}", values.len());
            };
            *o = values[at];
            used[at] = true;
        }
        let rest = values.iter().zip(&used).filter(|(_, used)| !**used).fold(T::ZERO, |sum, (&v, _)| sum.plus(v));
        ctx.set_output(0, out);
        ctx.set_output(1, Tensor::scalar(rest));
        Ok(())
    }))
}
