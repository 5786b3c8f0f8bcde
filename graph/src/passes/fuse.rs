//! Fusion: element-wise ops whose values only each other reads become one node, which passes over memory once.

use super::join::{Becomes, Joined, Joins, control_of, join};
use super::waits::Waits;
use crate::attr::{AttrList, AttrValue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::{self, Op, Role};
use crate::topology::Topology;
use rustc_hash::FxHashMap;

/// So many ops in one node at most: its inputs are held until it has run.
pub const MOST_FUSED_OPS: usize = 64;

/// Puts one node of `_FusedElementwise` in the place of a node and of all those that only it, or others of them,
/// read; of those that are `fusible`, by their op and attributes, on one device, of one element type. It has the
/// name of the last, whose value is the only one that anybody else could see, and runs after whatever any of them
/// ran after. Others keep all their consumers: feeds, fetches and transfers are none of these ops. What may read a
/// reference joins only where it does not come to read it later than before.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is no loop.
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
    let mut joins = Joins::default();
    for chain in &chains {
        let (last, inner) = chain.split_last().unwrap_or((&chain[0], &[]));
        joins.extend(inner.iter().map(|id| (*id, Becomes::PartOf(*last))));
        let program = Program::of(&graph, &topology, chain);
        let control = control_of(&topology, chain);
        let joined = program.joined(graph.node(*last), fused, control)?;
        joins.insert(*last, Becomes::One(joined));
    }
    join(&graph, &topology, &joins)
}

/// What becomes one node, in topological order: the last is the one that others read.
type Chain = Vec<NodeId>;

/// Found from the end: a node joins those who read it if they are all in one chain.
fn chains(graph: &Graph, topology: &Topology, fusible: &dyn Fn(&Node) -> bool) -> Result<Vec<Chain>> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut chain_of: FxHashMap<NodeId, usize> = FxHashMap::default();
    let order = topology.order(graph)?;
    let waits = Waits::new(graph, topology, &order)?;
    for id in order.into_iter().rev() {
        let node = graph.node(id);
        if !fusible(node) || !is_of_one_type(node)? {
            continue;
        }
        let chain = match readers_chain(topology, id, &chain_of) {
            Some(chain)
                if takes(graph, &chains[chain], node)? && !waits.would_read_later(id, &chains[chain]) =>
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

/// The one chain that all who need the node are in, by its value alone.
fn readers_chain(topology: &Topology, id: NodeId, chain_of: &FxHashMap<NodeId, usize>) -> Option<usize> {
    let (first, others) = topology.consumers(id).split_first()?;
    let chain = *chain_of.get(&first.node)?;
    let reads = |consumer: &crate::graph::Consumer| {
        !consumer.is_control() && chain_of.get(&consumer.node) == Some(&chain)
    };
    (reads(first) && others.iter().all(reads)).then_some(chain)
}

fn takes(graph: &Graph, chain: &Chain, node: &Node) -> Result<bool> {
    let Some(last) = chain.first().map(|id| graph.node(*id)) else { return Ok(true) };
    Ok(chain.len() < MOST_FUSED_OPS
        && last.device == node.device
        && last.attr::<DType>("T")? == node.attr::<DType>("T")?)
}

/// Whether it computes one tensor from tensors of the same type.
fn is_of_one_type(node: &Node) -> Result<bool> {
    if node.op.role() != Role::Compute || node.op.is_stateful() {
        return Ok(false);
    }
    let (inputs, outputs) = (node.input_types()?, node.output_types()?);
    let [output] = outputs.as_slice() else { return Ok(false) };
    let same = |port: &crate::dtype::PortType| !port.is_ref && port.dtype == output.dtype;
    Ok(!inputs.is_empty() && inputs.iter().all(same) && same(output))
}

/// A chain as the attributes of one node, which say of each op what it takes: an input of the whole, or, counted on
/// from those, the value of an op before it.
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

    /// The one node, which stands where the chain's last stood.
    fn joined(self, last: &Node, fused: &'static Op, control: Vec<NodeId>) -> Result<Joined> {
        let texts = |texts: &[bytes::Bytes]| AttrValue::List(AttrList::Str(texts.to_vec()));
        let node = Node::new(last.name.clone(), fused)
            .with_attr("T", last.attr::<DType>("T")?)
            .with_attr("N", self.inputs.len() as i64)
            .with_attr("ops", texts(&self.ops))
            .with_attr("operands", self.operands)
            .with_attr("names", texts(&self.names));
        let node = Node { device: last.device.clone(), ..node };
        Ok(Joined { node, inputs: self.inputs, control })
    }
}
