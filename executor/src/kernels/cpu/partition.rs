//! Parting rows by number, putting them back, and finding where something holds.

use super::dispatch::{ANY, dispatch};
use super::gather::position;
use super::moved::{MOVED, Moved, moved};
use super::scalar::Semiring;
use crate::error::{Error, Result};
use crate::invalid;
use crate::kernel::{Kernel, KernelContext, KernelDef};
use graph::{DType, Shape};
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of(
        "DynamicPartition",
        &[("T", MOVED)],
        |init| moved!(init.input_type(0), E => Kernel::sync(partition::<E>)),
    ),
    KernelDef::of(
        "DynamicStitch",
        &[("T", MOVED)],
        |init| moved!(init.output_type(0), E => Kernel::sync(stitch::<E>)),
    ),
    KernelDef::of(
        "ParallelDynamicStitch",
        &[("T", MOVED)],
        |init| moved!(init.output_type(0), E => Kernel::sync(stitch::<E>)),
    ),
    KernelDef::of(
        "Where",
        &[("T", ANY)],
        |init| dispatch!(any, init.input_type(0), T => Kernel::sync(where_true::<T>)),
    ),
];

fn partition<E: Moved>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (data, partitions) = (ctx.input(0)?, ctx.input(1)?);
    let (rank, num) = (partitions.shape().rank(), ctx.num_outputs());
    if data.shape().get(..rank) != Some(partitions.shape().dims()) {
        invalid!(
            "data.shape must start with partitions.shape, got data.shape = {}, partitions.shape = {}",
            data.shape(),
            partitions.shape()
        );
    }
    let inner = &data.shape()[rank..];
    let row: usize = inner.iter().product();
    let mut members: Vec<Vec<usize>> = vec![Vec::new(); num];
    for (i, &part) in partitions.values::<i32>()?.iter().enumerate() {
        match usize::try_from(part).ok().and_then(|p| members.get_mut(p)) {
            Some(rows) => rows.push(i),
            None => {
                let at = position("partitions", partitions.shape(), i);
                invalid!("{at} = {part} is not in [0, {num})")
            }
        }
    }
    let dtype = data.dtype();
    let data = ctx.take_input(0)?;
    let inner: SmallVec<[usize; 6]> = data.shape()[rank..].into();
    for (n, rows) in members.iter().enumerate() {
        let mut dims: SmallVec<[usize; 6]> = SmallVec::from_slice(&[rows.len()]);
        dims.extend_from_slice(&inner);
        let out = E::build(dtype, Shape::new(&dims)?, |out| {
            let values = E::view(&data)?;
            if row > 0 {
                for (o, &i) in out.chunks_exact_mut(row).zip(rows) {
                    o.clone_from_slice(&values[i * row..(i + 1) * row]);
                }
            }
            Ok(())
        })?;
        ctx.set_output(n, out);
    }
    Ok(())
}

fn stitch<E: Moved>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let count = ctx.num_inputs() / 2;
    let (first_indices, first) = (ctx.input(0)?.shape(), ctx.input(count)?.shape());
    let Some(inner) = first.get(first_indices.rank()..) else {
        invalid!("data[0].shape = {first} does not start with indices[0].shape = {first_indices}");
    };
    let mut most = -1i32;
    for i in 0..count {
        let (indices, data) = (ctx.input(i)?, ctx.input(count + i)?.shape());
        let rank = indices.shape().rank();
        if data.get(..rank) != Some(indices.shape().dims()) {
            invalid!("data[{i}].shape = {data} does not start with indices[{i}].shape = {}", indices.shape());
        }
        if data[rank..] != *inner {
            invalid!(
                "Need data[0].shape[{}:] = data[{i}].shape[{rank}:], got data[0].shape = {first}, data[{i}].shape = {data}, indices[0].shape = {first_indices}, indices[{i}].shape = {}",
                first_indices.rank(),
                indices.shape()
            );
        }
        most = indices.values::<i32>()?.iter().copied().fold(most, i32::max);
    }
    if most == i32::MAX {
        invalid!("Expected a non-negative size, got {}", most.wrapping_add(1));
    }
    let rows = (most + 1) as usize;
    let mut dims: SmallVec<[usize; 6]> = SmallVec::from_slice(&[rows]);
    dims.extend_from_slice(inner);
    let shape = Shape::new(&dims)?;
    let row: usize = inner.iter().product();
    let dtype = ctx.input(count)?.dtype();
    let out = E::build(dtype, shape, |out| {
        // Rows that nothing is stitched into are zero.
        let mut written = vec![false; if row == 0 { 0 } else { rows }];
        for i in 0..count {
            let (indices, values) = (ctx.input(i)?.values::<i32>()?, E::view(ctx.input(count + i)?)?);
            for (n, &index) in indices.iter().enumerate() {
                let at = usize::try_from(index)
                    .map_err(|_| Error::invalid(format!("indices[{n}] is out of range")))?;
                if row > 0 {
                    written[at] = true;
                    out[at * row..(at + 1) * row].clone_from_slice(&values[n * row..(n + 1) * row]);
                }
            }
        }
        for (at, _) in written.iter().enumerate().filter(|(_, w)| !**w) {
            out[at * row..(at + 1) * row].fill(E::zero());
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

/// NaN is not zero, and so is found.
fn where_true<T: Semiring>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let input = ctx.input(0)?;
    let values = input.values::<T>()?;
    let count = values.iter().filter(|&&v| v != T::ZERO).count();
    let rank = input.shape().rank();
    if !(1..=8).contains(&rank) {
        crate::invalid!("WhereOp : Unhandled input dimensions: {rank}");
    }
    let mut out = ctx.allocate(DType::Int64, Shape::new(&[count, rank])?)?;
    let strides = input.shape().strides();
    let found = values.iter().enumerate().filter(|&(_, &v)| v != T::ZERO);
    if rank == 1 {
        for (o, (i, _)) in out.values_mut::<i64>()?.iter_mut().zip(found) {
            *o = i as i64;
        }
    } else {
        for (o, (mut i, _)) in out.values_mut::<i64>()?.chunks_exact_mut(rank).zip(found) {
            for (o, &stride) in o.iter_mut().zip(&strides) {
                *o = (i / stride) as i64;
                i %= stride;
            }
        }
    }
    ctx.set_output(0, out);
    Ok(())
}
