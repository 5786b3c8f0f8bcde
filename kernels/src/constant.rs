//! Kernels that create tensors: constants, placeholders, fills, ranges, one-hot encodings, diagonals and band
//! parts.

use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::{ANY, FLOATS, INDEX, INTEGERS, dispatch};
use crate::numeric::scalar::Semiring;
use crate::numeric::strided::{Layout, box_kernel, copy};
use crate::objects::memory::Host;
use crate::plan::constant::{along_diagonal, band, diag_part, with_diagonal};
use crate::plan::tensor_list;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result, invalid};
use graph::ops::constant::range_length;
use graph::{DType, Element, PartialShape, Shape, Tensor};
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
    KernelDef::of(
        "Fill",
        &[("T", COPIED), ("index_type", INDEX)],
        |init| copied!(init.input_type(1), E => Kernel::sync(fill::<E>)),
    ),
    KernelDef::of(
        "Range",
        &[("Tidx", FLOATS)],
        |init| dispatch!(float, init.output_type(0), T => Kernel::sync(range_of_floats::<T>)),
    ),
    KernelDef::of(
        "Range",
        &[("Tidx", INTEGERS)],
        |init| dispatch!(integer, init.output_type(0), T => Kernel::sync(range_of_integers::<T>)),
    ),
    KernelDef::of(
        "LinSpace",
        &[("T", FLOATS), ("Tidx", INDEX)],
        |init| dispatch!(float, init.output_type(0), T => Kernel::sync(linspace::<T>)),
    ),
    KernelDef::of("OneHot", &[("T", COPIED)], one_hot),
    KernelDef::of("ZerosLike", &[("T", COPIED)], |init| match init.input_type(0) {
        DType::Variant => tensor_list::zeros_like::<Tensor>(Host),
        dtype => copied!(dtype, E => Kernel::sync(zeros_like::<E>)),
    }),
    KernelDef::of(
        "OnesLike",
        &[("T", ANY)],
        |init| dispatch!(any, init.input_type(0), T => Kernel::sync(ones_like::<T>)),
    ),
    KernelDef::of("Diag", &[("T", COPIED)], |init| copied!(init.input_type(0), E => Kernel::sync(diag::<E>))),
    KernelDef::of("DiagPart", &[("T", COPIED)], |init| box_kernel(init, diag_part)),
    KernelDef::of(
        "MatrixBandPart",
        &[("T", COPIED), ("Tindex", INDEX)],
        |init| copied!(init.input_type(0), E => Kernel::sync(band_part::<E>)),
    ),
];

/// `Const`: parses the value once; every step shares it.
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

fn fill<E: CopiedElement>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (dims, value) = (ctx.input(0)?, ctx.input(1)?);
    if dims.shape().rank() > 1 {
        invalid!("dims must represent a vector, got shape {}", dims.shape());
    }
    // Old graphs pass the value as a vector of one element.
    let ([element], 0 | 1) = (E::view(value)?, value.shape().rank()) else {
        invalid!("value must represent a scalar, got shape {}", value.shape());
    };
    let shape = Shape::from_i64(&dims.to_i64s()?)?;
    let is_zero = value.dtype().size().is_some() && value.bytes()?.iter().all(|&b| b == 0);
    let out = if is_zero {
        Tensor::zeros(value.dtype(), shape)?
    } else {
        E::build(value.dtype(), shape, |out| {
            out.fill(element.clone());
            Ok(())
        })?
    };
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the shape of a `Range`, after checking that its inputs are scalars.
fn range_shape(ctx: &KernelContext<'_>) -> Result<Shape> {
    for (i, name) in ["start", "limit", "delta"].into_iter().enumerate() {
        let shape = ctx.input(i)?.shape();
        if shape.num_elements() != 1 || shape.rank() > 1 {
            invalid!("{name} must be a scalar, not shape {shape}");
        }
    }
    Ok(Shape::new(&[range_length(ctx.input(0)?, ctx.input(1)?, ctx.input(2)?)?])?)
}

