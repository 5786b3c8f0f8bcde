//! Merges nodes that compute the same from the same: common subexpressions.

use super::{colocation_anchors, is_placeholder, retain};
use crate::attr::{AttrList, AttrValue, Attrs, FuncAttr};
use crate::device::DeviceName;
use crate::error::Result;
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::Role;
use crate::tensor::Tensor;
use crate::topology::Topology;
use rustc_hash::{FxHashMap, FxHashSet, FxHasher};
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

/// Of stateless nodes with the same op, attributes, device, inputs and control inputs, the first in
/// topological order stays. Inputs of commutative ops may stand in any order, and which node a placed one was to be beside
/// does not matter any more. Nodes of `keep` (fed, fetched or
/// named otherwise from outside) are neither dropped nor stand for others, and those that others are
/// colocated with are not dropped.
pub fn merge(graph: &Graph, keep: &[NodeId]) -> Result<Graph> {
    let topology = Topology::new(graph);
    let order = topology.order(graph)?;
    let mut fixed: FxHashSet<NodeId> = keep.iter().copied().collect();
    fixed.extend(colocation_anchors(graph));

    let mut becomes: Vec<Option<NodeId>> = graph.ids().map(Some).collect();
    let mut first: FxHashMap<u64, SmallVec<[(NodeId, Sources); 1]>> = FxHashMap::default();
    for id in order {
        let node = graph.node(id);
        if fixed.contains(&id) || !is_mergeable(node)? {
            continue;
        }
        let sources = Sources::of(graph, &topology, id, &becomes);
        let candidates = first.entry(hash(node, &sources)).or_default();
        let twin = candidates.iter().find(|(other, theirs)| {
            let other = graph.node(*other);
            *theirs == sources && node.device == other.device && compute_the_same(node, other)
        });
        match twin {
            Some((other, _)) => becomes[id.index()] = Some(*other),
            None => candidates.push((id, sources)),
        }
    }
    retain(graph, &topology, &becomes)
}

/// Of two nodes with one device.
fn compute_the_same(node: &Node, other: &Node) -> bool {
    node.computes_same_as(other)
        || std::ptr::eq(node.op, other.op)
            && free(&node.attrs).eq(free(&other.attrs))
            && DeviceName::parse(&node.device).is_ok()
}

/// The attributes but for what asks for the device of another node.
fn free(attrs: &Attrs) -> impl Iterator<Item = (&Arc<str>, &AttrValue)> {
    attrs.iter().filter(|(name, _)| &***name != "_class")
}

fn is_mergeable(node: &Node) -> Result<bool> {
    let outputs = node.output_types()?;
    Ok(node.op.role() == Role::Compute
        && !node.op.is_stateful()
        && !is_placeholder(node.op)
        && !outputs.is_empty()
        && !outputs.iter().any(|t| t.is_ref)
        && !node.input_types()?.iter().any(|t| t.is_ref))
}

/// Where a node's inputs come from, once its producers are merged, in an order that does not distinguish
/// what computes the same.
#[derive(PartialEq, Eq, Hash)]
struct Sources {
    data: SmallVec<[Output; 3]>,
    control: SmallVec<[NodeId; 1]>,
}

impl Sources {
    fn of(graph: &Graph, topology: &Topology, id: NodeId, becomes: &[Option<NodeId>]) -> Sources {
        let mut sources = Sources { data: SmallVec::new(), control: SmallVec::new() };
        for producer in topology.producers(id) {
            let node = becomes[producer.node.index()].unwrap_or(producer.node);
            if producer.is_control() {
                sources.control.push(node);
            } else {
                sources.data.push(Output { node, index: producer.output });
            }
        }
        if graph.node(id).op.def.traits.commutative {
            sources.data.sort_unstable();
        }
        sources.control.sort_unstable();
        sources.control.dedup();
        sources
    }
}

fn hash(node: &Node, sources: &Sources) -> u64 {
    let mut hasher = FxHasher::default();
    node.op.index.hash(&mut hasher);
    node.device.hash(&mut hasher);
    sources.hash(&mut hasher);
    hash_attrs(&node.attrs, &mut hasher);
    hasher.finish()
}

fn hash_attrs(attrs: &Attrs, hasher: &mut FxHasher) {
    for (name, value) in free(attrs) {
        name.hash(hasher);
        match value {
            AttrValue::Str(v) => v.hash(hasher),
            AttrValue::Int(v) => v.hash(hasher),
            AttrValue::Float(v) => v.to_bits().hash(hasher),
            AttrValue::Bool(v) => v.hash(hasher),
            AttrValue::Type(v) => v.hash(hasher),
            AttrValue::Shape(v) => v.hash(hasher),
            AttrValue::Tensor(v) => hash_tensor(v, hasher),
            AttrValue::Placeholder(v) => v.hash(hasher),
            AttrValue::Func(FuncAttr { name, .. }) => name.hash(hasher),
            AttrValue::List(list) => match list {
                AttrList::Str(v) => v.hash(hasher),
                AttrList::Int(v) => v.hash(hasher),
                AttrList::Bool(v) => v.hash(hasher),
                AttrList::Type(v) => v.hash(hasher),
                AttrList::Shape(v) => v.hash(hasher),
                // Empty lists of all kinds are equal.
                AttrList::Float(v) => (v.len() as u64).hash(hasher),
                AttrList::Tensor(v) => (v.len() as u64).hash(hasher),
                AttrList::Func(v) => (v.len() as u64).hash(hasher),
                AttrList::Empty => 0u64.hash(hasher),
            },
        }
    }
}

fn hash_tensor(tensor: &Tensor, hasher: &mut FxHasher) {
    tensor.dtype().hash(hasher);
    tensor.shape().hash(hasher);
    if let Ok(bytes) = tensor.bytes() {
        bytes.hash(hasher);
    } else if let Ok(strings) = tensor.as_strings() {
        strings.hash(hasher);
    }
}
