//! Control flow before a split: nodes that only steer go where their neighbours are, and loops are found.

use crate::error::Result;
use graph::{Graph, NodeId, Role, Topology};
use rustc_hash::FxHashMap;

/// Whether the graph has any node that a split must look at here.
pub(super) fn has_control_flow(graph: &Graph) -> bool {
    graph.nodes().any(|(_, node)| {
        matches!(node.op.role(), Role::Switch | Role::Enter | Role::Exit | Role::NextIteration)
    })
}

/// The placement with Switch and Exit where their data input is, and NextIteration and Enter (unless it hands on
/// a reference) where their first consumer is, whatever they asked for: so a loop's edges cross at its border.
pub(super) fn move_to_neighbours(graph: &Graph, topology: &Topology, placement: &[u32]) -> Result<Vec<u32>> {
    let mut placement = placement.to_vec();
    let order = topology.order(graph)?;
    for &id in order.iter().rev() {
        let node = graph.node(id);
        let moves = match node.op.role() {
            Role::NextIteration => true,
            Role::Enter => !node.output_types()?.iter().any(|t| t.is_ref),
            _ => false,
        };
        if moves && let Some(consumer) = topology.consumers(id).iter().find(|c| !c.is_control()) {
            placement[id.index()] = placement[consumer.node.index()];
        }
    }
    for &id in &order {
        if matches!(graph.node(id).op.role(), Role::Switch | Role::Exit)
            && let Some(input) = topology.producers(id).first()
        {
            placement[id.index()] = placement[input.node.index()];
        }
    }
    Ok(placement)
}

/// Which loop each node's outputs are in.
pub(super) struct Frames {
    /// Per node, an index into `frames`; 0 is outside of loops.
    of_outputs: Vec<u32>,
    /// Each loop's enclosing one, and its name.
    frames: Vec<(u32, String)>,
}

impl Frames {
    pub(super) fn new(graph: &Graph, topology: &Topology) -> Result<Frames> {
        let mut frames = vec![(0, String::new())];
        let mut known: FxHashMap<(u32, String), u32> = FxHashMap::default();
        let mut of_outputs = vec![0u32; graph.len()];
        for id in topology.order(graph)? {
            // A back edge's source has no frame yet; the other input of the loop's Merge has.
            let inside = topology.producers(id).iter().map(|p| of_outputs[p.node.index()]).find(|f| *f != 0);
            let inside = inside.unwrap_or(0);
            let node = graph.node(id);
            of_outputs[id.index()] = match node.op.role() {
                Role::Enter => {
                    let key = (inside, node.attr::<String>("frame_name")?);
                    *known.entry(key).or_insert_with_key(|key| {
                        frames.push(key.clone());
                        (frames.len() - 1) as u32
                    })
                }
                Role::Exit => frames[inside as usize].0,
                _ => inside,
            };
        }
        Ok(Frames { of_outputs, frames })
    }

    /// The name of the loop that the node's outputs are in.
    pub(super) fn of_outputs(&self, id: NodeId) -> Option<&str> {
        match self.of_outputs[id.index()] {
            0 => None,
            frame => Some(&self.frames[frame as usize].1),
        }
    }
}
