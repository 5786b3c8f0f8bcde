//! Kernels of pseudo-random numbers whose inputs are seeds, or a key and a counter: equal inputs give equal numbers.

use super::random::{
    self, BINOMIAL, COUNTED, DRAWN, SHUFFLED, binomial, bits, bounded, gamma, index_shuffle, integers,
    multinomial, normal, poisson, truncated, uniform,
};
use crate::numeric::dispatch::{FLOATS, INDEX, WORDS};
use crate::numeric::philox::Philox;
use crate::plan::random::{Source, seeds};
use device::Result;
use device::kernel::{Kernel, KernelDef};
use graph::{DType, Tensor};

type TypeConstraints = &'static [(&'static str, &'static [DType])];

/// Type constraints of ops that take two seeds.
const SEEDED: TypeConstraints = &[("dtype", FLOATS), ("T", INDEX), ("Tseed", INDEX)];
const SEEDED_INTEGERS: TypeConstraints = &[("dtype", INDEX), ("T", INDEX), ("Tseed", INDEX)];
const SEEDED_BITS: TypeConstraints = &[("dtype", WORDS), ("T", INDEX), ("Tseed", WORDS)];
/// Type constraints of ops that take a key.
const KEYED: TypeConstraints = &[("dtype", FLOATS), ("Tshape", INDEX)];
const KEYED_INTEGERS: TypeConstraints = &[("dtype", INDEX), ("Tshape", INDEX)];
const KEYED_BITS: TypeConstraints = &[("dtype", WORDS), ("Tshape", INDEX)];

const PHILOX: i32 = 1;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("StatelessRandomUniform", SEEDED, |i| uniform(i, Source::Seeds(1))),
    KernelDef::of("StatelessRandomNormal", SEEDED, |i| normal(i, Source::Seeds(1))),
    KernelDef::of("StatelessTruncatedNormal", SEEDED, |i| truncated(i, Source::Seeds(1))),
    KernelDef::of("StatelessRandomUniformInt", SEEDED_INTEGERS, |i| integers(i, Source::Seeds(1))),
    KernelDef::of("StatelessRandomUniformFullInt", SEEDED_BITS, |i| bits(i, Source::Seeds(1))),
    KernelDef::of("StatelessMultinomial", &[("T", FLOATS), ("output_dtype", INDEX), ("Tseed", INDEX)], |i| {
        multinomial(i, Source::Seeds(2))
    }),
    KernelDef::of("StatelessRandomGammaV2", &[("dtype", DRAWN), ("T", INDEX), ("Tseed", INDEX)], |i| {
        gamma(i, Source::Seeds(1))
    }),
    KernelDef::of(
        "StatelessRandomPoisson",
        &[("Rtype", COUNTED), ("dtype", COUNTED), ("T", INDEX), ("Tseed", INDEX)],
        |i| poisson(i, Source::Seeds(1)),
    ),
    KernelDef::of("StatelessRandomBinomial", BINOMIAL, |i| binomial(i, Source::Seeds(1))),
    KernelDef::of(
        "StatelessParameterizedTruncatedNormal",
        &[("dtype", DRAWN), ("S", INDEX), ("Tseed", INDEX)],
        |i| bounded(i, Source::Seeds(1)),
    ),
    KernelDef::of("RandomIndexShuffle", SHUFFLED, index_shuffle),
    KernelDef::of("StatelessRandomUniformV2", KEYED, |i| uniform(i, Source::Key(1))),
    KernelDef::of("StatelessRandomNormalV2", KEYED, |i| normal(i, Source::Key(1))),
    KernelDef::of("StatelessTruncatedNormalV2", KEYED, |i| truncated(i, Source::Key(1))),
    KernelDef::of("StatelessRandomUniformIntV2", KEYED_INTEGERS, |i| integers(i, Source::Key(1))),
    KernelDef::of("StatelessRandomUniformFullIntV2", KEYED_BITS, |i| bits(i, Source::Key(1))),
    KernelDef::of("StatelessRandomGammaV3", &[("dtype", DRAWN), ("shape_dtype", INDEX)], |i| {
        gamma(i, Source::Key(1))
    }),
    KernelDef::of("StatelessShuffle", &[], |_| random::shuffle(Source::Key(1))),
    KernelDef::of("StatelessRandomGetKeyCounter", &[("Tseed", INDEX)], |_| key_and_counter(false)),
    KernelDef::of("StatelessRandomGetKeyCounterAlg", &[("Tseed", INDEX)], |_| key_and_counter(true)),
    KernelDef::of("StatelessRandomGetAlg", &[], |_| {
        Kernel::sync(|ctx| {
            ctx.set_output(0, Tensor::scalar(PHILOX));
            Ok(())
        })
    }),
];

/// Makes the kernel that converts two seeds to a key and a counter, the inputs of the other ops of this family.
fn key_and_counter(and_algorithm: bool) -> Result<Kernel> {
    Kernel::sync(move |ctx| {
        let stream = Philox::scrambled(seeds(ctx.input(0)?)?);
        ctx.set_output(0, Tensor::vector(&[stream.key()])?);
        ctx.set_output(1, Tensor::vector(&stream.counter())?);
        if and_algorithm {
            ctx.set_output(2, Tensor::scalar(PHILOX));
        }
        Ok(())
    })
}
