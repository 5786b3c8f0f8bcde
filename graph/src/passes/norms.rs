//! Fusion of batch normalization. A normalization, an optional sum and the activation after it become one node. The
//! gradient of an activation and the gradient of the normalization before it become one node, which recomputes the
//! activation from the normalization's inputs to find where it passes no gradient. Both fusions halve the number of
//! times that images are read and written.

use super::ancestors::{AncestorForest, needs_all_inputs};
use super::fusion::{FusedNode, Fusion, Fusions, apply_fusions, control_inputs_of};
use super::reference_reads::ReferenceReads;
use crate::attr::AttrValue;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Consumer, Graph, NodeId, Output};
use crate::node::Node;
use crate::ops::{self, Op, Role};
use crate::topology::Topology;
use rustc_hash::FxHashSet;

/// The normalization ops that are fused, each with its gradient op.
const NORMS: &[(&str, &str)] = &[
    ("FusedBatchNorm", "FusedBatchNormGrad"),
    ("FusedBatchNormV2", "FusedBatchNormGradV2"),
    ("FusedBatchNormV3", "FusedBatchNormGradV3"),
];

/// The activation ops that may follow a normalization, each with its gradient op.
const ACTIVATIONS: &[(&str, &str)] = &[("Relu", "ReluGrad"), ("Relu6", "Relu6Grad")];

/// The ops that may add a side input to the output of a normalization, before its activation.
const SUMS: &[&str] = &["AddV2", "Add"];

/// The largest number of nodes visited to prove that a side input is available before a normalization.
const MAX_VISITED: usize = 64;

/// Fuses batch normalizations with the activations around them.
///
/// A normalization, the sum that is the only reader of its first output (if there is one), and the activation that is
/// the only reader of the sum or normalization become one `_FusedBatchNormEx`. The gradient of an activation and the
/// normalization gradient that is its only reader become one `_FusedBatchNormActivationGrad`. All nodes of a group are
/// on one device and have one element type, and `takes` must accept the fused node. `_FusedBatchNormEx` has the name of
/// the activation; its first output is the activation's output, and its other outputs are those of the normalization. A
/// node that may read a reference is fused only if fusion does not delay the read.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop; `Unimplemented` if the op table lacks a fused op.
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
    let pass = NormFusion::new(&graph, &topology)?;
    let mut fusions = Fusions::default();
    for (id, node) in graph.nodes() {
        let found = match node.op.name() {
            name if NORMS.iter().any(|(norm, _)| *norm == name) => pass.forward(id, forward)?,
            name if NORMS.iter().any(|(_, gradient)| *gradient == name) => pass.backward(id, backward)?,
            _ => continue,
        };
        // Two normalizations may feed the same sum; the sum is fused with the normalization that comes first in the
        // graph.
        if let Some((others, joined)) = found
            && !others.iter().any(|other| fusions.contains_key(other))
            && takes(&joined.node)
        {
            fusions.extend(others.into_iter().map(|other| (other, Fusion::PartOf(id))));
            fusions.insert(id, Fusion::Node(joined));
        }
    }
    match fusions.is_empty() {
        true => Ok(graph),
        false => apply_fusions(&graph, &topology, &fusions),
    }
}

/// The attributes that a fused node takes over from its normalization; the normalization and its gradient must agree on
/// them.
const SHARED_ATTRS: &[&str] = &["T", "epsilon", "data_format", "is_training"];

/// Returns the values of the shared attributes, defaults included.
fn shared_attrs(node: &Node) -> Result<Vec<AttrValue>> {
    SHARED_ATTRS.iter().map(|name| node.attr(name)).collect()
}

/// A graph that is searched for normalizations to fuse.
struct NormFusion<'a> {
    graph: &'a Graph,
    topology: &'a Topology,
    /// Index of each node in a topological order.
    place: Vec<u32>,
    ancestors: AncestorForest,
    reads: ReferenceReads<'a>,
}

/// The nodes that the fused node absorbs, and the fused node itself; `None` if the nodes do not match the fusion's
/// pattern.
type Match = Option<(Vec<NodeId>, FusedNode)>;

