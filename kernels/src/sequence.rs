//! Reversing and shifting along axes, conversion of flat indices to coordinates, and cross products.

use super::reduce::Modular;
use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::{INDEX, REALS, dispatch};
use crate::numeric::scalar::Arithmetic;
use crate::plan::sequence::{check_cross, sequences, shifts};
use bytemuck::{cast_slice, cast_slice_mut};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::{DType, Shape, Tensor};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("ReverseSequence", &[("T", COPIED), ("Tlen", INDEX)], reverse_sequence),
    KernelDef::of("Roll", &[("T", COPIED), ("Tshift", INDEX), ("Taxis", INDEX)], |_| Kernel::sync(roll)),
    KernelDef::of("UnravelIndex", &[("Tidx", INDEX)], |_| Kernel::sync(unravel)),
    KernelDef::of("Cross", &[("T", REALS)], |init| {
        let cross = dispatch!(real, init.output_type(0), T => Ok(cross::<T> as Cross))?;
        Kernel::sync(move |ctx| {
            check_cross(ctx)?;
            let (a, b) = (ctx.input(0)?, ctx.input(1)?);
            let mut out = ctx.allocate(a.dtype(), a.shape().clone())?;
            cross(&mut out, a, b)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
];

fn reverse_sequence(init: &KernelInit<'_>) -> Result<Kernel> {
    let (batch, sequence): (i64, i64) = (init.attr("batch_dim")?, init.attr("seq_dim")?);
    Kernel::sync(move |ctx| reverse(ctx, batch, sequence))
}

/// Reverses the first elements of each sequence, up to the sequence's length.
fn reverse(ctx: &mut KernelContext<'_>, batch: i64, sequence: i64) -> Result<()> {
    let (input, lengths) = (ctx.input(0)?, ctx.input(1)?);
    let (batch, sequence) = sequences(input.shape(), lengths.shape(), batch, sequence)?;
    let shape = input.shape();
    let lengths = lengths.to_i64s()?;
    for (d, &len) in lengths.iter().enumerate() {
        if len < 0 {
            invalid!("seq_lens({d}) < 0");
        }
        if len as usize > shape[sequence] {
            invalid!("seq_lens({d}) > input.dims({sequence})");
        }
    }
    let strides = shape.strides();
    // Elements are copied in runs: the axes inside both the batch and the sequence axis are contiguous.
    let inner = strides[batch.max(sequence)];
    let out = copied!(input.dtype(), E => E::build(input.dtype(), shape.clone(), |out| {
        let values = E::view(input)?;
        for (i, run) in out.chunks_mut(inner.max(1)).enumerate() {
            let at = i * inner;
            let place = at / strides[sequence] % shape[sequence];
            let len = lengths[at / strides[batch] % shape[batch]] as usize;
            let from = if place < len {
                at - place * strides[sequence] + (len - 1 - place) * strides[sequence]
            } else {
                at
            };
            run.clone_from_slice(&values[from..from + run.len()]);
        }
        Ok(())
    }))?;
    ctx.set_output(0, out);
    Ok(())
}

fn roll(ctx: &mut KernelContext<'_>) -> Result<()> {
    let shifts = shifts(ctx)?;
    let input = ctx.input(0)?;
    let shape = input.shape();
    let strides = shape.strides();
    // The axes after the last shifted one are copied as a unit.
    let last = shifts.iter().rposition(|&s| s > 0).unwrap_or(0);
    let inner = strides[last];
    let out = copied!(input.dtype(), E => E::build(input.dtype(), shape.clone(), |out| {
        let values = E::view(input)?;
        for (i, run) in out.chunks_mut(inner.max(1)).enumerate() {
            let at = i * inner;
            let from = (0..=last).fold(0, |from, axis| {
                let place = at / strides[axis] % shape[axis];
                from + (place + shape[axis] - shifts[axis]) % shape[axis] * strides[axis]
            });
            run.clone_from_slice(&values[from..from + run.len()]);
        }
        Ok(())
    }))?;
    ctx.set_output(0, out);
    Ok(())
}

fn unravel(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (indices, dims) = (ctx.input(0)?, ctx.input(1)?);
    if indices.shape().rank() > 1 {
        invalid!("The indices can only be scalar or vector, got \"{}\"", indices.shape());
    }
    if dims.shape().rank() != 1 {
        invalid!("The indices can only be 1-D, got \"{}\"", dims.shape());
    }
    let sizes = dims.to_i64s()?;
    if sizes.contains(&0) {
        invalid!("Input dims cannot contain a dim of zero, but dims contains zero");
    }
    let most = if indices.dtype() == DType::Int64 { i64::MAX } else { i32::MAX.into() };
    let fits = |n: &i64| (1..=most).contains(n);
    let Some(total) = sizes.iter().try_fold(1i64, |n, &d| n.checked_mul(d).filter(fits)) else {
        invalid!("Input dims product is causing integer overflow");
    };
    let numbers = indices.to_i64s()?;
    if numbers.is_empty() {
        invalid!("received empty tensor indices");
    }
    // Negative indices are not refused: they get negative coordinates.
    if numbers.iter().any(|&i| i >= total) {
        invalid!("index is out of bound as with dims");
    }
    let mut out = vec![0i64; sizes.len() * numbers.len()];
    for (column, &number) in numbers.iter().enumerate() {
        let mut rest = number;
        for (row, &size) in sizes.iter().enumerate().rev() {
            out[row * numbers.len() + column] = rest % size;
            rest /= size;
        }
    }
    let shape = match indices.shape().rank() {
        0 => Shape::new(&[sizes.len()])?,
        _ => Shape::new(&[sizes.len(), numbers.len()])?,
    };
    let out = match indices.dtype() {
        DType::Int64 => Tensor::from_slice(&out, shape)?,
        _ => Tensor::from_slice(&out.iter().map(|&i| i as i32).collect::<Vec<_>>(), shape)?,
    };
    ctx.set_output(0, out);
    Ok(())
}

type Cross = fn(&mut Tensor, &Tensor, &Tensor) -> Result<()>;

/// Sets each vector of `out` to the cross product of the vectors at the same position in `a` and `b`.
fn cross<T: Modular>(out: &mut Tensor, a: &Tensor, b: &Tensor) -> Result<()> {
    fn cross_bits<T: Arithmetic>(out: &mut [T], a: &[T], b: &[T]) {
        let pairs = a.chunks_exact(3).zip(b.chunks_exact(3));
        for (o, (u, v)) in out.chunks_exact_mut(3).zip(pairs) {
            for (i, o) in o.iter_mut().enumerate() {
                let (j, k) = ((i + 1) % 3, (i + 2) % 3);
                *o = u[j].times(v[k]).minus(u[k].times(v[j]));
            }
        }
    }
    let (out, a, b) = (out.values_mut::<T>()?, a.values::<T>()?, b.values::<T>()?);
    cross_bits::<T::Bits>(cast_slice_mut(out), cast_slice(a), cast_slice(b));
    Ok(())
}
