//! Ops that are chains of others: of element-wise ones, one kernel that is made for the chain; a product with its bias
//! and its activation, as one call where the library has it.

mod elementwise;
mod functions;
mod product;

pub(in crate::kernels) use functions::has_function;

use super::normalization;
use device::kernel::KernelDef;
use graph::DType::{BFloat16, Float, Half};
use kernels::numeric::dispatch::FLOATS;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::enqueuing("_FusedElementwise", &[("T", FLOATS)], elementwise::make),
    KernelDef::enqueuing("_FusedBatchNormEx", normalization::MIXED, normalization::forward_then),
    KernelDef::enqueuing("_FusedMatMul", &[("T", &[BFloat16, Half, Float])], product::make),
];
