//! DynamicPartition, DynamicStitch and Where.

use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::{ANY, dispatch};
use crate::numeric::scalar::Semiring;
use crate::plan::partition::{RowPartitions, StitchPlan, row_partitions, rows_shape, stitch_plan};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::{DType, Shape};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of(
        "DynamicPartition",
        &[("T", COPIED)],
        |init| copied!(init.input_type(0), E => Kernel::sync(partition::<E>)),
    ),
    KernelDef::of(
        "DynamicStitch",
        &[("T", COPIED)],
        |init| copied!(init.output_type(0), E => Kernel::sync(stitch::<E>)),
    ),
    KernelDef::of(
        "ParallelDynamicStitch",
        &[("T", COPIED)],
        |init| copied!(init.output_type(0), E => Kernel::sync(stitch::<E>)),
    ),
    KernelDef::of(
        "Where",
        &[("T", ANY)],
        |init| dispatch!(any, init.input_type(0), T => Kernel::sync(where_true::<T>)),
    ),
];

fn partition<E: CopiedElement>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let RowPartitions { members, inner } = row_partitions(ctx)?;
    let row: usize = inner.iter().product();
    let data = ctx.take_input(0)?;
    for (n, rows) in members.iter().enumerate() {
        let out = E::build(data.dtype(), rows_shape(rows.len(), &inner)?, |out| {
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

fn stitch<E: CopiedElement>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (count, StitchPlan { shape, row, rows }) = (ctx.num_inputs() / 2, stitch_plan(ctx)?);
    let dtype = ctx.input(count)?.dtype();
    let sources = (count..2 * count).map(|i| E::view(ctx.input(i)?)).collect::<Result<Vec<_>>>()?;
    let out = E::build(dtype, shape, |out| {
        for (out, from) in out.chunks_exact_mut(row.max(1)).zip(&rows) {
            match *from {
                Some((i, n)) => out.clone_from_slice(&sources[i][n * row..(n + 1) * row]),
                None => out.fill(E::zero()),
            }
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the coordinates of the elements that are not zero, which includes NaN.
fn where_true<T: Semiring>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let input = ctx.input(0)?;
    let values = input.values::<T>()?;
    let count = values.iter().filter(|&&v| v != T::ZERO).count();
    let rank = input.shape().rank();
    if !(1..=8).contains(&rank) {
        device::invalid!("WhereOp : Unhandled input dimensions: {rank}");
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
