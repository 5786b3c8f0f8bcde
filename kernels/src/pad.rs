//! Padding with zeros, with a given value, or by mirroring.

use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::{INDEX, NUMBERS, dispatch};
use crate::numeric::scalar::Semiring;
use crate::numeric::strided::{Layout, copy};
use crate::plan::pad::{MOST_AXES, MOST_MIRRORED, check_mirrored, mirror_offset, padded, paddings, unpadded};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Shape, Tensor};
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Pad", &[("T", COPIED), ("Tpaddings", INDEX)], make_pad),
    KernelDef::of("PadV2", &[("T", COPIED), ("Tpaddings", INDEX)], make_pad),
    KernelDef::of("MirrorPad", &[("T", COPIED), ("Tpaddings", INDEX)], |init| {
        let offset = mirror_offset(init)?;
        let build = copied!(init.input_type(0), E => Ok(extended::<E> as ExtendFn))?;
        Kernel::sync(move |ctx| mirror(ctx, offset, build))
    }),
    KernelDef::of("MirrorPadGrad", &[("T", NUMBERS), ("Tpaddings", INDEX)], |init| {
        let offset = mirror_offset(init)?;
        let add = dispatch!(number, init.input_type(0), T => Ok(add_mirrored::<T> as AddMirroredFn))?;
        Kernel::sync(move |ctx| mirror_back(ctx, offset, add))
    }),
];

/// A function `(tensor, dims, fill, shape, layout)` that returns a tensor of `shape` with the elements of `tensor`,
/// whose sizes are `dims`, at the positions of `layout`, and `fill`, or zeros if it is `None`, elsewhere.
pub(super) type EmbedFn = fn(&Tensor, &[usize], Option<&Tensor>, Shape, &Layout) -> Result<Tensor>;

/// Returns the [`EmbedFn`] of a dtype.
pub(super) fn embed_fn(dtype: DType) -> Result<EmbedFn> {
    copied!(dtype, E => Ok(embedded::<E> as EmbedFn))
}

fn embedded<E: CopiedElement>(
    input: &Tensor,
    dims: &[usize],
    value: Option<&Tensor>,
    shape: Shape,
    to: &Layout,
) -> Result<Tensor> {
    let value = match value {
        Some(value) => E::view(value)?[0].clone(),
        None => E::zero(),
    };
    E::build(input.dtype(), shape, |out| {
        out.fill(value);
        copy(dims, E::view(input)?, &Layout::packed(dims), out, to)
    })
}

fn make_pad(init: &KernelInit<'_>) -> Result<Kernel> {
    let embed = embed_fn(init.input_type(0))?;
    Kernel::sync(move |ctx| pad(ctx, embed))
}

fn pad(ctx: &mut KernelContext<'_>, embed: EmbedFn) -> Result<()> {
    let paddings = paddings(ctx, MOST_AXES)?;
    let value = if ctx.num_inputs() > 2 { Some(ctx.scalar(2, "constant_values")?) } else { None };
    let input = ctx.input(0)?;
    let shape = padded(input.shape(), &paddings)?;
    let out = if shape == *input.shape() {
        ctx.take_input(0)?
    } else {
        let mut to = Layout::packed(&shape);
        to.offset = paddings.iter().zip(&to.strides).map(|(&(before, _), s)| before as isize * s).sum();
        embed(input, input.shape(), value, shape, &to)?
    };
    ctx.set_output(0, out);
    Ok(())
}

/// Returns, for each axis, the index of `inner` that each index of the padded shape takes its element from by
/// mirroring.
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

/// For each row of the padded tensor, in row-major order, calls `row` with the offset of the inner tensor's row that
/// `maps` assigns to it.
fn for_each_row(inner: &Shape, maps: &[Vec<usize>], row: &mut dyn FnMut(usize)) {
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

/// A function that returns a tensor extended by mirroring; see [`extended`].
type ExtendFn = fn(&Tensor, Shape, &[Vec<usize>], usize) -> Result<Tensor>;

fn mirror(ctx: &mut KernelContext<'_>, offset: usize, build: ExtendFn) -> Result<()> {
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
    let before = paddings.last().map_or(0, |p| p.0);
    let out = build(input, shape, &maps, before)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Returns a tensor of `shape` whose elements come from the indices of `input` that `maps` lists for each axis;
/// `before` mirrored elements precede each copied row of the input.
fn extended<E: CopiedElement>(
    input: &Tensor,
    shape: Shape,
    maps: &[Vec<usize>],
    before: usize,
) -> Result<Tensor> {
    let inner = input.shape();
    let (size, last) = (inner.last().copied().unwrap_or(1), maps.last().map_or(&[][..], Vec::as_slice));
    E::build(input.dtype(), shape, |out| {
        let values = E::view(input)?;
        let mut target = out.chunks_exact_mut(last.len().max(1));
        for_each_row(inner, maps, &mut |start| {
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
    })
}

/// A function that adds the elements of a tensor to those that they mirror; see [`add_mirrored`].
type AddMirroredFn = fn(&mut Tensor, &Tensor, &[Vec<usize>]) -> Result<()>;

fn mirror_back(ctx: &mut KernelContext<'_>, offset: usize, add: AddMirroredFn) -> Result<()> {
    let paddings = paddings(ctx, MOST_MIRRORED)?;
    let input = ctx.input(0)?;
    let inner = unpadded(input.shape(), &paddings)?;
    let maps = mirrored(&inner, &paddings, offset)?;
    let mut out = Tensor::zeros(input.dtype(), inner)?;
    add(&mut out, input, &maps)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Adds each element of `input` to the element of `sums` at the indices that `maps` lists for each axis; `sums` is
/// initially zero.
fn add_mirrored<T: Semiring>(sums: &mut Tensor, input: &Tensor, maps: &[Vec<usize>]) -> Result<()> {
    let inner = sums.shape().clone();
    let (sums, values) = (sums.values_mut::<T>()?, input.values::<T>()?);
    match maps.last() {
        None => sums.copy_from_slice(values),
        Some(last) => {
            let mut source = values.chunks_exact(last.len().max(1));
            for_each_row(&inner, maps, &mut |start| {
                for (&i, &v) in last.iter().zip(source.next().unwrap_or_default()) {
                    sums[start + i] = sums[start + i].plus(v);
                }
            });
        }
    }
    Ok(())
}
