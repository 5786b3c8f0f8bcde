//! Distinct elements. The kernels are the CPU's, because the output's shape depends on the elements.

use super::host::same_as_cpu;
use device::kernel::{ALL_ARGUMENTS, KernelDef};
use graph::DType::{self, *};

/// Dtypes whose elements can be compared.
const DISTINCT: &[DType] =
    &[Float, Double, Half, BFloat16, Bool, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64];

pub(super) const KERNELS: &[KernelDef] = &[
    same_as_cpu("Unique", &[("T", DISTINCT)], ALL_ARGUMENTS),
    same_as_cpu("UniqueV2", &[("T", DISTINCT)], ALL_ARGUMENTS),
    same_as_cpu("UniqueWithCounts", &[("T", DISTINCT)], ALL_ARGUMENTS),
    same_as_cpu("UniqueWithCountsV2", &[("T", DISTINCT)], ALL_ARGUMENTS),
];
