//! Padding with zeros, with a given value, or by mirroring.

use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::{INDEX, NUMBERS, dispatch};
use crate::numeric::scalar::Semiring;
use crate::numeric::strided::{Layout, copy};
use crate::plan::pad::{MOST_AXES, MOST_MIRRORED, check_mirrored, mirror_offset, padded, paddings, unpadded};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::{Shape, Tensor};
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of(
        "Pad",
        &[("T", COPIED), ("Tpaddings", INDEX)],
        |init| copied!(init.input_type(0), E => Kernel::sync(pad::<E>)),
    ),
    KernelDef::of(
        "PadV2",
        &[("T", COPIED), ("Tpaddings", INDEX)],
        |init| copied!(init.input_type(0), E => Kernel::sync(pad::<E>)),
    ),
    KernelDef::of("MirrorPad", &[("T", COPIED), ("Tpaddings", INDEX)], |init| {
        let offset = mirror_offset(init)?;
        copied!(init.input_type(0), E => Kernel::sync(move |ctx| mirror::<E>(ctx, offset)))
    }),
    KernelDef::of("MirrorPadGrad", &[("T", NUMBERS), ("Tpaddings", INDEX)], |init| {
        let offset = mirror_offset(init)?;
        dispatch!(number, init.input_type(0), T => Kernel::sync(move |ctx| mirror_back::<T>(ctx, offset)))
    }),
];

fn pad<E: CopiedElement>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let paddings = paddings(ctx, MOST_AXES)?;
    let value =
        if ctx.num_inputs() > 2 { E::view(ctx.scalar(2, "constant_values")?)?[0].clone() } else { E::zero() };
    let input = ctx.input(0)?;
    let shape = padded(input.shape(), &paddings)?;
    let out = if shape == *input.shape() {
        ctx.take_input(0)?
    } else {
        let mut to = Layout::packed(&shape);
        to.offset = paddings.iter().zip(&to.strides).map(|(&(before, _), s)| before as isize * s).sum();
        E::build(input.dtype(), shape, |out| {
            out.fill(value);
            copy(input.shape(), E::view(input)?, &Layout::packed(input.shape()), out, &to)
        })?
    };
    ctx.set_output(0, out);
    Ok(())
}

/// Returns, for each axis, the index into the inner shape for each index of the padded shape.
fn mirrored(inner: &Shape, paddings: &[(usize, usize)], offset: usize) -> Result<Vec<Vec<usize>>> {
    check_mirrored(inner, paddings, offset)?;
    let mut maps = Vec::with_capacity(inner.rank());
    for (&size, &(before, after)) in inner.iter().zip(paddings) {
        let left = (0..before).rev().map(|i| i + offset);
        let right = (0..after).map(|i| size - 1 - offset - i);
        maps.push(left.chain(0..size).chain(right).collect());
    }
    Ok(maps)
}

/// Calls `row` with the offset of a row of the inner tensor for each row of the padded one, in order.
fn rows(inner: &Shape, maps: &[Vec<usize>], mut row: impl FnMut(usize)) {
    let Some(outer) = maps.len().checked_sub(1) else { return row(0) };
    if maps.iter().any(Vec::is_empty) {
        return;
    }
    let strides = inner.strides();
    let mut at: SmallVec<[usize; 6]> = SmallVec::from_elem(0, outer);
    loop {
        row((0..outer).map(|i| maps[i][at[i]] * strides[i]).sum());
        let mut axis = outer;
        loop {
            if axis == 0 {
                return;
            }
            axis -= 1;
            at[axis] += 1;
            if at[axis] < maps[axis].len() {
                break;
            }
            at[axis] = 0;
        }
    }
}

fn mirror<E: CopiedElement>(ctx: &mut KernelContext<'_>, offset: usize) -> Result<()> {
    let paddings = paddings(ctx, MOST_MIRRORED)?;
    let input = ctx.input(0)?;
    let inner = input.shape();
    let shape = padded(inner, &paddings)?;
    if shape == *inner {
        let out = ctx.take_input(0)?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let maps = mirrored(inner, &paddings, offset)?;
    let (size, last) = (inner.last().copied().unwrap_or(1), maps.last().map_or(&[][..], Vec::as_slice));
    let before = paddings.last().map_or(0, |p| p.0);
    let out = E::build(input.dtype(), shape, |out| {
        let values = E::view(input)?;
        let mut target = out.chunks_exact_mut(last.len().max(1));
        rows(inner, &maps, |start| {
            let (Some(to), from) = (target.next(), &values[start..start + size]) else { return };
            for (o, &i) in to[..before].iter_mut().zip(&last[..before]) {
                o.clone_from(&from[i]);
            }
            to[before..before + size].clone_from_slice(from);
            for (o, &i) in to[before + size..].iter_mut().zip(&last[before + size..]) {
                o.clone_from(&from[i]);
            }
        });
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

fn mirror_back<T: Semiring>(ctx: &mut KernelContext<'_>, offset: usize) -> Result<()> {
    let paddings = paddings(ctx, MOST_MIRRORED)?;
    let input = ctx.input(0)?;
    let inner = unpadded(input.shape(), &paddings)?;
    let maps = mirrored(&inner, &paddings, offset)?;
    let mut out = Tensor::zeros(T::DTYPE, inner.clone())?;
    let (sums, values) = (out.values_mut::<T>()?, input.values::<T>()?);
    match maps.last() {
        None => sums.copy_from_slice(values),
        Some(last) => {
            let mut source = values.chunks_exact(last.len().max(1));
            rows(&inner, &maps, |start| {
                for (&i, &v) in last.iter().zip(source.next().unwrap_or_default()) {
                    sums[start + i] = sums[start + i].plus(v);
                }
            });
        }
    }
    ctx.set_output(0, out);
    Ok(())
}
