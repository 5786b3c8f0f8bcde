//! Fused ops: element-wise chains, as one kernel that is generated for the chain, and a product with its bias
//! and activation, as one library call if possible.

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
