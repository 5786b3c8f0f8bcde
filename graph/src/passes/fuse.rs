//! Fusion: element-wise ops whose values only each other reads become one node, which passes over memory once.

use super::{checked, references};
use crate::attr::{AttrList, AttrValue};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::{self, Op, Role};
use crate::topology::Topology;
use rustc_hash::{FxHashMap, FxHashSet};

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
    rebuild(&graph, &topology, &chains, fused)
}

/// What becomes one node, in topological order: the last is the one that others read.
type Chain = Vec<NodeId>;

/// Found from the end: a node joins those who read it if they are all in one chain.
fn chains(graph: &Graph, topology: &Topology, fusible: &dyn Fn(&Node) -> bool) -> Result<Vec<Chain>> {
    let mut chains: Vec<Chain> = Vec::new();
    let mut chain_of: FxHashMap<NodeId, usize> = FxHashMap::default();
    let order = topology.order(graph)?;
    let references = references(graph, topology, &order)?;
    for id in order.into_iter().rev() {
        let node = graph.node(id);
        if !fusible(node) || !is_of_one_type(node)? {
            continue;
        }
        let reads_reference = topology.producers(id).iter().any(|p| references[p.node.index()]);
        let chain = match readers_chain(topology, id, &chain_of) {
            Some(chain)
                if takes(graph, &chains[chain], node)?
                    && !(reads_reference && waits_for_others(graph, topology, &chains[chain], id)) =>
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

/// Whether a chain that the node joined would wait for anything that the node itself does not wait for. Constants are
/// there from the start.
fn waits_for_others(graph: &Graph, topology: &Topology, chain: &Chain, id: NodeId) -> bool {
    let own: FxHashSet<NodeId> = topology.producers(id).iter().map(|producer| producer.node).collect();
    let is_constant = |id: NodeId| graph.node(id).op.name() == "Const" && topology.producers(id).is_empty();
    let is_known = |producer: &crate::topology::Producer| {
        let from = producer.node;
        from == id || own.contains(&from) || chain.contains(&from) || is_constant(from)
    };
    !chain.iter().flat_map(|member| topology.producers(*member)).all(is_known)
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

fn rebuild(graph: &Graph, topology: &Topology, chains: &[Chain], fused: &'static Op) -> Result<Graph> {
    let mut out = Graph::with_capacity(graph.len(), graph.num_edges()).with_settings_of(graph);
    let mut program_of: FxHashMap<NodeId, Option<Program>> = FxHashMap::default();
    for chain in chains {
        let (last, inner) = chain.split_last().unwrap_or((&chain[0], &[]));
        program_of.extend(inner.iter().map(|id| (*id, None)));
        program_of.insert(*last, Some(Program::of(graph, topology, chain)));
    }
    let mut new_ids = vec![None; graph.len()];
    for (id, node) in graph.nodes() {
        let node = match program_of.get(&id) {
            Some(None) => continue,
            Some(Some(program)) => program.node(node, fused)?,
            None => node.clone(),
        };
        new_ids[id.index()] = Some(out.add_unconnected(node)?);
    }
    // Nobody but its chain reads what is left out.
    let new_id = |id: NodeId| {
        new_ids[id.index()].ok_or_else(|| Error::invalid(format!("fusion lost '{}'", graph.node(id).name)))
    };
    for id in graph.ids() {
        let Some(to) = new_ids[id.index()] else { continue };
        if let Some(Some(program)) = program_of.get(&id) {
            for (slot, input) in program.inputs.iter().enumerate() {
                out.connect(Output { node: new_id(input.node)?, index: input.index }, to, slot);
            }
            for after in &program.control {
                out.connect_control(new_id(*after)?, to);
            }
            continue;
        }
        for producer in topology.producers(id) {
            let from = new_id(producer.node)?;
            match producer.is_control() {
                true => out.connect_control(from, to),
                false => {
                    out.connect(Output { node: from, index: producer.output }, to, producer.input as usize);
                }
            }
        }
    }
    checked(out)
}

/// A chain as the attributes of one node, which say of each op what it takes: an input of the whole, or, counted on
/// from those, the value of an op before it.
#[derive(Default)]
struct Program {
    inputs: Vec<Output>,
    control: Vec<NodeId>,
    ops: Vec<bytes::Bytes>,
    names: Vec<bytes::Bytes>,
    operands: Vec<i64>,
}

impl Program {
    fn of(graph: &Graph, topology: &Topology, chain: &Chain) -> Program {
        let mut program = Program::default();
        let position = |id: NodeId| chain.iter().position(|member| *member == id);
        let producers = || chain.iter().flat_map(|id| topology.producers(*id));
        let mut before = FxHashSet::default();
        for producer in producers().filter(|p| position(p.node).is_none()) {
            if producer.is_control() {
                if before.insert(producer.node) {
                    program.control.push(producer.node);
                }
            } else if !program.inputs.contains(&producer.source()) {
                program.inputs.push(producer.source());
            }
        }
        for producer in producers().filter(|p| !p.is_control()) {
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
    fn node(&self, last: &Node, fused: &'static Op) -> Result<Node> {
        let texts = |texts: &[bytes::Bytes]| AttrValue::List(AttrList::Str(texts.to_vec()));
        let node = Node::new(last.name.clone(), fused)
            .with_attr("T", last.attr::<DType>("T")?)
            .with_attr("N", self.inputs.len() as i64)
            .with_attr("ops", texts(&self.ops))
            .with_attr("operands", self.operands.clone())
            .with_attr("names", texts(&self.names));
        Ok(Node { device: last.device.clone(), ..node })
    }
}
