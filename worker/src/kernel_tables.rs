//! The kernel tables of this process, as the placer and the master look kernels up in them.

use crate::gpus;
use device::kernel_table::{KernelTable, registered_kernels};
use executor::HostEvaluator;
use graph::Node;
use placer::Kernels;
use std::sync::Arc;

/// Returns the kernel tables of all device types that this program is built for, even if the machine has no
/// such device.
pub fn kernel_tables() -> Vec<&'static KernelTable> {
    std::iter::once(kernels::table()).chain(gpus::kernel_table()).collect()
}

/// Returns the kernel table of a device type; `None` if this program is not built for it.
pub fn kernel_table(device_type: &str) -> Option<&'static KernelTable> {
    kernel_tables().into_iter().find(|table| table.device_type == device_type)
}

/// Returns the list of an op's kernels for error messages, one a line. A process that finds no GPU lists only
/// CPU kernels, like a TensorFlow without CUDA.
pub fn offered_kernels(op: &str) -> String {
    let has_gpus =
        gpus::find_gpus(&device::gpu_options::GpuSelection::All).is_ok_and(|found| !found.is_empty());
    let tables = kernel_tables().into_iter().filter(|table| table.device_type == "CPU" || has_gpus);
    registered_kernels(&tables.collect::<Vec<_>>(), op)
}

/// Returns an evaluator of nodes with constant inputs, which runs CPU kernels.
pub fn host_evaluator() -> HostEvaluator {
    HostEvaluator::new(Arc::new(kernels::lone_device()))
}

/// The kernels of this program, as the placer looks them up: by device type and node.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelTables;

impl Kernels for KernelTables {
    fn priority(&self, device_type: &str, node: &Node) -> Option<i32> {
        kernel_table(device_type)?.priority(node)
    }

    fn registered(&self, op: &str) -> String {
        offered_kernels(op).trim_end().to_owned()
    }
}
