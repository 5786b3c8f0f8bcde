//! The kernel tables of this process, and the questions that a placer and a master ask of them.

use crate::gpus;
use device::kernel_table::{KernelTable, registered_kernels};
use executor::HostEvaluator;
use graph::Node;
use placer::Kernels;
use std::sync::Arc;

/// The kernel tables of this program, whether the machine has devices of the type or not.
pub fn kernel_tables() -> Vec<&'static KernelTable> {
    std::iter::once(kernels::table()).chain(gpus::kernel_table()).collect()
}

/// The kernel table of a device type, if this program has one.
pub fn kernel_table(device_type: &str) -> Option<&'static KernelTable> {
    kernel_tables().into_iter().find(|table| table.device_type == device_type)
}

/// The kernels of an op on the device types that this process can offer, one a line, as messages list them: as a TensorFlow
/// without CUDA, a process that finds no GPU knows of the CPU alone.
pub fn offered_kernels(op: &str) -> String {
    let has_gpus =
        gpus::find_gpus(&device::gpu_options::GpuSelection::All).is_ok_and(|found| !found.is_empty());
    let tables = kernel_tables().into_iter().filter(|table| table.device_type == "CPU" || has_gpus);
    registered_kernels(&tables.collect::<Vec<_>>(), op)
}

/// An evaluator of nodes with constant inputs, on the CPU's kernels.
pub fn host_evaluator() -> HostEvaluator {
    HostEvaluator::new(Arc::new(kernels::lone_device()))
}

/// The kernels of this program, as a placer asks for them.
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
