//! Stack ops; a stack lives as long as its step. Pushed values stay in the GPU's memory, except values of
//! `int32`.

use super::host::same_as_cpu;
use super::support::COPIED;
use device::kernel::KernelDef;
use graph::DType;

const HANDLE: &[&str] = &["handle"];
const INT32: &[DType] = &[DType::Int32];

pub(super) const KERNELS: &[KernelDef] = &[
    same_as_cpu("StackV2", &[], &["max_size", "handle"]),
    same_as_cpu("Stack", &[], HANDLE),
    same_as_cpu("StackPushV2", &[("T", COPIED)], HANDLE),
    same_as_cpu("StackPush", &[("T", COPIED)], HANDLE),
    same_as_cpu("StackPushV2", &[("T", INT32)], &["handle", "elem", "output"]),
    same_as_cpu("StackPush", &[("T", INT32)], &["handle", "elem", "output"]),
    same_as_cpu("StackPopV2", &[("elem_type", COPIED)], HANDLE),
    same_as_cpu("StackPop", &[("elem_type", COPIED)], HANDLE),
    same_as_cpu("StackPopV2", &[("elem_type", INT32)], &["handle", "elem"]),
    same_as_cpu("StackPop", &[("elem_type", INT32)], &["handle", "elem"]),
    same_as_cpu("StackCloseV2", &[], HANDLE),
    same_as_cpu("StackClose", &[], HANDLE),
];