impl<'a> NormFusion<'a> {
    fn new(graph: &'a Graph, topology: &'a Topology) -> Result<NormFusion<'a>> {
        let order = topology.order(graph)?;
        let mut place = vec![0; graph.len()];
        for (at, id) in order.iter().enumerate() {
            place[id.index()] = at as u32;
        }
        let ancestors = AncestorForest::new(graph, topology, &order)?;
        let reads = ReferenceReads::new(graph, topology, &order)?;
        Ok(NormFusion { graph, topology, place, ancestors, reads })
    }

    /// Matches a normalization, an optional sum and an activation.
    fn forward(&self, norm: NodeId, op: &'static Op) -> Result<Match> {
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
        if side.is_some_and(waits) || inner.iter().any(|id| self.reads.would_read_later(*id, &whole)) {
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

    /// Matches the gradient of a normalization with the gradient of the activation after that normalization.
    fn backward(&self, gradient: NodeId, op: &'static Op) -> Result<Match> {
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
        if !NORMS.contains(&(before.op.name(), of.op.name())) || shared_attrs(before)? != shared_attrs(of)? {
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
        // The fused gradient reads the normalization's inputs a second time. These inputs have unchanged values only if
        // the gradient reads the same outputs, and if no input is a reference to a variable that may have been written
        // in between.
        let is_read_again = given == [&[*x, *scale][..], &statistics].concat()
            && !used.iter().any(|input| self.reads.may_be_reference(input.node))
            && (is_training || !self.has_control(norm));
        let whole = vec![gradient, slope];
        if !is_read_again || self.reads.would_read_later(slope, &whole) {
            return Ok(None);
        }
        let mut inputs = vec![self.topology.producers(slope)[0].source()];
        inputs.extend(given);
        inputs.push(*offset);
        self.joined(Node::new(of.name.clone(), op), of, activation, whole, inputs)
    }

    /// Completes the fused node with the shared attributes of the normalization `of` and with control inputs. `whole`
    /// lists the nodes that are fused; the fused node replaces the first of them.
    fn joined(
        &self,
        node: Node,
        of: &Node,
        activation: &'static str,
        whole: Vec<NodeId>,
        inputs: Vec<Output>,
    ) -> Result<Match> {
        let mut node = node
            .with_attr("U", of.attr::<DType>("U").unwrap_or(DType::Float))
            .with_attr("activation_mode", activation);
        for (name, value) in SHARED_ATTRS.iter().zip(shared_attrs(of)?) {
            node = node.with_attr(name, value);
        }
        node.device = of.device.clone();
        if node.op.check_attrs(&node.attrs).is_err() {
            return Ok(None);
        }
        let control = control_inputs_of(self.topology, &whole);
        Ok(Some((whole[1..].to_vec(), FusedNode { node, inputs, control })))
    }

    /// Returns whether the op of `other` satisfies `is_such`, and `other` has the device and element type of `first`
    /// and no control inputs.
    fn follows(&self, first: NodeId, other: NodeId, is_such: impl Fn(&str) -> bool) -> Result<bool> {
        let is_one = is_such(self.graph.node(other).op.name()) && !self.has_control(other);
        Ok(is_one && self.is_beside(first, other)?)
    }

    /// Returns whether both nodes are on one device and have one element type.
    fn is_beside(&self, one: NodeId, other: NodeId) -> Result<bool> {
        let (one, other) = (self.graph.node(one), self.graph.node(other));
        Ok(one.device == other.device && one.attr::<DType>("T")? == other.attr::<DType>("T")?)
    }

    /// Returns the normalization whose output the activation reads; input 1 of the activation's gradient `slope` is the
    /// activation's output.
    fn norm_of(&self, slope: NodeId, activation: &str) -> Option<NodeId> {
        let features = self.source(slope, 1)?.node;
        let is_one = self.graph.node(features).op.name() == activation && !self.has_control(features);
        let normal = self.source(features, 0).filter(|normal| is_one && normal.index == 0)?.node;
        let name = self.graph.node(normal).op.name();
        NORMS.iter().any(|(norm, _)| *norm == name).then_some(normal)
    }

    /// Returns the output that the node reads at a data input.
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

    /// Returns the consumer of an output if there is exactly one.
    fn only_reader(&self, of: Output) -> Option<Consumer> {
        let mut readers =
            self.topology.consumers(of.node).iter().filter(|c| !c.is_control() && c.output == of.index);
        readers.next().filter(|_| readers.next().is_none()).copied()
    }

    /// Returns whether any consumer reads another output of the normalization than the first, or is a control edge.
    fn has_other_readers(&self, norm: NodeId) -> bool {
        self.topology.consumers(norm).iter().any(|consumer| consumer.is_control() || consumer.output != 0)
    }

    /// Returns whether `value` does not depend on the normalization `norm`, and is alive whenever `norm` is alive. The
    /// fused node can then wait for `value` without delaying other readers of the normalization, or making them dead.
    fn is_there_before(&self, value: NodeId, norm: NodeId) -> bool {
        if self.place[value.index()] >= self.place[norm.index()] {
            return false;
        }
        let mut known = FxHashSet::from_iter([value]);
        let mut open = vec![value];
        while let Some(id) = open.pop() {
            let role = self.graph.node(id).op.role();
            // The search ends at a Switch, because `AncestorForest` does not record which output of the Switch is
            // alive.
            if role == Role::Switch || known.len() > MAX_VISITED {
                return false;
            }
            if self.ancestors.is_before(id, norm) {
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
