//! What this process's kernel tables tell a placer.

use executor::{registered_kernels, supported_device_types};
use graph::Node;
use placer::Kernels;

/// The kernels that this program has, on whichever device.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelTables;

impl Kernels for KernelTables {
    fn priority(&self, device_type: &str, node: &Node) -> Option<i32> {
        supported_device_types(node).contains(&device_type).then_some(0)
    }

    fn registered(&self, op: &str) -> String {
        registered_kernels(op).trim_end().to_owned()
    }
}
