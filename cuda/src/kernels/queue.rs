//! Queues of tensors in the GPU's memory, first in, first out: what is put in by one step while another computes. Batches are put
//! together and taken apart on the CPU, as are other orders, by queues there.

use super::host::same_as_cpu;
use device::kernel::{ALL_ARGUMENTS, KernelDef};

const HANDLE: &[&str] = &["handle"];

pub(super) const KERNELS: &[KernelDef] = &[
    same_as_cpu("FIFOQueueV2", &[], ALL_ARGUMENTS),
    same_as_cpu("QueueEnqueueV2", &[], HANDLE),
    same_as_cpu("QueueDequeueV2", &[], HANDLE),
    same_as_cpu("QueueCloseV2", &[], ALL_ARGUMENTS),
    same_as_cpu("QueueIsClosedV2", &[], ALL_ARGUMENTS),
    same_as_cpu("QueueSizeV2", &[], ALL_ARGUMENTS),
];
