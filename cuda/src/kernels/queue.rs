//! FIFO queues of tensors in the GPU's memory, which one step fills while another computes. Batched enqueues
//! and dequeues, and queues that are not FIFO, run on the CPU.

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
