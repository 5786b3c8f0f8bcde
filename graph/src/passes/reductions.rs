//! The reductions of a graph, and the properties by which passes order them alike on all members of a group.

use super::prune::needed;
use crate::device::DeviceSpec;
use crate::error::Result;
use crate::fingerprint::combine;
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::Role;
use crate::tensor::Tensor;
use crate::topology::Topology;

/// The group of a collective: its key and its size.
pub(super) type Group = [Value; 2];

/// An integer that is known when the step is planned, or the output that holds it when the step runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Value {
    Known(i64),
    Of(Output),
}

/// Returns whether the node combines the tensors of all members of a group.
pub(super) fn is_reduction(node: &Node) -> bool {
    matches!(node.op.name(), "CollectiveReduce" | "CollectiveReduceV2")
}

/// Returns whether the node is placed on a GPU.
pub(super) fn is_on_gpu(node: &Node) -> bool {
    DeviceSpec::parse(&node.device).is_ok_and(|device| device.device_type.as_deref() == Some("GPU"))
}

/// Returns whether the program itself orders the node among collectives, by ordering tokens or by the attribute
/// `wait_for`.
pub(super) fn has_order(node: &Node) -> bool {
    let has_tokens = node.attr::<i64>("Nordering_token").is_ok_and(|tokens| tokens > 0);
    has_tokens || node.attr::<Vec<i64>>("wait_for").is_ok_and(|instances| !instances.is_empty())
}

/// Returns the hash of a list of instance keys; `kind` distinguishes the hashes of buckets from those of reduction
/// orders.
pub(super) fn digest(kind: u64, instance_keys: impl Iterator<Item = i64>) -> i64 {
    instance_keys.fold(kind, |hash, key| combine(key as u64, hash)) as i64
}

/// Returns `nodes` and all nodes that they depend on, in topological order.
pub(super) fn ancestors(graph: &Graph, topology: &Topology, nodes: &[NodeId]) -> Result<Vec<NodeId>> {
    let is_needed = needed(topology, graph.len(), nodes);
    Ok(topology.order(graph)?.into_iter().filter(|id| is_needed[id.index()]).collect())
}

/// Returns, by node index, the number of edges on the longest path to each node of `order`, not counting the back edges
/// of loops.
pub(super) fn depths(graph: &Graph, topology: &Topology, order: &[NodeId]) -> Vec<u32> {
    let mut depth = vec![0; graph.len()];
    for &id in order {
        let producers = topology.producers(id).iter().map(|producer| producer.node);
        let before = producers.filter(|id| graph.node(*id).op.role() != Role::NextIteration);
        depth[id.index()] = before.map(|from| depth[from.index()] + 1).max().unwrap_or(0);
    }
    depth
}

/// Returns the group and the instance key of a collective; `None` unless the instance key is an attribute or a
/// constant, and the group may have several members.
pub(super) fn keys(graph: &Graph, id: NodeId) -> Option<(Group, i64)> {
    let group = [value(graph, id, "group_key")?, value(graph, id, "group_size")?];
    let Value::Known(instance_key) = value(graph, id, "instance_key")? else { return None };
    (group[1] != Value::Known(1)).then_some((group, instance_key))
}

/// Returns the integer that a node has as the attribute or input `name`.
fn value(graph: &Graph, id: NodeId, name: &str) -> Option<Value> {
    let node = graph.node(id);
    let Some(slot) = node.op.inputs.iter().position(|input| input.name == name) else {
        return node.attr(name).ok().map(Value::Known);
    };
    let input = graph.input(id, slot)?;
    let source = graph.node(input.node);
    match source.op.name() {
        "Const" => Some(Value::Known(source.attr::<Tensor>("value").ok()?.item::<i32>().ok()?.into())),
        _ => Some(Value::Of(input)),
    }
}
