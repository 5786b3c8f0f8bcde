//! Loops compiled for the widest vectors that the machine has: chosen at run time, so that one binary runs
//! everywhere. Also the polynomials that replace calls of the C library in such loops.

use std::sync::OnceLock;

/// A loop. `run` must be `#[inline(always)]`, as must everything that it calls in the loop: only then is it
/// compiled with the vector instructions of the function that it ends up in.
pub(crate) trait Vector {
    type Output;
    fn run(self) -> Self::Output;
}

/// Instruction sets as x86-64 groups them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Level {
    Baseline,
    /// AVX2, FMA, F16C.
    V3,
    /// AVX-512 F, BW, CD, DQ, VL.
    V4,
}

pub(super) fn level() -> Level {
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

/// Runs a loop with AVX2 where there is AVX2: for loops that memory bounds, which wider vectors do not help.
#[inline]
pub(crate) fn vectorized<V: Vector>(work: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    if level() >= Level::V3 {
        // SAFETY: the level says that the processor has these features.
        return unsafe { x86::v3(work) };
    }
    work.run()
}

/// Runs a loop with the widest vectors: for loops that compute much for each element.
#[inline]
pub(crate) fn vectorized_wide<V: Vector>(work: V) -> V::Output {
    #[cfg(target_arch = "x86_64")]
    match level() {
        // SAFETY: the level says that the processor has these features.
        Level::V4 => return unsafe { x86::v4(work) },
        // SAFETY: as above.
        Level::V3 => return unsafe { x86::v3(work) },
        Level::Baseline => {}
    }
    work.run()
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::Vector;

    #[target_feature(enable = "avx,avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
    pub(super) fn v3<V: Vector>(work: V) -> V::Output {
        work.run()
    }

    #[target_feature(enable = "avx,avx2,bmi1,bmi2,f16c,fma,lzcnt,movbe,popcnt")]
    #[target_feature(enable = "avx512f,avx512bw,avx512cd,avx512dq,avx512vl")]
    pub(super) fn v4<V: Vector>(work: V) -> V::Output {
        work.run()
    }
}
