//! The kernels, by device type.

pub mod cpu;
#[cfg(feature = "cuda")]
pub mod cuda;

use crate::kernel_table::KernelTable;

/// The kernel tables of this program, whether the machine has devices of the type or not.
pub fn tables() -> Vec<&'static KernelTable> {
    #[cfg(feature = "cuda")]
    return vec![cpu::table(), cuda::table()];
    #[cfg(not(feature = "cuda"))]
    vec![cpu::table()]
}

/// The kernel table of a device type, if this program has one.
pub fn table_of(device_type: &str) -> Option<&'static KernelTable> {
    tables().into_iter().find(|table| table.device_type == device_type)
}

/// The tables of the device types that this process can offer, which messages name: as a TensorFlow without CUDA, a process
/// that finds no GPU knows of the CPU alone.
pub fn offered_tables() -> Vec<&'static KernelTable> {
    #[cfg(feature = "cuda")]
    if crate::cuda::are_present() {
        return tables();
    }
    vec![cpu::table()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{Error, Result};
    use crate::kernel_table::no_kernel;
    use graph::{DType, Node};

    #[test]
    fn a_node_without_a_kernel_is_told_which_there_are() -> Result<()> {
        let op =
            graph::ops::lookup("Maximum").ok_or_else(|| Error::internal("Maximum is not in the table"))?;
        let mut node = Node::new("a/b", op).with_attr("T", DType::Float);
        let supported = |node: &Node| tables().iter().filter_map(|table| table.priority(node)).count();
        assert_eq!(supported(&node), tables().len());
        node.attrs.set("T", DType::String);
        assert_eq!(supported(&node), 0);
        let error = no_kernel(&offered_tables(), &node);
        assert_eq!(error.code(), graph::Code::InvalidArgument);
        let start = "No OpKernel was registered to support Op 'Maximum' used by {{node a/b}} with these attrs: \
                     [T=DT_STRING]\nRegistered devices: [CPU]\nRegistered kernels:\n  device='CPU'; T in \
                     [DT_FLOAT, DT_DOUBLE";
        assert!(error.to_string().starts_with(start), "{error}");
        assert!(error.to_string().ends_with("\n\t [[a/b]]"), "{error}");
        Ok(())
    }
}
