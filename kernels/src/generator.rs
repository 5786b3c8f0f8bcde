//! Random numbers from a generator whose state is a variable; each op advances the state.

use super::random::{BINOMIAL, binomial, bits, integers, normal, truncated, uniform};
use crate::numeric::dispatch::{FLOATS, INDEX, WORDS};
use crate::numeric::philox::Philox;
use crate::plan::generator::groups_to_skip;
use crate::plan::random::{Generator, Source};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::{DType, Tensor};

type Types = &'static [(&'static str, &'static [DType])];

const FLOAT: Types = &[("dtype", FLOATS), ("shape_dtype", INDEX)];
const WHOLE: Types = &[("dtype", INDEX), ("shape_dtype", INDEX)];
const BITS: Types = &[("dtype", WORDS), ("shape_dtype", INDEX)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("StatefulStandardNormal", FLOAT, |i| {
        normal(i, Source::Generator(Generator::self_described(i)))
    }),
    KernelDef::of("StatefulStandardNormalV2", FLOAT, |i| normal(i, Source::Generator(Generator::of(i)))),
    KernelDef::of("StatefulTruncatedNormal", FLOAT, |i| truncated(i, Source::Generator(Generator::of(i)))),
    KernelDef::of("StatefulRandomBinomial", BINOMIAL, |i| binomial(i, Source::Generator(Generator::of(i)))),
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

/// Advances the generator's state and returns the previous state.
fn skip(ctx: &KernelContext<'_>, generator: &Generator) -> Result<Philox> {
    generator.reserve(ctx, groups_to_skip(ctx)?)
}
