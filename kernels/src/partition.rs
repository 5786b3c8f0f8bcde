//! DynamicPartition, DynamicStitch and Where.

use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::ANY;
use crate::plan::partition::{RowPartitions, StitchPlan, row_partitions, rows_shape, stitch_plan};
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result};
use graph::DType::{self, *};
use graph::{Shape, Tensor};
use std::ops::BitAnd;

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
    KernelDef::of("Where", &[("T", ANY)], |_| Kernel::sync(where_true)),
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

/// Outputs the coordinates of the elements that are not zero, which includes NaN.
fn where_true(ctx: &mut KernelContext<'_>) -> Result<()> {
    let input = ctx.input(0)?;
    let rank = input.shape().rank();
    if !(1..=8).contains(&rank) {
        device::invalid!("WhereOp : Unhandled input dimensions: {rank}");
    }
    // Elements are compared with zero by their bits, without the sign bits of floats.
    let shape = input.shape();
    let out = match input.dtype() {
        Half | BFloat16 => coordinates(u16::view(input)?, !(1 << 15), shape),
        Float => coordinates(u32::view(input)?, !(1 << 31), shape),
        Double => coordinates(u64::view(input)?, !(1 << 63), shape),
        Complex64 => coordinates(u64::view(input)?, !(1 << 63 | 1 << 31), shape),
        Complex128 => coordinates(u128::view(input)?, !(1 << 127 | 1 << 63), shape),
        Bool | Int8 | UInt8 => coordinates(u8::view(input)?, !0, shape),
        Int16 | UInt16 => coordinates(u16::view(input)?, !0, shape),
        Int32 | UInt32 => coordinates(u32::view(input)?, !0, shape),
        Int64 | UInt64 => coordinates(u64::view(input)?, !0, shape),
        other => Err(Error::unimplemented(format!("no CPU kernel for elements of type {other}"))),
    }?;
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the coordinates of the elements in which at least one bit of `mask` is set.
fn coordinates<E>(values: &[E], mask: E, shape: &Shape) -> Result<Tensor>
where
    E: Copy + Default + PartialEq + BitAnd<Output = E>,
{
    let is_found = |&v: &E| v & mask != E::default();
    let (count, rank) = (values.iter().filter(|v| is_found(v)).count(), shape.rank());
    let mut out = Tensor::unspecified(DType::Int64, Shape::new(&[count, rank])?)?;
    let strides = shape.strides();
    let found = values.iter().enumerate().filter(|(_, v)| is_found(v));
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
    Ok(out)
}
