//! Tensors full of random numbers. A group of numbers comes from a place in the stream that its position alone
//! decides: threads share the work and the result does not depend on their number.

use super::distribution::{
    Bits, Distribution, Integers, MOST, Normal, RESERVED, RandomFloat, Uniform, truncated_normal,
};
use super::philox::{GROUP, Philox};
use super::source::Source;
use crate::error::Result;
use crate::invalid;
use crate::kernel::{Kernel, KernelContext, KernelInit};
use crate::kernels::cpu::dispatch::dispatch;
use crate::kernels::cpu::threads::{PARALLEL, for_chunks};
use graph::{Element, Shape, Tensor};
use std::fmt::Display;
use std::marker::PhantomData;

/// Numbers in [0, 1).
pub(in super::super) fn uniform(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    dispatch!(float, init.output_type(0), T => filled(source, Uniform::<T>(PhantomData)))
}

/// Numbers with mean 0 and deviation 1.
pub(in super::super) fn normal(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    dispatch!(float, init.output_type(0), T => filled(source, Normal::<T>(PhantomData)))
}

/// The same, within two deviations.
pub(in super::super) fn truncated(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    dispatch!(float, init.output_type(0), T => {
        Kernel::sync(move |ctx| {
            let shape = shape_input(ctx, &source)?;
            let out = random_tensor::<T>(ctx, &source, shape, fill_truncated)?;
            ctx.set_output(0, out);
            Ok(())
        })
    })
}

/// Integers of all the bits that they have.
pub(in super::super) fn bits(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    dispatch!(word, init.output_type(0), T => filled(source, Bits::<T>(PhantomData)))
}

/// Integers between two bounds, the upper of which is none of them.
pub(in super::super) fn integers(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    dispatch!(index, init.output_type(0), T => Kernel::sync(move |ctx| between::<T>(ctx, &source)))
}

fn filled<D: Distribution + Send + 'static>(source: Source, distribution: D) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let shape = shape_input(ctx, &source)?;
        let out = random_tensor(ctx, &source, shape, |from, out| fill(from, &distribution, out))?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// The input that is the shape of the numbers.
pub(in crate::kernels) fn shape_input(ctx: &KernelContext<'_>, source: &Source) -> Result<Shape> {
    let shape = ctx.input(source.shape())?;
    if shape.shape().rank() != 1 {
        invalid!("shape must be a vector of {{int32,int64}}, got shape {}", shape.shape());
    }
    Ok(Shape::from_i64(&shape.to_i64s()?)?)
}

fn random_tensor<T: Element>(
    ctx: &KernelContext<'_>,
    source: &Source,
    shape: Shape,
    fill: impl Fn(Philox, &mut [T]),
) -> Result<Tensor> {
    // What is wrong is said before what is too large.
    let mut out = ctx.allocate(T::DTYPE, shape).or_else(|error| source.check(ctx).and(Err(error)))?;
    match out.num_elements() {
        0 => source.check(ctx)?,
        count => fill(source.reserve_outputs(ctx, count)?, out.values_mut()?),
    }
    Ok(out)
}

/// Groups that a thread makes at a time.
const CHUNK_GROUPS: usize = PARALLEL / 32;

/// Fills `out` with the stream's numbers in their order.
fn fill<D: Distribution>(stream: Philox, distribution: &D, out: &mut [D::Out]) {
    in_chunks(out, D::COUNT, |first, out| {
        let mut stream = stream.at(first as u64);
        for group in out.chunks_mut(D::COUNT) {
            let numbers = distribution.make(stream.next());
            group.copy_from_slice(&numbers[..group.len()]);
        }
    });
}

/// As [`fill`], of a distribution that draws until it is content: each group of numbers has a part of the
/// stream of its own, far enough from the next.
fn fill_truncated<T: RandomFloat>(stream: Philox, out: &mut [T]) {
    const { assert!(T::COUNT <= MOST) };
    let apart = (T::COUNT * RESERVED / GROUP) as u64;
    in_chunks(out, T::COUNT, |first, out| {
        for (i, group) in out.chunks_mut(T::COUNT).enumerate() {
            let numbers = truncated_normal::<T>(stream.at((first + i) as u64 * apart));
            group.copy_from_slice(&numbers[..group.len()]);
        }
    });
}

/// Calls `fill` for parts of `out` of whole groups, with the number of the part's first group.
fn in_chunks<T: Send>(out: &mut [T], group: usize, fill: impl Fn(usize, &mut [T]) + Sync) {
    for_chunks(out, CHUNK_GROUPS * group, |start, out| fill(start / group, out));
}

fn between<T>(ctx: &mut KernelContext<'_>, source: &Source) -> Result<()>
where
    T: Element + Into<i64> + Ord + Display,
    Integers<T>: Distribution<Out = T>,
{
    let shape = shape_input(ctx, source)?;
    let bound = |i: usize, name: &str| -> Result<T> {
        let bound = ctx.input(source.parameters() + i)?;
        if bound.shape().rank() != 0 {
            invalid!("{name} must be 0-D, got shape {}", bound.shape());
        }
        Ok(bound.item()?)
    };
    if shape.num_elements() == 0 && matches!(source, Source::Seeds(_) | Source::Key(_)) {
        let out = random_tensor(ctx, source, shape, |_, _: &mut [T]| {})?;
        ctx.set_output(0, out);
        return Ok(());
    }
    let (low, high) = (bound(0, "minval")?, bound(1, "maxval")?);
    if shape.num_elements() > 0 && low >= high {
        invalid!("Need minval < maxval, got {low} >= {high}");
    }
    // Two's complement: right also where the difference exceeds the signed range.
    let (first, end): (i64, i64) = (low.into(), high.into());
    let range = end.wrapping_sub(first) as u64;
    let out = random_tensor(ctx, source, shape, |from, out| fill(from, &Integers { low, range }, out))?;
    ctx.set_output(0, out);
    Ok(())
}
