//! The kernel tables, by device type.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;
mod support;

pub use support::{kernel_priority, no_kernel, registered_kernels};

use crate::kernel::KernelDef;
use graph::{Node, Op, Role};
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// The device types that have a table.
#[cfg(feature = "cuda")]
pub const DEVICE_TYPES: &[&str] = &["CPU", "GPU"];
#[cfg(not(feature = "cuda"))]
pub const DEVICE_TYPES: &[&str] = &["CPU"];

/// The device types that this process can offer, which is what messages name: as a TensorFlow without CUDA, a process
/// that finds no GPU knows of the CPU alone.
pub fn offered_device_types() -> &'static [&'static str] {
    #[cfg(feature = "cuda")]
    if crate::cuda::are_present() {
        return DEVICE_TYPES;
    }
    &["CPU"]
}

/// The kernel of a device type for a node.
pub fn find(device_type: &str, node: &Node) -> Option<&'static KernelDef> {
    of_op(device_type, node.op.name()).iter().copied().find(|k| k.supports(node))
}

/// All kernels of a device type for an op.
pub fn of_op(device_type: &str, op: &str) -> &'static [&'static KernelDef] {
    let table = match device_type {
        "CPU" => cpu_table(),
        #[cfg(feature = "cuda")]
        "GPU" => gpu_table(),
        _ => return &[],
    };
    table.get(op).map_or(&[], Vec::as_slice)
}

/// The device types that can run an op with some of its types.
pub fn devices_of(op: &Op) -> Vec<&'static str> {
    let runs = |device_type: &&str| {
        op.role() != Role::Compute || of_op(device_type, op.name()).iter().any(|kernel| !kernel.is_absent)
    };
    DEVICE_TYPES.iter().copied().filter(runs).collect()
}

/// Whether a device type's kernel of chains has the op as a part of one.
pub(crate) fn has_chains_of(device_type: &str, op: &str) -> bool {
    match device_type {
        "CPU" => cpu::fused::has_strip(op),
        #[cfg(feature = "cuda")]
        "GPU" => cuda::fused::has_function(op),
        _ => false,
    }
}

type Table = FxHashMap<&'static str, Vec<&'static KernelDef>>;

fn cpu_table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| collect(cpu::FAMILIES))
}

#[cfg(feature = "cuda")]
fn gpu_table() -> &'static Table {
    static TABLE: OnceLock<Table> = OnceLock::new();
    TABLE.get_or_init(|| collect(cuda::FAMILIES))
}

fn collect(families: &'static [&'static [KernelDef]]) -> Table {
    let mut table = Table::default();
    for kernel in families.iter().flat_map(|family| family.iter()) {
        table.entry(kernel.op).or_default().push(kernel);
    }
    table
}
