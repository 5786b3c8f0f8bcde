//! Reductions of sparse tensors along axes, and softmax along the last axis.

use super::coo::{Coo, matrix};
use crate::numeric::copied::{CopiedElement, copied};
use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::{Arithmetic as _, Semiring as _, Stored};
use crate::numeric::widen::{Float, Lane};
use crate::reduce::Modular;
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
    let dtype = init.input_type(1);
    let fold = match operation {
        Operation::Sum => dispatch!(number, dtype, T => Ok(sums::<T> as FoldGroups))?,
        Operation::Max => dispatch!(real, dtype, T => Ok(maxima::<T> as FoldGroups))?,
    };
    Kernel::sync(move |ctx| reduce_with(ctx, keep_dims, sparse, fold))
}

/// A function that combines the values of each group; a group is a list of the positions of its values.
type FoldGroups = fn(&Tensor, &[&[usize]]) -> Result<Tensor>;

fn sums<T: Modular>(values: &Tensor, groups: &[&[usize]]) -> Result<Tensor> {
    let mut out = Tensor::unspecified(T::DTYPE, Shape::new(&[groups.len()])?)?;
    let (values, sums) = (values.values::<T>()?, out.values_mut::<T>()?);
    fold(bytemuck::cast_slice(values), groups, bytemuck::cast_slice_mut(sums), T::Bits::plus);
    Ok(out)
}

fn maxima<T: Stored>(values: &Tensor, groups: &[&[usize]]) -> Result<Tensor> {
    let mut out = Tensor::unspecified(T::DTYPE, Shape::new(&[groups.len()])?)?;
    let (values, most) = (values.values::<T>()?, out.values_mut::<T>()?);
    // Like in TensorFlow, the result is NaN only if the last value is NaN.
    fold(values, groups, most, |a, b| if b < a { a } else { b });
    Ok(out)
}

fn fold<T: Copy>(values: &[T], groups: &[&[usize]], out: &mut [T], combine: impl Fn(T, T) -> T) {
    for (o, members) in out.iter_mut().zip(groups) {
        *o = members[1..].iter().fold(values[members[0]], |sum, &i| combine(sum, values[i]));
    }
}

fn reduce_with(ctx: &mut KernelContext<'_>, keep_dims: bool, sparse: bool, fold: FoldGroups) -> Result<()> {
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
    // Sorting makes all values of one output position adjacent, and orders them by the reduced axes.
    let mut by: Vec<usize> = kept.clone();
    by.extend((0..rank).filter(|&d| reduced[d]));
    let order = coo.order_by(&by);
    let same = |a: &usize, b: &usize| kept.iter().all(|&d| coo.index(*a)[d] == coo.index(*b)[d]);
    let groups: Vec<&[usize]> = order.chunk_by(same).collect();
    let values = fold(coo.values, &groups)?;
    if sparse {
        let mut rows = Vec::with_capacity(groups.len() * shape.len());
        for members in &groups {
            let index = coo.index(members[0]);
            match keep_dims {
                true => rows.extend((0..rank).map(|d| if reduced[d] { 0 } else { index[d] })),
                false => rows.extend(kept.iter().map(|&d| index[d])),
            }
        }
        let indices = matrix(&rows, shape.len(), groups.len())?;
        ctx.set_output(0, indices);
        ctx.set_output(1, values);
        ctx.set_output(2, Tensor::vector(&shape)?);
        return Ok(());
    }
    let mut out = Tensor::zeros(values.dtype(), Shape::from_i64(&shape)?)?;
    let len = out.num_elements();
    let mut places = Vec::with_capacity(groups.len());
    for members in &groups {
        let index = coo.index(members[0]);
        let at = kept.iter().fold(0i64, |at, &d| at.wrapping_mul(coo.shape[d]).wrapping_add(index[d]));
        match usize::try_from(at) {
            Ok(place) if place < len => places.push(place),
            _ => {
                return Err(Error::internal(format!(
                    "Obtained a write index of {at} which is outside of bounds of [0, {len})"
                )));
            }
        }
    }
    copied!(values.dtype(), E => E::edit(&mut out, |out| {
        let values = E::view(&values)?;
        places.iter().zip(values).for_each(|(&place, value)| out[place].clone_from(value));
        Ok(())
    }))?;
    ctx.set_output(0, out);
    Ok(())
}

pub(super) fn softmax(init: &KernelInit<'_>) -> Result<Kernel> {
    let softmax = dispatch!(float, init.output_type(0), T => Ok(softmax_of_groups::<T> as Softmax))?;
    Kernel::sync(move |ctx| {
        let coo = Coo::of(ctx, 0)?;
        let rank = coo.rank();
        if rank < 2 {
            invalid!("shape should be of rank 2 or more, got {rank}");
        }
        // Indices may lie outside the shape, because they only determine which values share a row.
        let order = coo.order_by(&(0..rank).collect::<Vec<_>>());
        let mut out = ctx.allocate(coo.values.dtype(), coo.values.shape().clone())?;
        let same = |a: &usize, b: &usize| coo.index(*a)[..rank - 1] == coo.index(*b)[..rank - 1];
        let groups: Vec<&[usize]> = order.chunk_by(same).collect();
        softmax(&mut out, coo.values, &groups)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

type Softmax = fn(&mut Tensor, &Tensor, &[&[usize]]) -> Result<()>;

/// Computes the softmax over the values of each row of the last axis; missing values take no part.
fn softmax_of_groups<T: Float>(out: &mut Tensor, values: &Tensor, groups: &[&[usize]]) -> Result<()> {
    let (values, results) = (values.values::<T>()?, out.values_mut::<T>()?);
    // Like in TensorFlow, results are stored in sorted order, as if the input were sorted.
    let mut next = 0;
    for members in groups {
        let row: Vec<T::Wide> = members.iter().map(|&i| values[i].to_wide()).collect();
        let most = row.iter().copied().fold(row[0], |a, b| if b > a { b } else { a });
        let powers: Vec<T::Wide> = row.iter().map(|&v| num_traits::Float::exp(v.minus(most))).collect();
        let sum = powers.iter().copied().fold(T::Wide::ZERO, |a, b| a.plus(b));
        for power in powers {
            results[next] = <T as Lane>::of_wide(power.over(sum));
            next += 1;
        }
    }
    Ok(())
}
