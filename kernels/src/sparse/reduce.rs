//! Reductions of sparse tensors along axes, and softmax along the last axis.

use super::coo::{Coo, matrix};
use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::{Arithmetic, Semiring as _};
use crate::numeric::widen::{Float, Lane};
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::shape::resolve_axis;
use graph::{Shape, Tensor};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Operation {
    Sum,
    Max,
}

/// Makes the kernel of a reduction; its result is sparse if `sparse` is set.
pub(super) fn reduce(init: &KernelInit<'_>, operation: Operation, sparse: bool) -> Result<Kernel> {
    let keep_dims = init.attr::<bool>("keep_dims")?;
    match operation {
        Operation::Sum => dispatch!(number, init.input_type(1), T => Kernel::sync(move |ctx| {
            reduce_with::<T>(ctx, keep_dims, sparse, T::plus)
        })),
        Operation::Max => dispatch!(real, init.input_type(1), T => Kernel::sync(move |ctx| {
            // Like in TensorFlow, a NaN is retained only if it comes last.
            reduce_with::<T>(ctx, keep_dims, sparse, |a, b| if b < a { a } else { b })
        })),
    }
}

fn reduce_with<T: Arithmetic>(
    ctx: &mut KernelContext<'_>,
    keep_dims: bool,
    sparse: bool,
    combine: impl Fn(T, T) -> T,
) -> Result<()> {
    let (coo, axes) = (Coo::of(ctx, 0)?, ctx.input(3)?);
    let rank = coo.rank();
    if axes.shape().rank() > 1 {
        invalid!("Expected reduction_axes to be a scalar or a vector; got shape: {}", axes.shape());
    }
    let mut reduced = vec![false; rank];
    for axis in axes.to_i64s()? {
        match resolve_axis(axis, rank) {
            Some(at) => reduced[at] = true,
            None => invalid!("Invalid reduction dimension {axis}, for input with {rank} dimensions."),
        }
    }
    let kept: Vec<usize> = (0..rank).filter(|&d| !reduced[d]).collect();
    let shape: Vec<i64> = match keep_dims {
        true => (0..rank).map(|d| if reduced[d] { 1 } else { coo.shape[d] }).collect(),
        false => kept.iter().map(|&d| coo.shape[d]).collect(),
    };
    // Values of one output position are adjacent, in the order of the reduced axes.
    let mut by: Vec<usize> = kept.clone();
    by.extend((0..rank).filter(|&d| reduced[d]));
    let order = coo.order_by(&by);
    let values = coo.values.values::<T>()?;
    let same = |a: &usize, b: &usize| kept.iter().all(|&d| coo.index(*a)[d] == coo.index(*b)[d]);
    let mut groups: Vec<(usize, T)> = Vec::new();
    for members in order.chunk_by(same) {
        let folded = members[1..].iter().fold(values[members[0]], |sum, &i| combine(sum, values[i]));
        groups.push((members[0], folded));
    }
    if sparse {
        let mut rows = Vec::with_capacity(groups.len() * shape.len());
        for &(first, _) in &groups {
            let index = coo.index(first);
            match keep_dims {
                true => rows.extend((0..rank).map(|d| if reduced[d] { 0 } else { index[d] })),
                false => rows.extend(kept.iter().map(|&d| index[d])),
            }
        }
        let indices = matrix(&rows, shape.len(), groups.len())?;
        let values = Tensor::vector(&groups.iter().map(|&(_, v)| v).collect::<Vec<_>>())?;
        ctx.set_output(0, indices);
        ctx.set_output(1, values);
        ctx.set_output(2, Tensor::vector(&shape)?);
        return Ok(());
    }
    let mut out = Tensor::zeros(T::DTYPE, Shape::from_i64(&shape)?)?;
    let places = out.values_mut::<T>()?;
    for (first, value) in groups {
        let index = coo.index(first);
        let at = kept.iter().fold(0i64, |at, &d| at.wrapping_mul(coo.shape[d]).wrapping_add(index[d]));
        let len = places.len();
        let Some(place) = usize::try_from(at).ok().and_then(|at| places.get_mut(at)) else {
            return Err(Error::internal(format!(
                "Obtained a write index of {at} which is outside of bounds of [0, {len})"
            )));
        };
        *place = value;
    }
    ctx.set_output(0, out);
    Ok(())
}

pub(super) fn softmax(init: &KernelInit<'_>) -> Result<Kernel> {
    dispatch!(float, init.output_type(0), T => Kernel::sync(softmax_of::<T>))
}

/// Computes the softmax over the values in each row of the last axis; missing values take no part.
fn softmax_of<T: Float>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let coo = Coo::of(ctx, 0)?;
    let rank = coo.rank();
    if rank < 2 {
        invalid!("shape should be of rank 2 or more, got {rank}");
    }
    // Indices may lie outside the shape, because they only determine which values share a row.
    let order = coo.order_by(&(0..rank).collect::<Vec<_>>());
    let values = coo.values.values::<T>()?;
    let mut out = ctx.allocate(T::DTYPE, coo.values.shape().clone())?;
    let results = out.values_mut::<T>()?;
    let same = |a: &usize, b: &usize| coo.index(*a)[..rank - 1] == coo.index(*b)[..rank - 1];
    // Like in TensorFlow, the input is taken to be sorted: results are stored in sorted order.
    let mut next = 0;
    for members in order.chunk_by(same) {
        let row: Vec<T::Wide> = members.iter().map(|&i| values[i].to_wide()).collect();
        let most = row.iter().copied().fold(row[0], |a, b| if b > a { b } else { a });
        let powers: Vec<T::Wide> = row.iter().map(|&v| num_traits::Float::exp(v.minus(most))).collect();
        let sum = powers.iter().copied().fold(T::Wide::ZERO, |a, b| a.plus(b));
        for power in powers {
            results[next] = <T as Lane>::of_wide(power.over(sum));
            next += 1;
        }
    }
    ctx.set_output(0, out);
    Ok(())
}