fn range_of_floats<T>(ctx: &mut KernelContext<'_>) -> Result<()>
where
    T: Element + Float,
    usize: AsPrimitive<T>,
{
    let shape = range_shape(ctx)?;
    let (start, delta) = (ctx.input(0)?.item::<T>()?, ctx.input(2)?.item::<T>()?);
    let mut out = ctx.allocate(T::DTYPE, shape)?;
    for (i, o) in out.values_mut::<T>()?.iter_mut().enumerate() {
        *o = start + i.as_() * delta;
    }
    ctx.set_output(0, out);
    Ok(())
}

fn range_of_integers<T>(ctx: &mut KernelContext<'_>) -> Result<()>
where
    T: Element + num_traits::WrappingAdd,
{
    let shape = range_shape(ctx)?;
    let (start, delta) = (ctx.input(0)?.item::<T>()?, ctx.input(2)?.item::<T>()?);
    let mut out = ctx.allocate(T::DTYPE, shape)?;
    let mut value = start;
    for o in out.values_mut::<T>()? {
        *o = value;
        value = value.wrapping_add(&delta);
    }
    ctx.set_output(0, out);
    Ok(())
}

fn linspace<T>(ctx: &mut KernelContext<'_>) -> Result<()>
where
    T: Element + Float,
    usize: AsPrimitive<T>,
{
    let (start, stop) = (ctx.scalar(0, "start")?.item::<T>()?, ctx.scalar(1, "stop")?.item::<T>()?);
    let num = ctx.scalar(2, "num")?.to_i64s()?[0];
    let count = usize::try_from(num).ok().filter(|&n| n > 0);
    let count = count.ok_or_else(|| Error::invalid(format!("Requires num > 0: {num}")))?;
    let mut out = ctx.allocate(T::DTYPE, Shape::new(&[count])?)?;
    let values = out.values_mut::<T>()?;
    let step = if count > 1 { (stop - start) / (count - 1).as_() } else { T::zero() };
    for (i, o) in values.iter_mut().enumerate() {
        *o = start + step * i.as_();
    }
    // The ends are set exactly, also if the step between them is infinite or NaN.
    values[count - 1] = stop;
    values[0] = start;
    ctx.set_output(0, out);
    Ok(())
}

fn one_hot(init: &KernelInit<'_>) -> Result<Kernel> {
    let axis: i64 = init.attr("axis")?;
    macro_rules! with_indices {
        ($($d:ident $I:ty),*) => {
            match init.input_type(0) {
                $(DType::$d => copied!(init.output_type(0), E => {
                    Kernel::sync(move |ctx| one_hot_with_index::<E, $I>(ctx, axis))
                }),)*
                other => Err(Error::unimplemented(format!("no OneHot kernel for indices of type {other}"))),
            }
        };
    }
    with_indices!(UInt8 u8, Int8 i8, Int32 i32, Int64 i64)
}

fn one_hot_with_index<E: CopiedElement, I: Element + AsPrimitive<i64>>(
    ctx: &mut KernelContext<'_>,
    axis: i64,
) -> Result<()> {
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
    let (on_value, off_value) = (&E::view(on)?[0], &E::view(off)?[0]);
    let values = indices.values::<I>()?;
    let out = E::build(on.dtype(), Shape::new(&sizes)?, |out| {
        out.fill(off_value.clone());
        for (i, index) in values.iter().enumerate() {
            let index: i64 = index.as_();
            if index >= 0 && (index as usize) < depth {
                let (prefix, rest) = (i / suffix, i % suffix);
                out[(prefix * depth + index as usize) * suffix + rest] = on_value.clone();
            }
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

fn zeros_like<E: CopiedElement>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (dtype, shape) = (ctx.input(0)?.dtype(), ctx.input(0)?.shape().clone());
    let out = match ctx.forward(0, dtype, &shape)? {
        Some(mut out) => {
            out.bytes_mut()?.fill(0);
            out
        }
        None if dtype.size().is_some() => Tensor::zeros(dtype, shape)?,
        None => E::build(dtype, shape, |_| Ok(()))?,
    };
    ctx.set_output(0, out);
    Ok(())
}

fn ones_like<T: Semiring>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let shape = ctx.input(0)?.shape().clone();
    let mut out = ctx.forward_or_allocate(0, T::DTYPE, shape)?;
    out.values_mut::<T>()?.fill(T::ONE);
    ctx.set_output(0, out);
    Ok(())
}

fn diag<E: CopiedElement>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (shape, input) = (with_diagonal(ctx)?, ctx.input(0)?);
    let n = input.num_elements();
    let out = E::build(input.dtype(), shape, |out| {
        out.fill(E::zero());
        copy(&[n], E::view(input)?, &Layout::packed(&[n]), out, &along_diagonal(n))
    })?;
    ctx.set_output(0, out);
    Ok(())
}

fn band_part<E: CopiedElement>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let ([rows, columns], [lower, upper]) = band(ctx)?;
    let input = ctx.input(0)?;
    let out = E::build(input.dtype(), input.shape().clone(), |out| {
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
    })?;
    ctx.set_output(0, out);
    Ok(())
}
