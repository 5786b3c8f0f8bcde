//! Kernels that create tensors: constants, placeholders, fills, ranges, one-hot encodings, diagonals and band
//! parts.

use super::pad::{EmbedFn, embed_fn};
use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::{ANY, FLOATS, INDEX, INTEGERS, NUMBERS, dispatch};
use crate::numeric::scalar::Semiring;
use crate::numeric::strided::box_kernel;
use crate::objects::memory::Host;
use crate::plan::constant::{along_diagonal, band, diag_part, with_diagonal};
use crate::plan::tensor_list;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result, invalid};
use graph::ops::constant::range_length;
use graph::{DType, Element, PartialShape, ResourceHandle, Shape, Tensor};
use num_traits::{AsPrimitive, Float};
use smallvec::SmallVec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef { op: "Const", make: constant, ..KernelDef::NEW },
    KernelDef { op: "Placeholder", make: placeholder, ..KernelDef::NEW },
    KernelDef { op: "PlaceholderV2", make: placeholder, ..KernelDef::NEW },
    KernelDef {
        op: "PlaceholderWithDefault",
        make: |_| {
            Kernel::sync(|ctx| {
                let value = ctx.take_value(0);
                ctx.set_output(0, value);
                Ok(())
            })
        },
        ..KernelDef::NEW
    },
    KernelDef::of("Empty", &[("dtype", COPIED)], |init| {
        let dtype = init.output_type(0);
        Kernel::sync(move |ctx| {
            let sizes = ctx.input(0)?;
            if sizes.shape().rank() != 1 {
                invalid!("shape must be a vector of int32, got shape {}", sizes.shape());
            }
            let shape = Shape::from_i64(&sizes.to_i64s()?)?;
            // Without the attribute `init` the elements may have any values. Zeros do not expose the former contents of
            // the memory.
            ctx.set_output(0, Tensor::zeros(dtype, shape)?);
            Ok(())
        })
    }),
    KernelDef::of("Fill", &[("T", COPIED), ("index_type", INDEX)], |init| {
        let build = copied!(init.input_type(1), E => Ok(filled::<E> as BuildFilledFn))?;
        Kernel::sync(move |ctx| fill(ctx, build))
    }),
    KernelDef::of("Range", &[("Tidx", FLOATS)], |init| {
        let write = dispatch!(float, init.output_type(0), T => Ok(write_floats::<T> as WriteNumbersFn))?;
        Kernel::sync(move |ctx| range(ctx, write))
    }),
    KernelDef::of("Range", &[("Tidx", INTEGERS)], |init| {
        let write = dispatch!(integer, init.output_type(0), T => Ok(write_integers::<T> as WriteNumbersFn))?;
        Kernel::sync(move |ctx| range(ctx, write))
    }),
    KernelDef::of("LinSpace", &[("T", FLOATS), ("Tidx", INDEX)], |init| {
        let write = dispatch!(float, init.output_type(0), T => Ok(write_between::<T> as WriteNumbersFn))?;
        Kernel::sync(move |ctx| linspace(ctx, write))
    }),
    KernelDef::of("OneHot", &[("T", COPIED)], one_hot),
    KernelDef::of("ZerosLike", &[("T", COPIED)], |init| match init.input_type(0) {
        DType::Variant => tensor_list::zeros_like::<Tensor>(Host),
        _ => Kernel::sync(zeros_like),
    }),
    KernelDef::of("OnesLike", &[("T", ANY)], |init| {
        let write = dispatch!(any, init.input_type(0), T => Ok(write_ones::<T> as WriteOnesFn))?;
        Kernel::sync(move |ctx| ones_like(ctx, write))
    }),
    KernelDef::of("Diag", &[("T", COPIED)], |init| {
        let embed = embed_fn(init.input_type(0))?;
        Kernel::sync(move |ctx| diag(ctx, embed))
    }),
    KernelDef::of("DiagPart", &[("T", COPIED)], |init| box_kernel(init, diag_part)),
    KernelDef::of("MatrixBandPart", &[("T", COPIED), ("Tindex", INDEX)], matrix_band_part),
    KernelDef::of("BatchMatrixBandPart", &[("T", NUMBERS)], matrix_band_part),
];

