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

/// The device types that have a kernel table in this build.
#[cfg(feature = "cuda")]
pub const DEVICE_TYPES: &[&str] = &["CPU", "GPU"];
#[cfg(not(feature = "cuda"))]
pub const DEVICE_TYPES: &[&str] = &["CPU"];

/// Returns the device types that this process can offer and that error messages list. A process that finds no GPU
/// lists only the CPU, like a TensorFlow built without CUDA.
pub fn offered_device_types() -> &'static [&'static str] {
    #[cfg(feature = "cuda")]
    if crate::cuda::are_present() {
        return DEVICE_TYPES;
    }
    &["CPU"]
}

/// Returns the kernel of a device type that supports the node's attributes; `None` if there is none.
pub fn find(device_type: &str, node: &Node) -> Option<&'static KernelDef> {
    of_op(device_type, node.op.name()).iter().copied().find(|k| k.supports(node))
}

/// Returns all kernels of a device type for an op.
pub fn of_op(device_type: &str, op: &str) -> &'static [&'static KernelDef] {
    let table = match device_type {
        "CPU" => cpu_table(),
        #[cfg(feature = "cuda")]
        "GPU" => gpu_table(),
        _ => return &[],
    };
    table.get(op).map_or(&[], Vec::as_slice)
}

/// Returns the device types that can run the op with at least one combination of its dtypes.
pub fn devices_of(op: &Op) -> Vec<&'static str> {
    let runs = |device_type: &&str| {
        op.role() != Role::Compute || of_op(device_type, op.name()).iter().any(|kernel| !kernel.is_absent)
    };
    DEVICE_TYPES.iter().copied().filter(runs).collect()
}

/// Returns whether the device type's kernel of fused chains supports the op as a link of a chain.
pub(crate) fn has_chains_of(device_type: &str, op: &str) -> bool {
    match device_type {
        "CPU" => cpu::fused::has_strip(op),
        #[cfg(feature = "cuda")]
        "GPU" => cuda::fused::has_function(op),
        _ => false,
    }
}

/// The kernels of one device type, by op name.
type KernelTable = FxHashMap<&'static str, Vec<&'static KernelDef>>;

fn cpu_table() -> &'static KernelTable {
    static TABLE: OnceLock<KernelTable> = OnceLock::new();
    TABLE.get_or_init(|| collect(cpu::FAMILIES))
}

#[cfg(feature = "cuda")]
fn gpu_table() -> &'static KernelTable {
    static TABLE: OnceLock<KernelTable> = OnceLock::new();
    TABLE.get_or_init(|| collect(cuda::FAMILIES))
}

fn collect(families: &'static [&'static [KernelDef]]) -> KernelTable {
    let mut table = KernelTable::default();
    for kernel in families.iter().flat_map(|family| family.iter()) {
        table.entry(kernel.op).or_default().push(kernel);
    }
    table
}
