//! The kernel tables, by device type.

pub mod cpu;
mod support;

pub use support::{no_kernel, registered_kernels, supported_device_types};

use crate::kernel::KernelDef;
use graph::{Node, Op, Role};
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// The device types that have a table.
pub const DEVICE_TYPES: &[&str] = &["CPU"];

/// The kernel of a device type for a node.
pub fn find(device_type: &str, node: &Node) -> Option<&'static KernelDef> {
    of_op(device_type, node.op.name()).iter().copied().find(|k| k.supports(node))
}

/// All kernels of a device type for an op.
pub fn of_op(device_type: &str, op: &str) -> &'static [&'static KernelDef] {
    match device_type {
        "CPU" => table().get(op).map_or(&[], Vec::as_slice),
        _ => &[],
    }
}

/// The device types that can run an op with some of its types.
pub fn devices_of(op: &Op) -> Vec<&'static str> {
    let runs = |device_type: &&str| {
        op.role() != Role::Compute || of_op(device_type, op.name()).iter().any(|kernel| !kernel.is_absent)
    };
    DEVICE_TYPES.iter().copied().filter(runs).collect()
}

type Table = FxHashMap<&'static str, Vec<&'static KernelDef>>;

fn table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| {
        let mut table = Table::default();
        for kernel in cpu::FAMILIES.iter().flat_map(|family| family.iter()) {
            table.entry(kernel.op).or_default().push(kernel);
        }
        table
    })
}
