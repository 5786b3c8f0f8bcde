//! Kernels of pseudo-random numbers: Philox streams that give the same numbers as TensorFlow for the same seeds. A
//! stateful kernel keeps its position in its stream from step to step; the numbers do not depend on the number of
//! threads.

mod binomial;
mod bounded;
pub(super) mod distribution;
mod draw;
mod fill;
mod gamma;
mod index_shuffle;
mod poisson;
mod shuffle;
mod sobol;
mod words;

pub(super) use self::binomial::{BINOMIAL, binomial};
pub(super) use self::bounded::{bounded, bounded_by_batch};
pub(super) use self::fill::{bits, integers, normal, truncated, uniform};
pub(super) use self::gamma::gamma;
pub(super) use self::index_shuffle::{SHUFFLED, index_shuffle};
pub(super) use self::poisson::poisson;
pub(super) use self::shuffle::{multinomial, shuffle};
use self::sobol::sobol;
pub(super) use self::words::{WordStream, Words};

use crate::numeric::dispatch::{FLOATS, INDEX, WORDS};
use crate::plan::random::{Source, Stream};
use device::kernel::KernelDef;
use graph::DType::{self, *};

const FLOAT: &[(&str, &[DType])] = &[("dtype", FLOATS), ("T", INDEX)];
/// The dtypes of gamma and truncated normal samples and their parameters, and of the samples of RandomPoisson.
pub(super) const DRAWN: &[DType] = &[Half, Float, Double];
/// The dtypes of Poisson rates and of the numbers of events drawn.
pub(super) const COUNTED: &[DType] = &[Half, Float, Double, Int32, Int64];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of("RandomUniform", FLOAT, |i| uniform(i, Source::of_node(i)?))
    },
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of("RandomStandardNormal", FLOAT, |i| normal(i, Source::of_node(i)?))
    },
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of("TruncatedNormal", FLOAT, |i| truncated(i, Source::of_node(i)?))
    },
    KernelDef {
        host_memory: &["shape", "minval", "maxval"],
        ..KernelDef::of("RandomUniformInt", &[("Tout", INDEX), ("T", INDEX)], |i| {
            integers(i, Source::of_node(i)?)
        })
    },
    KernelDef {
        host_memory: &["shape"],
        // Two seeds of 0 request unpredictable seeds.
        ..KernelDef::of("NonDeterministicInts", &[("dtype", WORDS), ("shape_dtype", INDEX)], |i| {
            bits(i, Source::Node(Stream::seeded([0, 0])))
        })
    },
    KernelDef::of("RandomShuffle", &[], |i| shuffle(Source::of_node(i)?)),
    KernelDef::of("Multinomial", &[("T", FLOATS), ("output_dtype", INDEX)], |i| {
        multinomial(i, Source::of_node(i)?)
    }),
    KernelDef::of("SobolSample", &[("dtype", &[Float])], |_| sobol::<f32>()),
    KernelDef::of("SobolSample", &[("dtype", &[Double])], |_| sobol::<f64>()),
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of("RandomGamma", &[("T", DRAWN), ("S", INDEX)], |i| gamma(i, Source::of_node(i)?))
    },
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of("RandomPoisson", &[("dtype", DRAWN), ("S", INDEX)], |i| {
            poisson(i, Source::of_node(i)?)
        })
    },
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of("RandomPoissonV2", &[("R", COUNTED), ("dtype", COUNTED), ("S", INDEX)], |i| {
            poisson(i, Source::of_node(i)?)
        })
    },
    KernelDef {
        host_memory: &["shape"],
        ..KernelDef::of("ParameterizedTruncatedNormal", &[("dtype", DRAWN), ("T", INDEX)], |i| {
            bounded_by_batch(i, Source::of_node(i)?)
        })
    },
];

#[cfg(test)]
mod tests;
