//! Passes over graphs: each takes a graph and returns a new graph. Passes are deterministic and linear in the size of
//! the graph. In debug builds each pass validates the structure of its result.

mod ancestors;
mod bucket;
mod conditions;
mod control_edges;
mod fold;
mod fuse;
mod fusion;
mod lower;
mod merge;
mod norms;
mod number_instances;
mod order_reductions;
mod products;
mod prune;
mod reductions;
mod reference_reads;
mod simplify;
mod unread;
mod validate;

pub use bucket::assign_buckets;
pub use control_edges::remove_redundant_control_edges;
pub use fold::{FoldOptions, fold};
pub use fuse::{MAX_FUSED_OPS, fuse};
pub use lower::{lower, lower_placed, replaces_lowered_node};
pub use merge::merge;
pub use norms::fuse_norms;
pub use number_instances::{INSTANCE_NUMBER, number_instances};
pub use order_reductions::{connect_reductions, place_reductions};
pub use products::fuse_products;
pub use prune::prune;
pub use simplify::{Simplification, SimplifyOptions, simplify};
pub use unread::remove_unread_nodes;
pub use validate::validate;

use crate::attr::{AttrList, AttrValue};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::{Op, Role};
use crate::topology::Topology;

/// Returns the graph of the nodes that `becomes` maps to themselves, in the order of `graph`. A node that is mapped to
/// another node is removed, and its consumers read the same outputs of that other node, which must be mapped to itself.
/// A node that is mapped to `None` is removed and must not have consumers that stay.
fn retain(graph: &Graph, topology: &Topology, becomes: &[Option<NodeId>]) -> Result<Graph> {
    let kept = || graph.ids().filter(|id| becomes[id.index()] == Some(*id));
    let mut out = Graph::with_capacity(kept().count(), graph.num_edges()).with_settings_of(graph);
    let mut new_ids = vec![None; graph.len()];
    for id in kept() {
        new_ids[id.index()] = Some(out.add_unconnected(graph.node(id).clone())?);
    }
    let source = |id: NodeId| becomes[id.index()].and_then(|to| new_ids[to.index()]);
    let mut control = Vec::new();
    for id in kept() {
        let Some(to) = new_ids[id.index()] else { continue };
        control.clear();
        for producer in topology.producers(id) {
            let Some(from) = source(producer.node) else { continue };
            if !producer.is_control() {
                out.connect(
                    crate::Output { node: from, index: producer.output },
                    to,
                    producer.input as usize,
                );
            } else if becomes[producer.node.index()] == Some(producer.node) || !control.contains(&from) {
                out.connect_control(from, to);
                control.push(from);
            }
        }
    }
    checked(out)
}

/// Returns the graph of the nodes for which `is_kept` is true. Nodes that stay must not depend on others.
pub(crate) fn keep(graph: &Graph, is_kept: impl Fn(NodeId) -> bool) -> Result<Graph> {
    let becomes: Vec<Option<NodeId>> = graph.ids().map(|id| is_kept(id).then_some(id)).collect();
    retain(graph, &Topology::new(graph), &becomes)
}

/// Returns the graph unchanged; debug builds validate its structure first.
fn checked(graph: Graph) -> Result<Graph> {
    if cfg!(debug_assertions) {
        validate(&graph)?;
    }
    Ok(graph)
}

/// Returns whether the op is a placeholder, whose value comes from outside the graph.
fn is_placeholder(op: &Op) -> bool {
    op.name().starts_with("Placeholder")
}

/// Returns for each node whether an output may be a reference: by the op's signature, or because the op forwards an
/// input that may be a reference.
fn references(graph: &Graph, topology: &Topology, order: &[NodeId]) -> Result<Vec<bool>> {
    let mut references = vec![false; graph.len()];
    for id in order {
        let node = graph.node(*id);
        let passes_on = node.op.def.traits.passes_reference || node.op.role() != Role::Compute;
        references[id.index()] = node.output_types()?.iter().any(|port| port.is_ref)
            || (passes_on && topology.producers(*id).iter().any(|p| references[p.node.index()]));
    }
    Ok(references)
}

/// Returns the nodes that other nodes request colocation with by the attribute `_class`.
fn colocation_anchors(graph: &Graph) -> impl Iterator<Item = NodeId> {
    let classes = graph.nodes().filter_map(|(_, node)| match node.attrs.get("_class") {
        Some(AttrValue::List(AttrList::Str(names))) => Some((&node.name, names)),
        _ => None,
    });
    classes.flat_map(|(own, names)| {
        names.iter().filter_map(|name| {
            let name = std::str::from_utf8(name).ok()?.strip_prefix("loc:@")?;
            if *name == **own { None } else { graph.find(name) }
        })
    })
}
