//! Element-wise fusion: a group of element-wise nodes whose values have readers only inside the group becomes one node,
//! which reads and writes memory once.

use super::fusion::{FusedNode, Fusion, Fusions, apply_fusions, control_inputs_of};
use super::reference_reads::ReferenceReads;
use crate::attr::{AttrList, AttrValue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::{self, Op, Role};
use crate::topology::Topology;
use rustc_hash::FxHashMap;

/// The largest number of ops in one fused node. A bound is needed because all inputs of the fused node stay in memory
/// until it has run.
pub const MAX_FUSED_OPS: usize = 64;

/// Replaces chains of element-wise nodes by `_FusedElementwise` nodes.
///
/// A chain is a node together with the nodes whose values are read only inside the chain. All nodes of a chain satisfy
/// `fusible`, are on one device and have one element type. The fused node has the name of the chain's last node, whose
/// value is the only one visible outside, and all control inputs of the chain's nodes. Feeds, fetches and transfers are
/// never `fusible`, so they keep reading the same values. A node that may read a reference becomes part of a chain only
/// if fusion does not delay the read.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop; `Unimplemented` if the op table has no
/// `_FusedElementwise`.
pub fn fuse(graph: Graph, fusible: &dyn Fn(&Node) -> bool) -> Result<Graph> {
    let Some(fused) = ops::lookup("_FusedElementwise") else {
        return Err(Error::unimplemented("fusion needs the op _FusedElementwise"));
    };
    if !graph.nodes().any(|(_, node)| fusible(node)) {
        return Ok(graph);
    }
    let topology = Topology::new(&graph);
    let chains = chains(&graph, &topology, fusible)?;
    if chains.is_empty() {
        return Ok(graph);
    }
    let mut fusions = Fusions::default();
    for chain in &chains {
        let (last, inner) = chain.split_last().unwrap_or((&chain[0], &[]));
        fusions.extend(inner.iter().map(|id| (*id, Fusion::PartOf(*last))));
        let program = Program::of(&graph, &topology, chain);
        let control = control_inputs_of(&topology, chain);
        let joined = program.joined(graph.node(*last), fused, control)?;
        fusions.insert(*last, Fusion::Node(joined));
    }
    apply_fusions(&graph, &topology, &fusions)
}

/// The nodes that one fused node replaces, in topological order; nodes outside the chain read only the value of the
/// last node.
type Chain = Vec<NodeId>;

/// Returns the chains of two or more nodes. Consumers are processed before producers: a node becomes part of a chain if
/// all its readers are in that chain.
fn chains(graph: &Graph, topology: &Topology, fusible: &dyn Fn(&Node) -> bool) -> Result<Vec<Chain>> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut chain_of: FxHashMap<NodeId, usize> = FxHashMap::default();
    let order = topology.order(graph)?;
    let reads = ReferenceReads::new(graph, topology, &order)?;
    for id in order.into_iter().rev() {
        let node = graph.node(id);
        if !fusible(node) || !is_of_one_type(node)? {
            continue;
        }
        let chain = match readers_chain(topology, id, &chain_of) {
            Some(chain)
                if has_room_for(graph, &chains[chain], node)?
                    && !reads.would_read_later(id, &chains[chain]) =>
            {
                chain
            }
            _ => {
                chains.push(Chain::new());
                chains.len() - 1
            }
        };
        chains[chain].push(id);
        chain_of.insert(id, chain);
    }
    chains.retain(|chain| chain.len() > 1);
    chains.iter_mut().for_each(|chain| chain.reverse());
    Ok(chains)
}

/// Returns the chain that contains all consumers of the node, if there is such a chain and no consumer is a control
/// edge.
fn readers_chain(topology: &Topology, id: NodeId, chain_of: &FxHashMap<NodeId, usize>) -> Option<usize> {
    let (first, others) = topology.consumers(id).split_first()?;
    let chain = *chain_of.get(&first.node)?;
    let reads = |consumer: &crate::graph::Consumer| {
        !consumer.is_control() && chain_of.get(&consumer.node) == Some(&chain)
    };
    (reads(first) && others.iter().all(reads)).then_some(chain)
}

/// Returns whether the chain has fewer than [`MAX_FUSED_OPS`] nodes, and the node has the device and element type of
/// the chain.
fn has_room_for(graph: &Graph, chain: &Chain, node: &Node) -> Result<bool> {
    let Some(last) = chain.first().map(|id| graph.node(*id)) else { return Ok(true) };
    Ok(chain.len() < MAX_FUSED_OPS
        && last.device == node.device
        && last.attr::<DType>("T")? == node.attr::<DType>("T")?)
}

/// Returns whether the node has one output, of the same element type as all its inputs.
fn is_of_one_type(node: &Node) -> Result<bool> {
    if node.op.role() != Role::Compute || node.op.is_stateful() {
        return Ok(false);
    }
    let (inputs, outputs) = (node.input_types()?, node.output_types()?);
    let [output] = outputs.as_slice() else { return Ok(false) };
    let same = |port: &crate::dtype::PortType| !port.is_ref && port.dtype == output.dtype;
    Ok(!inputs.is_empty() && inputs.iter().all(same) && same(output))
}

/// A chain encoded as attributes of the fused node. An operand number below `inputs.len()` is an input of the fused
/// node; a higher number is the value of an earlier op of the chain.
#[derive(Default)]
struct Program {
    inputs: Vec<Output>,
    ops: Vec<bytes::Bytes>,
    names: Vec<bytes::Bytes>,
    operands: Vec<i64>,
}

impl Program {
    fn of(graph: &Graph, topology: &Topology, chain: &Chain) -> Program {
        let mut program = Program::default();
        let position = |id: NodeId| chain.iter().position(|member| *member == id);
        let read = || chain.iter().flat_map(|id| topology.producers(*id)).filter(|p| !p.is_control());
        for producer in read().filter(|p| position(p.node).is_none()) {
            if !program.inputs.contains(&producer.source()) {
                program.inputs.push(producer.source());
            }
        }
        for producer in read() {
            let operand = match position(producer.node) {
                Some(at) => program.inputs.len() + at,
                None => program.inputs.iter().position(|i| *i == producer.source()).unwrap_or_default(),
            };
            program.operands.push(operand as i64);
        }
        for id in chain {
            let node = graph.node(*id);
            program.ops.push(bytes::Bytes::copy_from_slice(node.op.name().as_bytes()));
            program.names.push(bytes::Bytes::copy_from_slice(node.name.as_bytes()));
        }
        program
    }

    /// Returns the fused node of the chain, with the name and device of `last`, the chain's last node.
    fn joined(self, last: &Node, fused: &'static Op, control: Vec<NodeId>) -> Result<FusedNode> {
        let texts = |texts: &[bytes::Bytes]| AttrValue::List(AttrList::Str(texts.to_vec()));
        let node = Node::new(last.name.clone(), fused)
            .with_attr("T", last.attr::<DType>("T")?)
            .with_attr("N", self.inputs.len() as i64)
            .with_attr("ops", texts(&self.ops))
            .with_attr("operands", self.operands)
            .with_attr("names", texts(&self.names));
        let node = Node { device: last.device.clone(), ..node };
        Ok(FusedNode { node, inputs: self.inputs, control })
    }
}
