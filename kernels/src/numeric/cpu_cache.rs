//! Sizes of the processor's caches, from which loops compute their block sizes.

use std::sync::OnceLock;

/// Bytes of a cache line.
pub(crate) const LINE: usize = 64;

/// Number of `f32` elements in a cache line. Rows that are shifted by this many elements fall into neighbouring sets of
/// a cache instead of the same sets.
pub(crate) const FLOATS_PER_LINE: usize = LINE / size_of::<f32>();

/// Addresses whose distance is a multiple of this many bytes fall into the same few sets of the first-level cache.
const ALIAS_DISTANCE: usize = 2048;

/// Minimum number of lines per set with which the first-level cache can hold rows that fall into the same sets, and
/// other data besides.
const MANY_WAYS: usize = 12;

/// Returns whether rows that lie `bytes` apart fall into the same few sets of the first-level cache.
pub(crate) fn aliases(bytes: usize) -> bool {
    bytes.is_multiple_of(ALIAS_DISTANCE)
}

/// Returns whether reading several rows at once that lie `bytes` apart is slow on this processor, because they evict
/// each other from the first-level cache.
pub(crate) fn rows_alias(bytes: usize) -> bool {
    aliases(bytes) && !has_many_ways()
}

/// Returns whether the sets of the first-level cache have at least [`MANY_WAYS`] lines.
pub(crate) fn has_many_ways() -> bool {
    first_level_ways() >= MANY_WAYS
}

/// Bytes assumed for a core's second-level cache if the processor does not report its size.
const DEFAULT_SECOND_LEVEL: usize = 512 << 10;

/// Returns the lines per set of a core's first-level cache; 0 if the processor does not report them.
fn first_level_ways() -> usize {
    static WAYS: OnceLock<usize> = OnceLock::new();
    *WAYS.get_or_init(|| reported_first_level_ways().unwrap_or_default())
}

/// Returns the bytes of a core's second-level cache.
pub(crate) fn second_level() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| reported_second_level().filter(|size| *size > 0).unwrap_or(DEFAULT_SECOND_LEVEL))
}

/// Returns the size of the second-level cache in bytes. Processors of AMD and Intel report it in KiB, in the upper half
/// of a 32-bit word.
#[cfg(target_arch = "x86_64")]
fn reported_second_level() -> Option<usize> {
    use std::arch::x86_64::__cpuid;
    const EXTENDED: u32 = 0x8000_0000;
    const CACHES: u32 = 0x8000_0006;
    (__cpuid(EXTENDED).eax >= CACHES).then(|| ((__cpuid(CACHES).ecx >> 16) as usize) << 10)
}

/// Returns the lines per set of the first-level cache. Intel's and AMD's processors report the number in the same
/// format, in different CPUID leaves.
#[cfg(target_arch = "x86_64")]
fn reported_first_level_ways() -> Option<usize> {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const KIND: u32 = 0x1f;
    let leaves = [4, 0x8000_001d].into_iter().filter(|leaf| __cpuid(leaf & 0x8000_0000).eax >= *leaf);
    let data = leaves.map(|leaf| __cpuid_count(leaf, 0)).find(|leaf| leaf.eax & KIND != 0);
    data.map(|leaf| (leaf.ebx >> 22) as usize + 1)
}

#[cfg(not(target_arch = "x86_64"))]
fn reported_second_level() -> Option<usize> {
    None
}

#[cfg(not(target_arch = "x86_64"))]
fn reported_first_level_ways() -> Option<usize> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_level_associativity_is_plausible() {
        assert!(first_level_ways() <= 64, "{} ways", first_level_ways());
    }

    #[test]
    fn second_level_size_is_plausible() {
        assert!((128 << 10..=64 << 20).contains(&second_level()), "{} bytes", second_level());
    }
}
