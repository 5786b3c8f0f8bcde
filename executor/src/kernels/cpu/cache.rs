//! The caches of the machine, as far as loops are cut by them.

use std::sync::OnceLock;

/// Bytes of a line.
pub(super) const LINE: usize = 64;

/// Elements of `f32` in a line: so far apart, what would fall into the same sets falls into the next ones.
pub(super) const FLOATS: usize = LINE / size_of::<f32>();

/// Rows that lie so many bytes apart, or a multiple of it, fall into the same few sets of the first cache.
pub(super) const ALIASES: usize = 2048;

/// Bytes of a core's second-level cache where the processor does not say.
const USUAL: usize = 512 << 10;

/// Bytes of a core's second-level cache.
pub(super) fn second_level() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| reported().filter(|size| *size > 0).unwrap_or(USUAL))
}

/// Processors of AMD and Intel say it in KiB, in the upper half of a word.
#[cfg(target_arch = "x86_64")]
fn reported() -> Option<usize> {
    use std::arch::x86_64::__cpuid;
    const EXTENDED: u32 = 0x8000_0000;
    const CACHES: u32 = 0x8000_0006;
    (__cpuid(EXTENDED).eax >= CACHES).then(|| ((__cpuid(CACHES).ecx >> 16) as usize) << 10)
}

#[cfg(not(target_arch = "x86_64"))]
fn reported() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_level_is_of_a_size_that_there_is() {
        assert!((128 << 10..=64 << 20).contains(&second_level()), "{} bytes", second_level());
    }
}
