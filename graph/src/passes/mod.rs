//! Passes: a graph in, a graph out. They are deterministic and linear in the size of the graph, and in debug
//! builds each checks the structure of what it made.

mod fold;
mod fuse;
mod join;
mod lineage;
mod lower;
mod merge;
mod norms;
mod products;
mod prune;
mod simplify;
mod unread;
mod untie;
mod validate;
mod waits;

pub use fold::{FoldOptions, fold};
pub use fuse::{MOST_FUSED_OPS, fuse};
pub use lower::{lower, lower_placed, stands_for_lowered};
pub use merge::merge;
pub use norms::fuse_norms;
pub use products::fuse_products;
pub use prune::prune;
pub use simplify::{Simplification, SimplifyOptions, simplify};
pub use unread::unread;
pub use untie::untie;
pub use validate::validate;

use crate::attr::{AttrList, AttrValue};
use crate::error::Result;
use crate::graph::{Graph, NodeId};
use crate::ops::{Op, Role};
use crate::topology::Topology;

/// The graph of those nodes that `becomes` maps to themselves, in their order. A node that it maps to another
/// is dropped, and its consumers take the same outputs of that other, which must be kept; one that it maps to
/// `None` is dropped and must have no consumers that are kept.
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

/// The graph, after a look at its structure in debug builds.
fn checked(graph: Graph) -> Result<Graph> {
    if cfg!(debug_assertions) {
        validate(&graph)?;
    }
    Ok(graph)
}

/// Whether the op stands for a value that comes from outside the graph.
fn is_placeholder(op: &Op) -> bool {
    op.name().starts_with("Placeholder")
}

/// Whether each node may give a reference, by its own signature or because it passes on what it takes.
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

/// Nodes that the `_class` of others names.
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
