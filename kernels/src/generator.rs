//! Random numbers from a generator whose state is a variable; each op advances the state.

use super::random::philox::Philox;
use super::random::{Generator, Source, bits, integers, normal, truncated, uniform};
use crate::numeric::dispatch::{FLOATS, INDEX, WORDS};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::{DType, Tensor};

type Types = &'static [(&'static str, &'static [DType])];

const FLOAT: Types = &[("dtype", FLOATS), ("shape_dtype", INDEX)];
const WHOLE: Types = &[("dtype", INDEX), ("shape_dtype", INDEX)];
const BITS: Types = &[("dtype", WORDS), ("shape_dtype", INDEX)];

/// Groups of four numbers that a generator advances for each number skipped, equal to the number reserved for each
/// number drawn.
const SKIPPED: u64 = 256;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("StatefulStandardNormal", FLOAT, |i| {
        normal(i, Source::Generator(Generator::self_described(i)))
    }),
    KernelDef::of("StatefulStandardNormalV2", FLOAT, |i| normal(i, Source::Generator(Generator::of(i)))),
    KernelDef::of("StatefulTruncatedNormal", FLOAT, |i| truncated(i, Source::Generator(Generator::of(i)))),
    KernelDef::of("StatefulUniform", FLOAT, |i| uniform(i, Source::Generator(Generator::of(i)))),
    KernelDef::of("StatefulUniformInt", WHOLE, |i| integers(i, Source::Generator(Generator::of(i)))),
    KernelDef::of("StatefulUniformFullInt", BITS, |i| bits(i, Source::Generator(Generator::of(i)))),
    KernelDef::of("RngSkip", &[], |i| {
        let generator = Generator::of(i);
        Kernel::sync(move |ctx| skip(ctx, &generator).map(|_| ()))
    }),
    KernelDef::of("RngReadAndSkip", &[], |i| {
        let generator = Generator::of(i);
        Kernel::sync(move |ctx| {
            let stream = skip(ctx, &generator)?;
            let [low, high] = stream.counter();
            ctx.set_output(0, Tensor::vector(&[low, high, stream.key()].map(|word| word as i64))?);
            Ok(())
        })
    }),
];

/// Returns the groups of four numbers to skip: those reserved for as many numbers as input 2 states.
pub fn skipped(ctx: &KernelContext<'_>) -> Result<u64> {
    let delta = ctx.input(2)?;
    if delta.shape().rank() != 0 {
        device::invalid!("delta must be of shape [], not {}", delta.shape());
    }
    let delta = match delta.dtype() {
        DType::UInt64 => delta.item::<u64>()?,
        _ => delta.item::<i64>()? as u64,
    };
    Ok(delta.wrapping_mul(SKIPPED))
}

/// Advances the generator. Returns its state before.
fn skip(ctx: &KernelContext<'_>, generator: &Generator) -> Result<Philox> {
    generator.reserve(ctx, skipped(ctx)?)
}
