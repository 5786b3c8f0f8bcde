//! Tensors filled with random numbers. A group's position in the tensor alone determines its position in the stream,
//! so the result does not depend on the number of threads that share the work.

use super::distribution::{
    Bits, Distribution, Integers, MOST, Normal, RandomFloat, Uniform, truncated_normal,
};
use crate::numeric::dispatch::dispatch;
use crate::numeric::philox::{GROUP, Philox};
use crate::numeric::threads::{PARALLEL, for_chunks};
use crate::plan::random::{RESERVED, Source, shape_input};
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::{DType, Element, Shape, Tensor};
use num_traits::AsPrimitive;
use std::marker::PhantomData;

/// A function that fills a tensor with random numbers from a stream.
type FillFn = fn(Philox, &mut Tensor) -> Result<()>;

/// Makes the kernel of uniform numbers in [0, 1).
pub(in super::super) fn uniform(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let fill = dispatch!(float, init.output_type(0), T => Ok(fill_uniform::<T> as FillFn))?;
    filled(init, source, fill)
}

/// Makes the kernel of normal numbers with mean 0 and deviation 1.
pub(in super::super) fn normal(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let fill = dispatch!(float, init.output_type(0), T => Ok(fill_normal::<T> as FillFn))?;
    filled(init, source, fill)
}

/// Makes the kernel of normal numbers within two deviations.
pub(in super::super) fn truncated(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let fill = dispatch!(float, init.output_type(0), T => Ok(fill_truncated::<T> as FillFn))?;
    filled(init, source, fill)
}

/// Makes the kernel of integers in which every bit is random.
pub(in super::super) fn bits(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    // Every bit is random, so signed and unsigned integers are filled alike.
    let fill: FillFn = match init.output_type(0) {
        DType::Int32 | DType::UInt32 => fill_bits::<u32>,
        DType::Int64 | DType::UInt64 => fill_bits::<u64>,
        other => return Err(Error::unimplemented(format!("no CPU kernel for elements of type {other}"))),
    };
    filled(init, source, fill)
}

/// Makes the kernel of uniform integers between a lower bound, included, and an upper bound, excluded.
pub(in super::super) fn integers(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    let fill = dispatch!(index, init.output_type(0), T => Ok(fill_between::<T> as FillBetweenFn))?;
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| between(ctx, &source, dtype, fill))
}

fn filled(init: &KernelInit<'_>, source: Source, fill: FillFn) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let shape = shape_input(ctx, &source)?;
        let out = random_tensor(ctx, &source, dtype, shape, &fill)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn random_tensor(
    ctx: &KernelContext<'_>,
    source: &Source,
    dtype: DType,
    shape: Shape,
    fill: &dyn Fn(Philox, &mut Tensor) -> Result<()>,
) -> Result<Tensor> {
    // If an input is invalid, its error takes precedence over the error for a shape that is too large.
    let mut out = ctx.allocate(dtype, shape).or_else(|error| source.check(ctx).and(Err(error)))?;
    match out.num_elements() {
        0 => source.check(ctx)?,
        count => fill(source.reserve_outputs(ctx, count)?, &mut out)?,
    }
    Ok(out)
}

fn fill_uniform<T: RandomFloat>(stream: Philox, out: &mut Tensor) -> Result<()> {
    fill(stream, &Uniform::<T>(PhantomData), out.values_mut()?);
    Ok(())
}

fn fill_normal<T: RandomFloat>(stream: Philox, out: &mut Tensor) -> Result<()> {
    fill(stream, &Normal::<T>(PhantomData), out.values_mut()?);
    Ok(())
}

fn fill_bits<T: Element>(stream: Philox, out: &mut Tensor) -> Result<()>
where
    Bits<T>: Distribution<Out = T>,
{
    fill(stream, &Bits::<T>(PhantomData), bytemuck::cast_slice_mut(out.bytes_mut()?));
    Ok(())
}

/// Number of outputs of the Philox generator, of 128 bits each, that one work item of the thread pool draws.
const CHUNK_GROUPS: usize = PARALLEL / 32;

/// Fills `out` with numbers of `distribution`, made from consecutive outputs of the stream.
fn fill<D: Distribution>(stream: Philox, distribution: &D, out: &mut [D::Out]) {
    in_chunks(out, D::COUNT, |first, out| {
        let mut stream = stream.at(first as u64);
        for group in out.chunks_mut(D::COUNT) {
            let numbers = distribution.make(stream.next());
            group.copy_from_slice(&numbers[..group.len()]);
        }
    });
}

/// Fills `out` with truncated normal numbers, whose groups each start at their own position in the stream, with
/// enough distance between them for rejected candidates.
fn fill_truncated<T: RandomFloat>(stream: Philox, out: &mut Tensor) -> Result<()> {
    const { assert!(T::COUNT <= MOST) };
    let apart = (T::COUNT * RESERVED / GROUP) as u64;
    in_chunks(out.values_mut::<T>()?, T::COUNT, |first, out| {
        for (i, group) in out.chunks_mut(T::COUNT).enumerate() {
            let numbers = truncated_normal::<T>(stream.at((first + i) as u64 * apart));
            group.copy_from_slice(&numbers[..group.len()]);
        }
    });
    Ok(())
}

/// Calls `fill(number of the first group, part)` for parts of `out` that consist of whole groups of `group` elements.
fn in_chunks<T: Send>(out: &mut [T], group: usize, fill: impl Fn(usize, &mut [T]) + Sync) {
    for_chunks(out, CHUNK_GROUPS * group, |start, out| fill(start / group, out));
}

/// A function that fills a tensor with uniform integers; see [`fill_between`].
type FillBetweenFn = fn(Philox, i64, u64, &mut Tensor) -> Result<()>;

/// Fills `out` with uniform integers in `low..low + range`.
fn fill_between<T>(stream: Philox, low: i64, range: u64, out: &mut Tensor) -> Result<()>
where
    T: Element,
    i64: AsPrimitive<T>,
    Integers<T>: Distribution<Out = T>,
{
    fill(stream, &Integers { low: low.as_(), range }, out.values_mut::<T>()?);
    Ok(())
}

fn between(ctx: &mut KernelContext<'_>, source: &Source, dtype: DType, fill: FillBetweenFn) -> Result<()> {
    let shape = shape_input(ctx, source)?;
    let bound = |i: usize, name: &str| -> Result<i64> {
        let bound = ctx.input(source.parameters() + i)?;
        if bound.shape().rank() != 0 {
            invalid!("{name} must be 0-D, got shape {}", bound.shape());
        }
        Ok(bound.to_i64s()?[0])
    };
    if shape.num_elements() == 0 && matches!(source, Source::Seeds(_) | Source::Key(_)) {
        let out = random_tensor(ctx, source, dtype, shape, &|_, _| Ok(()))?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let (low, high) = (bound(0, "minval")?, bound(1, "maxval")?);
    if shape.num_elements() > 0 && low >= high {
        invalid!("Need minval < maxval, got {low} >= {high}");
    }
    // The wrapping difference is right as an unsigned number even if it exceeds the signed range.
    let range = high.wrapping_sub(low) as u64;
    let out = random_tensor(ctx, source, dtype, shape, &|from, out| fill(from, low, range, out))?;
    ctx.set_output(0, out);
    Ok(())
}
