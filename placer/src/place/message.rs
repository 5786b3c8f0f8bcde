//! Texts of placement errors in TensorFlow's format.

use super::groups::{Groups, NONE};
use graph::{AttrList, AttrValue, Attrs, DType, NodeId, PortType};
use std::fmt::Write;

/// The largest number of members of a group that a message lists by name; further members are only counted.
const LISTED: usize = 64;

/// Describes the members, device types and constraints of a colocation group.
pub(super) fn debug_info(groups: &mut Groups<'_>, root: usize) -> String {
    let graph = groups.graph;
    let members: Vec<NodeId> = graph.ids().filter(|id| groups.root(*id) == root).collect();
    let constraint = groups.constraints[root];
    let type_list = |groups: &Groups<'_>, types| -> Vec<String> {
        let names = groups.devices.types();
        groups.signatures.types(types).iter().map(|t| names[t.0 as usize].to_string()).collect()
    };
    let assigned = if constraint.device == NONE { "" } else { &*groups.devices.get(constraint.device).text };
    let mut text = format!(
        "\nColocation Debug Info:\nColocation group had the following types and supported devices: \nRoot \
         Member(assigned_device_name_index_={} requested_device_name_='{}' assigned_device_name_='{assigned}' \
         resource_device_name_='{}' supported_device_types_=[{}] possible_devices_=[]",
        if constraint.device == NONE { -1 } else { i64::from(constraint.device) },
        groups.specs.get(constraint.requested),
        groups.specs.get(constraint.resource),
        type_list(groups, constraint.types).join(", "),
    );
    let mut ops: Vec<&str> = Vec::new();
    for &id in &members {
        let node = graph.node(id);
        if ops.contains(&node.op.name()) {
            continue;
        }
        ops.push(node.op.name());
        let types = groups.signatures.of(node).map(|s| type_list(groups, s.types)).unwrap_or_default();
        let _ = write!(text, "\n{}: {} ", node.op.name(), types.join(" "));
    }
    text.push_str("\n\nColocation members, user-requested devices, and framework assigned devices, if any:");
    for &id in members.iter().take(LISTED) {
        let node = graph.node(id);
        let _ = write!(text, "\n  {} ({}) {}", node.name, node.op.name(), node.device);
        if constraint.device != NONE {
            let _ = write!(text, " framework assigned device={assigned}");
        }
    }
    if members.len() > LISTED {
        let _ = write!(text, "\n  and {} more", members.len() - LISTED);
    }
    text.push('\n');
    text
}

/// Formats attributes for an error message: `T=DT_FLOAT, name="x"`.
pub(super) fn attrs(attrs: &Attrs) -> String {
    let all: Vec<String> = attrs.iter().map(|(name, v)| format!("{name}={}", value(v))).collect();
    all.join(", ")
}

fn value(value: &AttrValue) -> String {
    match value {
        AttrValue::Str(s) => format!("{:?}", String::from_utf8_lossy(s)),
        AttrValue::Int(i) => i.to_string(),
        AttrValue::Float(f) => f.to_string(),
        AttrValue::Bool(b) => b.to_string(),
        AttrValue::Type(t) => type_name(*t),
        AttrValue::Shape(s) => s.to_string(),
        AttrValue::Tensor(t) => format!("Tensor<type: {} shape: {}>", t.dtype(), t.shape()),
        AttrValue::Placeholder(name) => format!("${name}"),
        AttrValue::Func(f) => f.name.to_string(),
        AttrValue::List(list) => format!("[{}]", items(list).join(", ")),
    }
}

fn items(list: &AttrList) -> Vec<String> {
    fn each<T: Clone + Into<AttrValue>>(all: &[T]) -> Vec<String> {
        all.iter().map(|item| value(&item.clone().into())).collect()
    }
    match list {
        AttrList::Empty => Vec::new(),
        AttrList::Str(v) => each(v),
        AttrList::Int(v) => each(v),
        AttrList::Float(v) => each(v),
        AttrList::Bool(v) => each(v),
        AttrList::Type(v) => each(v),
        AttrList::Shape(v) => each(v),
        AttrList::Tensor(v) => each(v),
        AttrList::Func(v) => each(v),
    }
}

/// Returns the protocol buffer name of a type: `DT_FLOAT`.
fn type_name(dtype: DType) -> String {
    format!("DT_{}", dtype.name().to_ascii_uppercase())
}

/// Returns TensorFlow's name of an input type: `float`, `float_ref`.
pub(super) fn port_name(port: PortType) -> String {
    format!("{}{}", port.dtype, if port.is_ref { "_ref" } else { "" })
}
