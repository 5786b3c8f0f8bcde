//! Loops that are compiled for several instruction sets; one set is chosen at run time, so that one binary runs on
//! every x86-64 processor with the widest vectors.

use std::sync::OnceLock;

/// A loop. `run` and everything that it calls in the loop must be `#[inline(always)]`, because only inlined code is
/// compiled with the vector instructions of the calling function.
pub(crate) trait Vector {
    type Output;
    fn run(self) -> Self::Output;
}

/// The x86-64 microarchitecture levels for which loops are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    Baseline,
    /// The level with AVX2, FMA and F16C.
    V3,
    /// The level with AVX-512 F, BW, CD, DQ and VL.
    V4,
}

/// Returns the highest of the levels that the processor supports.
pub(crate) fn level() -> Level {
    static LEVEL: OnceLock<Level> = OnceLock::new();
    *LEVEL.get_or_init(detect)
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Level {
    macro_rules! have {
        ($($feature:tt),*) => { true $(&& std::is_x86_feature_detected!($feature))* };
    }
    let v3 = have!("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "lzcnt", "movbe", "popcnt");
    let v4 = v3 && have!("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl");
    match (v3, v4) {
        (_, true) => Level::V4,
        (true, _) => Level::V3,
        _ => Level::Baseline,
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn detect() -> Level {
    Level::Baseline
}

/// Runs a loop with AVX2 if the processor has it. This function is for loops that are bound by memory bandwidth, which
/// wider vectors do not speed up.
#[inline]
pub(crate) fn vectorized<V: Vector>(work: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    if level() >= Level::V3 {
        // SAFETY: the processor has AVX2, FMA and F16C, because its level is at least V3.
        return unsafe { x86::v3(work) };
    }
    work.run()
}

/// Runs a loop with the widest vectors of the processor; for loops that compute much per element.
#[inline]
pub(crate) fn vectorized_wide<V: Vector>(work: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    match level() {
        // SAFETY: the processor has the features of V4, because `level` returned V4.
        Level::V4 => return unsafe { x86::v4(work) },
        // SAFETY: the processor has the features of V3, because `level` returned V3.
        Level::V3 => return unsafe { x86::v3(work) },
        Level::Baseline => {}
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;

    #[target_feature(enable = "avx,avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
    pub(crate) fn v3<V: Vector>(work: V) -> V::Output {
        work.run()
    }

    #[target_feature(enable = "avx,avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    pub(crate) fn v4<V: Vector>(work: V) -> V::Output {
        work.run()
    }
}
