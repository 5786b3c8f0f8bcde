//! Kernel tables: the kernels of a device type by op, and error messages about missing kernels.

use crate::error::Error;
use crate::kernel::KernelDef;
use graph::{AttrList, AttrValue, DType, Node, Op, Role};
use rustc_hash::FxHashMap;
use std::fmt;
use std::fmt::Write;

/// The table of the kernels of one device type.
pub struct KernelTable {
    /// `CPU` or `GPU`.
    pub device_type: &'static str,
    by_op: FxHashMap<&'static str, Vec<&'static KernelDef>>,
    is_chained: fn(&str) -> bool,
}

impl KernelTable {
    /// Creates the kernel table of a device type from the rows of several families of kernels. `is_chained` returns
    /// whether the kernel for fused chains of element-wise ops can compute an op.
    pub fn new(
        device_type: &'static str,
        families: &[&'static [KernelDef]],
        is_chained: fn(&str) -> bool,
    ) -> KernelTable {
        let mut by_op = FxHashMap::<_, Vec<_>>::default();
        for kernel in families.iter().flat_map(|family| family.iter()) {
            by_op.entry(kernel.op).or_default().push(kernel);
        }
        KernelTable { device_type, by_op, is_chained }
    }

    /// Returns the kernel for a node: the first row of its op that supports the node's attributes.
    pub fn find(&self, node: &Node) -> Option<&'static KernelDef> {
        self.of_op(node.op.name()).iter().copied().find(|kernel| kernel.supports(node))
    }

    /// Returns all kernels of an op.
    pub fn of_op(&self, op: &str) -> &[&'static KernelDef] {
        self.by_op.get(op).map_or(&[], Vec::as_slice)
    }

    /// Returns whether the kernel for fused chains of element-wise ops can compute the op.
    pub fn is_chained(&self, op: &str) -> bool {
        (self.is_chained)(op)
    }

    /// Returns the priority of the node's kernel; `None` if there is no kernel. Ops of [roles](Role) other than
    /// `Compute` are run by the executor itself and have priority 0 on all devices.
    pub fn priority(&self, node: &Node) -> Option<i32> {
        match node.op.role() {
            Role::Compute => self.find(node).map(|kernel| kernel.priority),
            _ => Some(0),
        }
    }

    /// Returns whether the table has a kernel of the op for at least some of its dtypes.
    pub fn has_op(&self, op: &Op) -> bool {
        op.role() != Role::Compute || self.of_op(op.name()).iter().any(|kernel| !kernel.is_absent)
    }
}

impl fmt::Debug for KernelTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelTable({}, {} ops)", self.device_type, self.by_op.len())
    }
}

/// Creates the `InvalidArgument` error, in TensorFlow's words, for a node without a kernel in any of a process's
/// tables. The message lists the node's attributes and the kernels of its op.
pub fn no_kernel(tables: &[&KernelTable], node: &Node) -> Error {
    let mut attrs = String::new();
    for (name, value) in node.attrs.iter().filter(|(name, _)| !name.starts_with('_')) {
        let separator = if attrs.is_empty() { "" } else { ", " };
        let _ = write!(attrs, "{separator}{name}={}", text(value));
    }
    let devices: Vec<&str> = tables.iter().map(|table| table.device_type).collect();
    let message = format!(
        "No OpKernel was registered to support Op '{}' used by {{{{node {}}}}} with these attrs: [{attrs}]\n\
         Registered devices: [{}]\nRegistered kernels:\n{}",
        node.op.name(),
        node.name,
        devices.join(", "),
        registered_kernels(tables, node.op.name()),
    );
    Error::invalid(message).at_node(&node.name)
}

/// Returns the text that lists an op's kernels in these tables, one per line.
pub fn registered_kernels(tables: &[&KernelTable], op: &str) -> String {
    let mut kernels = String::new();
    for table in tables {
        for kernel in table.of_op(op) {
            let _ = writeln!(kernels, "  device='{}'{}", table.device_type, constraints(kernel));
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

fn text(value: &AttrValue) -> String {
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
