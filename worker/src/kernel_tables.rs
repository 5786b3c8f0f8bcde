//! What this process's kernel tables tell a placer.

use executor::kernel_table::registered_kernels;
use executor::kernels;
use graph::Node;
use placer::Kernels;

/// The kernels that this program has, on whichever device.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelTables;

impl Kernels for KernelTables {
    fn priority(&self, device_type: &str, node: &Node) -> Option<i32> {
        kernels::table_of(device_type)?.priority(node)
    }

    fn registered(&self, op: &str) -> String {
        registered_kernels(&kernels::offered_tables(), op).trim_end().to_owned()
    }
}
