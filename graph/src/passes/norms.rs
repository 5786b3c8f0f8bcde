//! Normalisations of batches and what follows them: an activation, with a sum before it or without, becomes part of the
//! normalisation's node; and where what comes back to an activation goes on to the gradient of a normalisation, that
//! sees by the data where nothing comes back. Images are read and written half as often.

use super::join::{Becomes, Joined, Joins, control_of, join};
use super::lineage::{Lineage, needs_all_inputs};
use super::waits::Waits;
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Consumer, Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::{self, Op, Role};
use crate::topology::Topology;
use rustc_hash::FxHashSet;

/// What is joined, each with its gradient.
const NORMS: &[(&str, &str)] = &[
    ("FusedBatchNorm", "FusedBatchNormGrad"),
    ("FusedBatchNormV2", "FusedBatchNormGradV2"),
    ("FusedBatchNormV3", "FusedBatchNormGradV3"),
];

/// What may follow, each with its gradient.
const ACTIVATIONS: &[(&str, &str)] = &[("Relu", "ReluGrad"), ("Relu6", "Relu6Grad")];

/// What may come between a normalisation and its activation.
const SUMS: &[&str] = &["AddV2", "Add"];

/// So many nodes are looked at to see that a summand is there whenever a normalisation is.
const MOST_LOOKED_AT: usize = 64;

/// Puts one node of `_FusedBatchNormEx` in the place of a normalisation over a batch, of the sum that alone reads its
/// first output, if there is one, and of the activation that alone reads that; and one of
/// `_FusedBatchNormActivationGrad` in the place of an activation's gradient and of the normalisation's gradient that
/// alone reads that: all on one device, of one element type, where `takes` says of the node that it is welcome. The
/// first has the name of the activation, whose output is its first, and the normalisation's other outputs. What may
/// read a reference joins only where it does not come to read it later than before.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is no loop.
pub fn fuse_norms(graph: Graph, takes: &dyn Fn(&Node) -> bool) -> Result<Graph> {
    let is_one =
        |node: &Node| NORMS.iter().any(|(norm, gradient)| [*norm, gradient].contains(&node.op.name()));
    if !graph.nodes().any(|(_, node)| is_one(node)) {
        return Ok(graph);
    }
    let op = |name: &str| {
        ops::lookup(name).ok_or_else(|| Error::unimplemented(format!("fusion of norms needs the op {name}")))
    };
    let (forward, backward) = (op("_FusedBatchNormEx")?, op("_FusedBatchNormActivationGrad")?);
    let topology = Topology::new(&graph);
    let pass = Norms::new(&graph, &topology)?;
    let mut joins = Joins::default();
    for (id, node) in graph.nodes() {
        let found = match node.op.name() {
            name if NORMS.iter().any(|(norm, _)| *norm == name) => pass.forward(id, forward)?,
            name if NORMS.iter().any(|(_, gradient)| *gradient == name) => pass.backward(id, backward)?,
            _ => continue,
        };
        // Two may have one sum: the first gets it.
        if let Some((others, joined)) = found
            && !others.iter().any(|other| joins.contains_key(other))
            && takes(&joined.node)
        {
            joins.extend(others.into_iter().map(|other| (other, Becomes::PartOf(id))));
            joins.insert(id, Becomes::One(joined));
        }
    }
    match joins.is_empty() {
        true => Ok(graph),
        false => join(&graph, &topology, &joins),
    }
}

/// What a normalisation and its gradient have in common.
const SHARED: &[&str] = &["T", "epsilon", "data_format", "is_training"];

/// Given to the node, or left to their defaults.
fn shared(node: &Node) -> Result<Vec<AttrValue>> {
    SHARED.iter().map(|name| node.attr(name)).collect()
}

/// A graph that is looked through.
struct Norms<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    /// Where each node stands in an order in which all are after their producers.
    place: Vec<u32>,
    lineage: Lineage,
    waits: Waits<'a>,
}

/// The nodes that become part of another, and what that becomes.
type Found = Option<(Vec<NodeId>, Joined)>;

