//! Common-subexpression elimination: nodes that compute the same value from the same inputs are merged.

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

/// Merges stateless nodes that have the same op, attributes, device, inputs and control inputs into the first of these
/// nodes in topological order.
///
/// The inputs of commutative ops may be in any order. The colocation constraints (`_class`) of placed nodes are
/// ignored, because placement is done. Nodes of `keep` (fed, fetched or otherwise named from outside) are neither
/// removed nor used in place of others. Nodes that others are colocated with are not removed.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop.
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

/// Returns whether two nodes on the same device compute the same values from the same inputs.
fn compute_the_same(node: &Node, other: &Node) -> bool {
    node.computes_same_as(other)
        || std::ptr::eq(node.op, other.op)
            && attrs_without_colocation(&node.attrs).eq(attrs_without_colocation(&other.attrs))
            && DeviceName::parse(&node.device).is_ok()
}

/// Returns the attributes except `_class`, which holds the colocation constraints.
fn attrs_without_colocation(attrs: &Attrs) -> impl Iterator<Item = (&Arc<str>, &AttrValue)> {
    attrs.iter().filter(|(name, _)| &***name != "_class")
}

/// Returns whether the node is stateless, computes only values, and is not a placeholder.
fn is_mergeable(node: &Node) -> Result<bool> {
    let outputs = node.output_types()?;
    Ok(node.op.role() == Role::Compute
        && !node.op.is_stateful()
        && !is_placeholder(node.op)
        && !outputs.is_empty()
        && !outputs.iter().any(|t| t.is_ref)
        && !node.input_types()?.iter().any(|t| t.is_ref))
}

/// The sources of a node's inputs after its producers are merged, in a canonical order: nodes with equal sources, ops
/// and attributes compute the same value.
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

/// Hashes the properties on which two nodes must agree to be merged.
fn hash(node: &Node, sources: &Sources) -> u64 {
    let mut hasher = FxHasher::default();
    node.op.index.hash(&mut hasher);
    node.device.hash(&mut hasher);
    sources.hash(&mut hasher);
    hash_attrs(&node.attrs, &mut hasher);
    hasher.finish()
}

fn hash_attrs(attrs: &Attrs, hasher: &mut FxHasher) {
    for (name, value) in attrs_without_colocation(attrs) {
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
                // Float, tensor and function lists are hashed only by their lengths, as 64-bit numbers, so that empty
                // lists, which are equal whatever their kind, have equal hashes.
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
