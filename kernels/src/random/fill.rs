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
use device::{Result, invalid};
use graph::{Element, Shape, Tensor};
use std::fmt::Display;
use std::marker::PhantomData;

/// Makes the kernel of uniform numbers in [0, 1).
pub(in super::super) fn uniform(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    dispatch!(float, init.output_type(0), T => filled(source, Uniform::<T>(PhantomData)))
}

/// Makes the kernel of normal numbers with mean 0 and deviation 1.
pub(in super::super) fn normal(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    dispatch!(float, init.output_type(0), T => filled(source, Normal::<T>(PhantomData)))
}

/// Makes the kernel of normal numbers within two deviations.
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

/// Makes the kernel of integers in which every bit is random.
pub(in super::super) fn bits(init: &KernelInit<'_>, source: Source) -> Result<Kernel> {
    dispatch!(word, init.output_type(0), T => filled(source, Bits::<T>(PhantomData)))
}

/// Makes the kernel of integers from a lower bound to before an upper bound.
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

fn random_tensor<T: Element>(
    ctx: &KernelContext<'_>,
    source: &Source,
    shape: Shape,
    fill: impl Fn(Philox, &mut [T]),
) -> Result<Tensor> {
    // Invalid inputs are reported in preference to a shape that is too large.
    let mut out = ctx.allocate(T::DTYPE, shape).or_else(|error| source.check(ctx).and(Err(error)))?;
    match out.num_elements() {
        0 => source.check(ctx)?,
        count => fill(source.reserve_outputs(ctx, count)?, out.values_mut()?),
    }
    Ok(out)
}

/// Groups per work item of the thread pool.
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

/// Fills `out` with truncated normal numbers, whose groups each start at their own position in the stream, with
/// enough distance between them for rejected candidates.
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

/// Calls `fill` for parts of `out` that are whole groups, with the number of the part's first group.
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
    // The difference in two's complement is right even if it exceeds the signed range.
    let (first, end): (i64, i64) = (low.into(), high.into());
    let range = end.wrapping_sub(first) as u64;
    let out = random_tensor(ctx, source, shape, |from, out| fill(from, &Integers { low, range }, out))?;
    ctx.set_output(0, out);
    Ok(())
}
