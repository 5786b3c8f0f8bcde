//! Pseudo-random numbers: Philox streams, the same as TensorFlow for the same seeds. A kernel keeps its place
//! in its stream from step to step; what it gives does not depend on the number of threads.

pub(super) mod distribution;
pub(crate) mod philox;
mod shuffle;
mod words;

pub(super) use self::words::{WordStream, Words};

use self::distribution::{
    Distribution, Integers, MOST, Normal, RESERVED, RandomFloat, Uniform, truncated_normal,
};
use self::philox::{GROUP, Philox};
use super::dispatch::{FLOATS, INDEX, dispatch};
use super::threads::{PARALLEL, for_chunks};
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Element, Shape, Tensor};
use parking_lot::Mutex;
use std::marker::PhantomData;

const FLOAT: &[(&str, &[DType])] = &[("dtype", FLOATS), ("T", INDEX)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of(
            "RandomUniform",
            FLOAT,
            |i| dispatch!(float, i.output_type(0), T => filled(i, Uniform::<T>(PhantomData))),
        )
    },
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of(
            "RandomStandardNormal",
            FLOAT,
            |i| dispatch!(float, i.output_type(0), T => filled(i, Normal::<T>(PhantomData))),
        )
    },
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of("TruncatedNormal", FLOAT, |i| {
            dispatch!(float, i.output_type(0), T => {
                let stream = Stream::of(i)?;
                Kernel::sync(move |ctx| {
                    let shape = shape_input(ctx)?;
                    let out = random_tensor::<T>(ctx, &stream, shape, fill_truncated)?;
                    ctx.set_output(0, out);
                    Ok(())
                })
            })
        })
    },
    KernelDef {
        host_memory: &["shape", "minval", "maxval"],
        ..KernelDef::of("RandomUniformInt", &[("Tout", INDEX), ("T", INDEX)], |i| {
            let stream = Stream::of(i)?;
            dispatch!(index, i.output_type(0), T => Kernel::sync(move |ctx| integers::<T>(ctx, &stream)))
        })
    },
    KernelDef::of("RandomShuffle", &[], shuffle::shuffle),
    KernelDef::of("Multinomial", &[("T", FLOATS), ("output_dtype", INDEX)], shuffle::multinomial),
];

/// A kernel's place in its stream. Steps that run at once take parts that do not overlap.
pub(super) struct Stream(Mutex<Philox>);

impl Stream {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Stream> {
        Ok(Stream(Mutex::new(Philox::seeded(init.attr("seed")?, init.attr("seed2")?))))
    }

    /// Takes the next `groups` of four numbers.
    pub(super) fn reserve(&self, groups: u64) -> Philox {
        let mut stream = self.0.lock();
        let taken = *stream;
        stream.skip(groups);
        taken
    }

    /// Takes as much as is set aside for `count` numbers of any distribution.
    fn reserve_outputs(&self, count: usize) -> Philox {
        self.reserve((count as u64).wrapping_mul(RESERVED as u64))
    }
}

fn filled<D: Distribution + Send + 'static>(init: &KernelInit<'_>, distribution: D) -> Result<Kernel> {
    let stream = Stream::of(init)?;
    Kernel::sync(move |ctx| {
        let shape = shape_input(ctx)?;
        let out = random_tensor(ctx, &stream, shape, |from, out| fill(from, &distribution, out))?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Input 0 as a shape.
fn shape_input(ctx: &KernelContext<'_>) -> Result<Shape> {
    let shape = ctx.input(0)?;
    if shape.shape().rank() != 1 {
        crate::invalid!("shape must be a vector of {{int32,int64}}, got shape {}", shape.shape());
    }
    Ok(Shape::from_i64(&shape.to_i64s()?)?)
}

fn random_tensor<T: Element>(
    ctx: &KernelContext<'_>,
    stream: &Stream,
    shape: Shape,
    fill: impl Fn(Philox, &mut [T]),
) -> Result<Tensor> {
    let mut out = ctx.allocate(T::DTYPE, shape)?;
    if out.num_elements() > 0 {
        fill(stream.reserve_outputs(out.num_elements()), out.values_mut()?);
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

fn integers<T>(ctx: &mut KernelContext<'_>, stream: &Stream) -> Result<()>
where
    T: Element + Into<i64> + Ord + std::fmt::Display,
    Integers<T>: Distribution<Out = T>,
{
    let shape = shape_input(ctx)?;
    let bound = |i: usize, name: &str| -> Result<T> {
        let bound = ctx.input(i)?;
        if bound.shape().rank() != 0 {
            crate::invalid!("{name} must be 0-D, got shape {}", bound.shape());
        }
        Ok(bound.item()?)
    };
    let (low, high) = (bound(1, "minval")?, bound(2, "maxval")?);
    if shape.num_elements() > 0 && low >= high {
        crate::invalid!("Need minval < maxval, got {low} >= {high}");
    }
    // Two's complement: right also where the difference exceeds the signed range.
    let (first, end): (i64, i64) = (low.into(), high.into());
    let range = end.wrapping_sub(first) as u64;
    let out = random_tensor(ctx, stream, shape, |from, out| fill(from, &Integers { low, range }, out))?;
    ctx.set_output(0, out);
    Ok(())
}

#[cfg(test)]
mod tests;
