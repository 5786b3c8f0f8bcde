//! Which device types can run a node, and the error for a node that none can run.

use super::{DEVICE_TYPES, find, of_op, offered_device_types};
use crate::error::Error;
use crate::kernel::KernelDef;
use graph::{AttrList, AttrValue, DType, Node, Role};
use std::fmt::Write;

/// Returns the priority of a device type's kernel for the node; `None` if the device type has no kernel for it. Ops
/// that the executor carries out itself run on all device types, with priority 0.
pub fn kernel_priority(device_type: &str, node: &Node) -> Option<i32> {
    match node.op.role() {
        Role::Compute => find(device_type, node).map(|kernel| kernel.priority),
        _ => DEVICE_TYPES.contains(&device_type).then_some(0),
    }
}

/// Returns the `InvalidArgument` error for a node that no device type can run: it lists the node's attributes and the
/// registered kernels of its op.
pub fn no_kernel(node: &Node) -> Error {
    let mut attrs = String::new();
    for (name, value) in node.attrs.iter().filter(|(name, _)| !name.starts_with('_')) {
        let separator = if attrs.is_empty() { "" } else { ", " };
        let _ = write!(attrs, "{separator}{name}={}", attr_text(value));
    }
    let kernels = registered_kernels(node.op.name());
    let message = format!(
        "No OpKernel was registered to support Op '{}' used by {{{{node {}}}}} with these attrs: [{attrs}]\n\
         Registered devices: [{}]\nRegistered kernels:\n{kernels}",
        node.op.name(),
        node.name,
        offered_device_types().join(", "),
    );
    Error::invalid(message).at_node(&node.name)
}

/// Returns the kernels of an op on the device types that this process can offer, one per line, in the form used by
/// error messages.
pub fn registered_kernels(op: &str) -> String {
    let mut kernels = String::new();
    for device_type in offered_device_types() {
        for kernel in of_op(device_type, op) {
            let _ = writeln!(kernels, "  device='{device_type}'{}", constraints(kernel));
        }
    }
    if kernels.is_empty() {
        kernels.push_str("  <no registered kernels>\n");
    }
    kernels
}

fn constraints(kernel: &KernelDef) -> String {
    kernel.types.iter().fold(String::new(), |mut out, (attr, types)| {
        let _ = write!(out, "; {attr} in [{}]", types_text(types));
        out
    })
}

fn types_text(types: &[DType]) -> String {
    types.iter().map(|t| type_text(*t)).collect::<Vec<_>>().join(", ")
}

fn type_text(dtype: DType) -> String {
    format!("DT_{}", dtype.name().to_uppercase())
}

fn attr_text(value: &AttrValue) -> String {
    match value {
        AttrValue::Str(s) => format!("{:?}", String::from_utf8_lossy(s)),
        AttrValue::Int(i) => i.to_string(),
        AttrValue::Float(f) => f.to_string(),
        AttrValue::Bool(b) => b.to_string(),
        AttrValue::Type(t) => type_text(*t),
        AttrValue::Shape(s) => s.to_string(),
        AttrValue::Tensor(t) => format!("Tensor<type: {} shape: {}>", t.dtype(), t.shape()),
        AttrValue::Placeholder(name) => format!("${name}"),
        AttrValue::Func(f) => format!("{}[]", f.name),
        AttrValue::List(AttrList::Type(types)) => format!("[{}]", types_text(types)),
        AttrValue::List(AttrList::Int(values)) => {
            format!("[{}]", values.iter().map(i64::to_string).collect::<Vec<_>>().join(", "))
        }
        AttrValue::List(list) => format!("[{} values]", list.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Result;

    #[test]
    fn missing_kernel_error_lists_the_registered_kernels() -> Result<()> {
        let op =
            graph::ops::lookup("Maximum").ok_or_else(|| Error::internal("Maximum is not in the table"))?;
        let mut node = Node::new("a/b", op).with_attr("T", DType::Float);
        let supported = |node: &Node| DEVICE_TYPES.iter().filter_map(|d| kernel_priority(d, node)).count();
        assert_eq!(supported(&node), DEVICE_TYPES.len());
        node.attrs.set("T", DType::String);
        assert_eq!(supported(&node), 0);
        let error = no_kernel(&node);
        assert_eq!(error.code(), graph::Code::InvalidArgument);
        let start = "No OpKernel was registered to support Op 'Maximum' used by {{node a/b}} with these attrs: \
                     [T=DT_STRING]\nRegistered devices: [CPU]\nRegistered kernels:\n  device='CPU'; T in \
                     [DT_FLOAT, DT_DOUBLE";
        assert!(error.to_string().starts_with(start), "{error}");
        assert!(error.to_string().ends_with("\n\t [[a/b]]"), "{error}");
        Ok(())
    }
}