impl<'a> Norms<'a> {
    fn new(graph: &'a Graph, topology: &'a Topology) -> Result<Norms<'a>> {
        let order = topology.order(graph)?;
        let mut place = vec![0; graph.len()];
        for (at, id) in order.iter().enumerate() {
            place[id.index()] = at as u32;
        }
        let lineage = Lineage::new(graph, topology, &order)?;
        let waits = Waits::new(graph, topology, &order)?;
        Ok(Norms { graph, topology, place, lineage, waits })
    }

    /// A normalisation with what follows it.
    fn forward(&self, norm: NodeId, op: &'static Op) -> Result<Found> {
        let Some(mut next) = self.only_reader(Output { node: norm, index: 0 }) else { return Ok(None) };
        let (mut others, mut side) = (Vec::new(), None);
        if self.follows(norm, next.node, |name| SUMS.contains(&name))? {
            others.push(next.node);
            side = self.source(next.node, 1 - next.input as usize);
            let [only] = self.topology.consumers(next.node) else { return Ok(None) };
            next = *only;
        }
        let activation = next.node;
        if !self.follows(norm, activation, |name| ACTIVATIONS.iter().any(|(a, _)| *a == name))? {
            return Ok(None);
        }
        others.push(activation);
        let whole = [&[norm][..], &others].concat();
        let (_, inner) = whole.split_last().unwrap_or((&norm, &[]));
        let waits = |side: Output| self.has_other_readers(norm) && !self.is_there_before(side.node, norm);
        if side.is_some_and(waits) || inner.iter().any(|id| self.waits.would_read_later(*id, &whole)) {
            return Ok(None);
        }
        let (of, last) = (self.graph.node(norm), self.graph.node(activation));
        let node = Node::new(last.name.clone(), op)
            .with_attr("num_side_inputs", i64::from(side.is_some()))
            .with_attr("exponential_avg_factor", of.attr::<f32>("exponential_avg_factor")?);
        let mut inputs = self.sources(norm, 0..5);
        inputs.extend(side);
        self.joined(node, of, last.op.name(), whole, inputs)
    }

    /// The gradient of a normalisation, with that of the activation which follows the normalisation.
    fn backward(&self, gradient: NodeId, op: &'static Op) -> Result<Found> {
        let Some(slope) = self.source(gradient, 0).map(|dy| dy.node) else { return Ok(None) };
        let name = self.graph.node(slope).op.name();
        let Some((activation, _)) = ACTIVATIONS.iter().find(|(_, gradient)| *gradient == name) else {
            return Ok(None);
        };
        if self.topology.consumers(slope).len() != 1 || !self.is_beside(slope, gradient)? {
            return Ok(None);
        }
        let Some(norm) = self.norm_of(slope, activation) else { return Ok(None) };
        let (of, before) = (self.graph.node(gradient), self.graph.node(norm));
        if !NORMS.contains(&(before.op.name(), of.op.name())) || shared(before)? != shared(of)? {
            return Ok(None);
        }
        let used = self.sources(norm, 0..5);
        let given = self.sources(gradient, 1..5);
        let [x, scale, offset, old @ ..] = &used[..] else { return Ok(None) };
        let is_training = before.attr::<bool>("is_training")?;
        let statistics = match is_training {
            true => [3, 4].map(|index| Output { node: norm, index }).to_vec(),
            false => old.to_vec(),
        };
        // What the normalisation has read is what its gradient is given, and can be read again.
        let is_read_again = given == [&[*x, *scale][..], &statistics].concat()
            && !used.iter().any(|input| self.waits.may_be_reference(input.node))
            && (is_training || !self.has_control(norm));
        let whole = vec![gradient, slope];
        if !is_read_again || self.waits.would_read_later(slope, &whole) {
            return Ok(None);
        }
        let mut inputs = vec![self.topology.producers(slope)[0].source()];
        inputs.extend(given);
        inputs.push(*offset);
        self.joined(Node::new(of.name.clone(), op), of, activation, whole, inputs)
    }

    /// The node with the attributes that both have, where `whole` was, whose first gives the place.
    fn joined(
        &self,
        node: Node,
        of: &Node,
        activation: &'static str,
        whole: Vec<NodeId>,
        inputs: Vec<Output>,
    ) -> Result<Found> {
        let mut node = node
            .with_attr("U", of.attr::<DType>("U").unwrap_or(DType::Float))
            .with_attr("activation_mode", activation);
        for (name, value) in SHARED.iter().zip(shared(of)?) {
            node = node.with_attr(name, value);
        }
        node.device = of.device.clone();
        if node.op.check_attrs(&node.attrs).is_err() {
            return Ok(None);
        }
        let control = control_of(self.topology, &whole);
        Ok(Some((whole[1..].to_vec(), Joined { node, inputs, control })))
    }

    /// Whether the other is of such an op, beside the first, and waits for its inputs alone.
    fn follows(&self, first: NodeId, other: NodeId, is_such: impl Fn(&str) -> bool) -> Result<bool> {
        let is_one = is_such(self.graph.node(other).op.name()) && !self.has_control(other);
        Ok(is_one && self.is_beside(first, other)?)
    }

    /// Whether both are on one device, and of one type.
    fn is_beside(&self, one: NodeId, other: NodeId) -> Result<bool> {
        let (one, other) = (self.graph.node(one), self.graph.node(other));
        Ok(one.device == other.device && one.attr::<DType>("T")? == other.attr::<DType>("T")?)
    }

    /// The normalisation whose first output an activation alone comes from, which is input 1 of its gradient.
    fn norm_of(&self, slope: NodeId, activation: &str) -> Option<NodeId> {
        let features = self.source(slope, 1)?.node;
        let is_one = self.graph.node(features).op.name() == activation && !self.has_control(features);
        let normal = self.source(features, 0).filter(|normal| is_one && normal.index == 0)?.node;
        let name = self.graph.node(normal).op.name();
        NORMS.iter().any(|(norm, _)| *norm == name).then_some(normal)
    }

    /// What is read at a slot.
    fn source(&self, id: NodeId, slot: usize) -> Option<Output> {
        let producer = self.topology.producers(id).get(slot)?;
        (!producer.is_control()).then(|| producer.source())
    }

    fn sources(&self, id: NodeId, slots: std::ops::Range<usize>) -> Vec<Output> {
        slots.filter_map(|slot| self.source(id, slot)).collect()
    }

    fn has_control(&self, id: NodeId) -> bool {
        self.topology.producers(id).iter().any(|producer| producer.is_control())
    }

    /// Who alone reads an output.
    fn only_reader(&self, of: Output) -> Option<Consumer> {
        let mut readers =
            self.topology.consumers(of.node).iter().filter(|c| !c.is_control() && c.output == of.index);
        readers.next().filter(|_| readers.next().is_none()).copied()
    }

    /// Whether anybody needs more of a normalisation than its first output.
    fn has_other_readers(&self, norm: NodeId) -> bool {
        self.topology.consumers(norm).iter().any(|consumer| consumer.is_control() || consumer.output != 0)
    }

    /// Whether a value does not come from the normalisation, and is alive whenever that is: so others who need that
    /// may wait for it.
    fn is_there_before(&self, value: NodeId, norm: NodeId) -> bool {
        if self.place[value.index()] >= self.place[norm.index()] {
            return false;
        }
        let mut known = FxHashSet::from_iter([value]);
        let mut open = vec![value];
        while let Some(id) = open.pop() {
            let role = self.graph.node(id).op.role();
            // One output of a Switch tells nothing of the other.
            if role == Role::Switch || known.len() > MOST_LOOKED_AT {
                return false;
            }
            if self.lineage.is_before(id, norm) {
                continue;
            }
            if !needs_all_inputs(role) {
                return false;
            }
            open.extend(self.topology.producers(id).iter().map(|p| p.node).filter(|id| known.insert(*id)));
        }
        true
    }
}
