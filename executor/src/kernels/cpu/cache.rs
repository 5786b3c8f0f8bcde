//! The caches of the machine, as far as loops are cut by them.

use std::sync::OnceLock;

/// Bytes of a line.
pub(super) const LINE: usize = 64;

/// Elements of `f32` in a line: so far apart, what would fall into the same sets falls into the next ones.
pub(super) const FLOATS: usize = LINE / size_of::<f32>();

/// What lies so many bytes apart, or a multiple of it, falls into the same few sets of the first cache.
const ALIASES: usize = 2048;

/// Lines of a set from which on there is room for those of a block's rows, and for what else is read meanwhile.
const ENOUGH: usize = 12;

/// Whether neither of lines so many bytes apart stays in the first cache while the others are read.
pub(super) fn aliases(bytes: usize) -> bool {
    bytes.is_multiple_of(ALIASES)
}

/// Whether it costs to read some rows at the same time that are so many bytes apart.
pub(super) fn rows_alias(bytes: usize) -> bool {
    aliases(bytes) && !has_many_ways()
}

/// Whether sets of the first cache have room for many lines.
pub(super) fn has_many_ways() -> bool {
    first_level_ways() >= ENOUGH
}

/// Bytes of a core's second-level cache where the processor does not say.
const USUAL: usize = 512 << 10;

/// Lines of a set of a core's first-level cache; 0 if the processor does not say.
fn first_level_ways() -> usize {
    static WAYS: OnceLock<usize> = OnceLock::new();
    *WAYS.get_or_init(|| reported_ways().unwrap_or_default())
}

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

/// Intel's processors tell about their caches in one leaf, AMD's in another, in the same form.
#[cfg(target_arch = "x86_64")]
fn reported_ways() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const KIND: u32 = 0x1f;
    let leaves = [4, 0x8000_001d].into_iter().filter(|leaf| __cpuid(leaf & 0x8000_0000).eax >= *leaf);
    let data = leaves.map(|leaf| __cpuid_count(leaf, 0)).find(|said| said.eax & KIND != 0);
    data.map(|said| (said.ebx >> 22) as usize + 1)
}

#[cfg(not(target_arch = "x86_64"))]
fn reported() -> Option<usize> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn reported_ways() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_level_has_ways_that_there_are() {
        assert!(first_level_ways() <= 64, "{} ways", first_level_ways());
    }

    #[test]
    fn the_second_level_is_of_a_size_that_there_is() {
        assert!((128 << 10..=64 << 20).contains(&second_level()), "{} bytes", second_level());
    }
}