fn matrix_band_part(init: &KernelInit<'_>) -> Result<Kernel> {
    let build = copied!(init.input_type(0), E => Ok(band_part::<E> as BuildBandFn))?;
    Kernel::sync(move |ctx| {
        let (sizes, widths) = band(ctx)?;
        let out = build(ctx.input(0)?, sizes, widths)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// A function that returns a tensor of the given shape whose elements all equal the only element of another tensor.
type BuildFilledFn = fn(&Tensor, Shape) -> Result<Tensor>;

/// A function that fills a tensor with a sequence of numbers, given its start and its step, or its start and its end.
type WriteNumbersFn = fn(&Tensor, &Tensor, &mut Tensor) -> Result<()>;

/// A function that sets the elements of a tensor to 1.
type WriteOnesFn = fn(&mut Tensor) -> Result<()>;

/// A function that returns a tensor with a band of each of its matrices; see [`band_part`].
type BuildBandFn = fn(&Tensor, [usize; 2], [i64; 2]) -> Result<Tensor>;

/// `Const`: parses the value once and outputs the same tensor in every step.
fn constant(init: &KernelInit<'_>) -> Result<Kernel> {
    let (value, dtype) = (init.attr::<Tensor>("value")?, init.attr::<DType>("dtype")?);
    if value.dtype() != dtype {
        invalid!("a Const of {dtype} has a value of {}", value.dtype());
    }
    Kernel::sync(move |ctx| {
        ctx.set_output(0, value.clone());
        Ok(())
    })
}

/// Fails the step: the kernel of a placeholder runs only if no value was fed.
fn placeholder(init: &KernelInit<'_>) -> Result<Kernel> {
    let (dtype, shape) = (init.attr::<DType>("dtype")?, init.attr::<PartialShape>("shape")?);
    let shape = match shape.rank() {
        Some(rank) if rank > 0 => format!(" and shape {shape}"),
        _ => String::new(),
    };
    let name = init.node.name.clone();
    Kernel::sync(move |_| {
        invalid!("You must feed a value for placeholder tensor '{name}' with dtype {dtype}{shape}")
    })
}

fn fill(ctx: &mut KernelContext<'_>, build: BuildFilledFn) -> Result<()> {
    let (dims, value) = (ctx.input(0)?, ctx.input(1)?);
    if dims.shape().rank() > 1 {
        invalid!("dims must represent a vector, got shape {}", dims.shape());
    }
    // Old graphs pass the value as a vector of one element.
    if value.num_elements() != 1 || value.shape().rank() > 1 {
        invalid!("value must represent a scalar, got shape {}", value.shape());
    }
    let shape = Shape::from_i64(&dims.to_i64s()?)?;
    let is_zero = value.dtype().size().is_some() && value.bytes()?.iter().all(|&b| b == 0);
    let out = if is_zero { Tensor::zeros(value.dtype(), shape)? } else { build(value, shape)? };
    ctx.set_output(0, out);
    Ok(())
}

fn filled<E: CopiedElement>(value: &Tensor, shape: Shape) -> Result<Tensor> {
    let element = &E::view(value)?[0];
    E::build(value.dtype(), shape, |out| {
        out.fill(element.clone());
        Ok(())
    })
}

fn range(ctx: &mut KernelContext<'_>, write: WriteNumbersFn) -> Result<()> {
    let (start, limit, delta) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    for (given, name) in [(start, "start"), (limit, "limit"), (delta, "delta")] {
        let shape = given.shape();
        if shape.num_elements() != 1 || shape.rank() > 1 {
            invalid!("{name} must be a scalar, not shape {shape}");
        }
    }
    let shape = Shape::new(&[range_length(start, limit, delta)?])?;
    let mut out = ctx.allocate(start.dtype(), shape)?;
    write(start, delta, &mut out)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Sets the elements of `out` to `start + i * delta` for `i` = 0, 1, 2, ….
fn write_floats<T>(start: &Tensor, delta: &Tensor, out: &mut Tensor) -> Result<()>
where
    T: Element + Float,
    usize: AsPrimitive<T>,
{
    let (start, delta) = (start.item::<T>()?, delta.item::<T>()?);
    for (i, o) in out.values_mut::<T>()?.iter_mut().enumerate() {
        *o = start + i.as_() * delta;
    }
    Ok(())
}

/// Sets the elements of `out` to `start + i * delta` for `i` = 0, 1, 2, …, with wrapping addition.
fn write_integers<T>(start: &Tensor, delta: &Tensor, out: &mut Tensor) -> Result<()>
where
    T: Element + num_traits::WrappingAdd,
{
    let (mut value, delta) = (start.item::<T>()?, delta.item::<T>()?);
    for o in out.values_mut::<T>()? {
        *o = value;
        value = value.wrapping_add(&delta);
    }
    Ok(())
}

fn linspace(ctx: &mut KernelContext<'_>, write: WriteNumbersFn) -> Result<()> {
    let (start, stop) = (ctx.scalar(0, "start")?, ctx.scalar(1, "stop")?);
    let num = ctx.scalar(2, "num")?.to_i64s()?[0];
    let count = usize::try_from(num).ok().filter(|&n| n > 0);
    let count = count.ok_or_else(|| Error::invalid(format!("Requires num > 0: {num}")))?;
    let mut out = ctx.allocate(start.dtype(), Shape::new(&[count])?)?;
    write(start, stop, &mut out)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Fills `out`, which must not be empty, with evenly spaced numbers from `start` to `stop`.
fn write_between<T>(start: &Tensor, stop: &Tensor, out: &mut Tensor) -> Result<()>
where
    T: Element + Float,
    usize: AsPrimitive<T>,
{
    let (start, stop) = (start.item::<T>()?, stop.item::<T>()?);
    let values = out.values_mut::<T>()?;
    let last = values.len() - 1;
    let step = if last > 0 { (stop - start) / last.as_() } else { T::zero() };
    for (i, o) in values.iter_mut().enumerate() {
        *o = start + step * i.as_();
    }
    // The last element is set to `stop` exactly, also if the step is infinite or NaN.
    values[last] = stop;
    values[0] = start;
    Ok(())
}

fn one_hot(init: &KernelInit<'_>) -> Result<Kernel> {
    let axis: i64 = init.attr("axis")?;
    match init.input_type(0) {
        DType::UInt8 | DType::Int8 | DType::Int32 | DType::Int64 => {}
        other => return Err(Error::unimplemented(format!("no OneHot kernel for indices of type {other}"))),
    }
    let build = copied!(init.output_type(0), E => Ok(encoded::<E> as EncodeFn))?;
    Kernel::sync(move |ctx| encode(ctx, axis, build))
}

/// A function that returns a one-hot encoding with the values `on` and `off`; see [`encoded`].
type EncodeFn = fn(&Tensor, &Tensor, &OneHotPlan) -> Result<Tensor>;

/// The plan of a one-hot encoding: its shape, and the classes that are encoded.
struct OneHotPlan {
    classes: Vec<i64>,
    shape: Shape,
    /// The size of the new axis.
    depth: usize,
    /// The number of elements between neighbouring indices of the new axis.
    suffix: usize,
}

fn encode(ctx: &mut KernelContext<'_>, axis: i64, build: EncodeFn) -> Result<()> {
    let (indices, on, off) = (ctx.input(0)?, ctx.input(2)?, ctx.input(3)?);
    let dims = indices.shape();
    let at = if axis == -1 { dims.rank() } else { usize::try_from(axis).unwrap_or(usize::MAX) };
    if at > dims.rank() {
        invalid!("Expected axis to be -1 or between [0, {}).  But received: {axis}", dims.rank() + 1);
    }
    for (i, name) in [(1, "depth"), (2, "on_value"), (3, "off_value")] {
        let shape = ctx.input(i)?.shape();
        if shape.rank() != 0 {
            invalid!("{name} must be a scalar, but got: {shape}");
        }
    }
    let depth = ctx.input(1)?.item::<i32>()?;
    let Ok(depth) = usize::try_from(depth) else {
        invalid!("depth must be non-negative, got: {depth}");
    };
    let mut sizes: SmallVec<[usize; 6]> = dims.dims().into();
    sizes.insert(at, depth);
    let suffix: usize = dims[at..].iter().product();
    let classes = match indices.dtype() {
        DType::UInt8 => indices.values::<u8>()?.iter().map(|&class| class.into()).collect(),
        DType::Int8 => indices.values::<i8>()?.iter().map(|&class| class.into()).collect(),
        _ => indices.to_i64s()?,
    };
    let out = build(on, off, &OneHotPlan { classes, shape: Shape::new(&sizes)?, depth, suffix })?;
    ctx.set_output(0, out);
    Ok(())
}

fn encoded<E: CopiedElement>(on: &Tensor, off: &Tensor, plan: &OneHotPlan) -> Result<Tensor> {
    let OneHotPlan { classes, shape, depth, suffix } = plan;
    let (on_value, off_value) = (&E::view(on)?[0], &E::view(off)?[0]);
    E::build(on.dtype(), shape.clone(), |out| {
        out.fill(off_value.clone());
        for (i, &class) in classes.iter().enumerate() {
            if class >= 0 && (class as usize) < *depth {
                let (prefix, rest) = (i / suffix, i % suffix);
                out[(prefix * depth + class as usize) * suffix + rest] = on_value.clone();
            }
        }
        Ok(())
    })
}

fn zeros_like(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (dtype, shape) = (ctx.input(0)?.dtype(), ctx.input(0)?.shape().clone());
    let out = match ctx.forward(0, dtype, &shape)? {
        Some(mut out) => {
            out.bytes_mut()?.fill(0);
            out
        }
        None => match dtype {
            DType::String => Bytes::build(dtype, shape, |_| Ok(()))?,
            DType::Resource => ResourceHandle::build(dtype, shape, |_| Ok(()))?,
            _ => Tensor::zeros(dtype, shape)?,
        },
    };
    ctx.set_output(0, out);
    Ok(())
}

fn ones_like(ctx: &mut KernelContext<'_>, write: WriteOnesFn) -> Result<()> {
    let (dtype, shape) = (ctx.input(0)?.dtype(), ctx.input(0)?.shape().clone());
    let mut out = ctx.forward_or_allocate(0, dtype, shape)?;
    write(&mut out)?;
    ctx.set_output(0, out);
    Ok(())
}

fn write_ones<T: Semiring>(out: &mut Tensor) -> Result<()> {
    out.values_mut::<T>()?.fill(T::ONE);
    Ok(())
}

fn diag(ctx: &mut KernelContext<'_>, embed: EmbedFn) -> Result<()> {
    let (shape, input) = (with_diagonal(ctx)?, ctx.input(0)?);
    let n = input.num_elements();
    let out = embed(input, &[n], None, shape, &along_diagonal(n))?;
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the matrices of a tensor with zeros outside of a band of diagonals: the main diagonal, `lower` diagonals
/// below it and `upper` diagonals above it.
fn band_part<E: CopiedElement>(
    input: &Tensor,
    [rows, columns]: [usize; 2],
    [lower, upper]: [i64; 2],
) -> Result<Tensor> {
    E::build(input.dtype(), input.shape().clone(), |out| {
        let values = E::view(input)?;
        for (i, (o, v)) in out.chunks_mut(columns.max(1)).zip(values.chunks(columns.max(1))).enumerate() {
            let row = (i % rows.max(1)) as i64;
            let begin = (row.saturating_sub(lower).max(0) as usize).min(columns);
            let end = usize::try_from(row.saturating_add(upper).saturating_add(1)).unwrap_or(0).min(columns);
            o[..begin].fill(E::zero());
            o[end..].fill(E::zero());
            if begin < end {
                o[begin..end].clone_from_slice(&v[begin..end]);
            }
        }
        Ok(())
    })
}
