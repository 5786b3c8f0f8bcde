//! Staging areas: tensors in the GPU's memory that one step uploads while another computes. Tensors without a
//! device representation stay on the host.

use super::host::same_as_cpu;
use device::kernel::{ALL_ARGUMENTS, KernelDef};

const PLACES: &[&str] = &["key", "indices"];

pub(super) const KERNELS: &[KernelDef] = &[
    same_as_cpu("Stage", &[], &[]),
    same_as_cpu("Unstage", &[], &[]),
    same_as_cpu("StagePeek", &[], &["index"]),
    same_as_cpu("StageSize", &[], ALL_ARGUMENTS),
    same_as_cpu("StageClear", &[], ALL_ARGUMENTS),
    same_as_cpu("MapStage", &[], PLACES),
    same_as_cpu("OrderedMapStage", &[], PLACES),
    same_as_cpu("MapPeek", &[], PLACES),
    same_as_cpu("OrderedMapPeek", &[], PLACES),
    same_as_cpu("MapUnstage", &[], PLACES),
    same_as_cpu("OrderedMapUnstage", &[], PLACES),
    same_as_cpu("MapUnstageNoKey", &[], PLACES),
    same_as_cpu("OrderedMapUnstageNoKey", &[], PLACES),
    same_as_cpu("MapSize", &[], ALL_ARGUMENTS),
    same_as_cpu("OrderedMapSize", &[], ALL_ARGUMENTS),
    same_as_cpu("MapIncompleteSize", &[], ALL_ARGUMENTS),
    same_as_cpu("OrderedMapIncompleteSize", &[], ALL_ARGUMENTS),
    same_as_cpu("MapClear", &[], ALL_ARGUMENTS),
    same_as_cpu("OrderedMapClear", &[], ALL_ARGUMENTS),
];
