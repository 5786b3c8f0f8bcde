//! The kernel table of this program, for the placer.

use executor::{kernel_priority, registered_kernels};
use graph::Node;
use placer::Kernels;

/// The kernels of this program, on all device types.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelTables;

impl Kernels for KernelTables {
    fn priority(&self, device_type: &str, node: &Node) -> Option<i32> {
        kernel_priority(device_type, node)
    }

    fn registered(&self, op: &str) -> String {
        registered_kernels(op).trim_end().to_owned()
    }
}
