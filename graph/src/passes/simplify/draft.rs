//! The graph while rules are applied to it: the current form of each node, its inputs and its control inputs.

use super::classes::ShapeClasses;
use super::rule::Rule;
use super::site::Site;
use super::sizes::NodeFacts;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::{Graph, NodeId, Output};
use crate::infer::Shapes;
use crate::node::Node;
use crate::ops::{self, Op, Role};
use crate::passes::ancestors::AncestorForest;
use crate::passes::{checked, colocation_anchors, is_placeholder, references};
use crate::topology::Topology;
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;

/// The number of times that one node may be rewritten.
const MAX_REWRITES: usize = 16;

/// A graph together with the rewrites applied so far.
pub(super) struct Draft<'a> {
    pub(super) graph: &'a Graph,
    pub(super) topology: Topology,
    ancestors: AncestorForest,
    pub(super) shapes: Shapes,
    pub(super) classes: ShapeClasses,
    order: Vec<NodeId>,
    /// The nodes of the option `keep`, which are not changed.
    fixed: FxHashSet<NodeId>,
    /// Nodes that other nodes are colocated with.
    pub(super) anchors: FxHashSet<NodeId>,
    /// Set for nodes that may return a reference.
    pub(super) references: Vec<bool>,
    pub(super) has_loops: bool,
    /// The new forms of the nodes whose op, attributes or inputs were rewritten.
    pub(super) changed: FxHashMap<NodeId, RewrittenNode>,
    /// For each removed node, the output that its readers read instead.
    pub(super) removed: FxHashMap<NodeId, Output>,
    /// For each replaced output of a node that stays, the output that readers read instead.
    pub(super) replaced: FxHashMap<Output, Output>,
    /// New constants, whose ids follow those of the graph's nodes; each constant is inserted before the node that reads
    /// it.
    pub(super) added: Vec<AddedConstant>,
    pub(super) identity: &'static Op,
    pub(super) constant: &'static Op,
}

/// The current form of a rewritten node.
pub(super) struct RewrittenNode {
    pub(super) node: Node,
    pub(super) inputs: SmallVec<[Output; 4]>,
    pub(super) control: Control,
}

pub(super) type Control = SmallVec<[NodeId; 2]>;

/// A constant that a rewrite adds.
pub(super) struct AddedConstant {
    pub(super) before: NodeId,
    pub(super) node: Node,
    pub(super) control: Control,
}

impl<'a> Draft<'a> {
    pub(super) fn new(graph: &'a Graph, keep: &[NodeId]) -> Result<Draft<'a>> {
        let op = |name| {
            ops::lookup(name).ok_or_else(|| Error::unimplemented(format!("simplifying needs the op {name}")))
        };
        let topology = Topology::new(graph);
        let order = topology.order(graph)?;
        Ok(Draft {
            ancestors: AncestorForest::new(graph, &topology, &order)?,
            references: references(graph, &topology, &order)?,
            shapes: Shapes::default(),
            classes: ShapeClasses::default(),
            fixed: keep.iter().copied().collect(),
            anchors: colocation_anchors(graph).collect(),
            has_loops: graph.nodes().any(|(_, node)| node.op.role() == Role::Enter),
            changed: FxHashMap::default(),
            removed: FxHashMap::default(),
            replaced: FxHashMap::default(),
            added: Vec::new(),
            identity: op("Identity")?,
            constant: op("Const")?,
            graph,
            topology,
            order,
        })
    }

    /// Returns the topological order of the graph, and leaves an empty list in the draft.
    pub(super) fn order(&mut self) -> Vec<NodeId> {
        std::mem::take(&mut self.order)
    }

    /// Infers the node's shapes and applies rules to it until none matches. All producers of the node must have been
    /// visited before.
    pub(super) fn visit(&mut self, id: NodeId, rules: &[Vec<&'static Rule>]) -> Result<()> {
        let outputs = self.graph.node(id).output_types()?.len();
        if self.fixed.contains(&id) {
            for index in 0..outputs {
                self.shapes.hide_value(Output::new(id, index));
            }
            return Ok(());
        }
        // If shape inference finds a contradiction, the node is not rewritten, and its kernel reports the error if the
        // node runs.
        if self.shapes.infer_node(self.graph, id).is_err() {
            return Ok(());
        }
        let can_rewrite = self.can_rewrite(id)?;
        for _ in 0..MAX_REWRITES {
            if !can_rewrite || self.removed.contains_key(&id) || !self.simplify_once(id, rules)? {
                break;
            }
        }
        let inputs = self.inputs(id);
        if !self.removed.contains_key(&id) && !inputs.iter().any(|input| self.may_be_reshaped(*input)) {
            let described: SmallVec<[Option<Output>; 4]> =
                inputs.iter().map(|input| self.described(*input)).collect();
            let Draft { classes, shapes, changed, graph, .. } = self;
            let node = changed.get(&id).map_or(graph.node(id), |changed| &changed.node);
            let shape = |output| shapes.get(output);
            let integers = |output| shapes.value(graph, output)?.to_i64s().ok();
            let facts = NodeFacts { id, node, inputs: &inputs, shape: &shape, integers: &integers };
            classes.learn(&facts, &described);
        }
        Ok(())
    }

    /// Returns the output whose shape vector is `value`; `None` if `value` is not computed by Shape or ShapeN.
    fn described(&self, value: Output) -> Option<Output> {
        let is_shape = |op: &str| op == "Shape" || op == "ShapeN";
        let is_known = value.node.index() < self.graph.len() && !self.fixed.contains(&value.node);
        if !is_known || !is_shape(self.node(value.node).op.name()) {
            return None;
        }
        let of = self.inputs(value.node).get(value.index as usize).copied()?;
        (!self.may_be_reshaped(of)).then_some(of)
    }

    /// Returns whether the output may have another shape at a later read, because it is a reference to a variable
    /// without a fixed shape.
    fn may_be_reshaped(&self, output: Output) -> bool {
        let is_reference = self.references.get(output.node.index()).is_some_and(|is_one| *is_one);
        is_reference && !self.shapes.get(output).is_fully_defined()
    }

    /// Applies the first rule that matches. Returns whether the node changed.
    fn simplify_once(&mut self, id: NodeId, rules: &[Vec<&'static Rule>]) -> Result<bool> {
        for rule in &rules[self.node(id).op.index] {
            let rewrite = (rule.apply)(&Site::of(self, id));
            if let Some(rewrite) = rewrite
                && self.apply(id, rewrite)?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the current form of a node.
    pub(super) fn node(&self, id: NodeId) -> &Node {
        self.changed.get(&id).map_or_else(|| self.graph.node(id), |changed| &changed.node)
    }

    /// Returns the current sources of a node's data inputs.
    pub(super) fn inputs(&self, id: NodeId) -> SmallVec<[Output; 4]> {
        if let Some(changed) = self.changed.get(&id) {
            return changed.inputs.clone();
        }
        let data = self.topology.producers(id).iter().filter(|producer| !producer.is_control());
        data.map(|producer| self.resolve(producer.source())).collect()
    }

    /// Returns the current control inputs of a node.
    pub(super) fn control(&self, id: NodeId) -> Control {
        if let Some(added) = self.added_at(id) {
            return added.control.clone();
        }
        if let Some(changed) = self.changed.get(&id) {
            return changed.control.clone();
        }
        let control = self.topology.producers(id).iter().filter(|producer| producer.is_control());
        control.map(|producer| self.resolve_node(producer.node)).collect()
    }

    pub(super) fn role(&self, id: NodeId) -> Role {
        if self.added_at(id).is_some() { Role::Compute } else { self.graph.node(id).op.role() }
    }

    /// Returns whether the node is a constant that cannot be fed.
    pub(super) fn is_constant(&self, id: NodeId) -> bool {
        self.added_at(id).is_some()
            || (!self.fixed.contains(&id) && std::ptr::eq(self.node(id).op, self.constant))
    }

    fn added_at(&self, id: NodeId) -> Option<&AddedConstant> {
        self.added.get(id.index().checked_sub(self.graph.len())?)
    }

    /// Returns the output that readers of `output` read instead.
    fn resolve(&self, output: Output) -> Output {
        if let Some(replaced) = self.replaced.get(&output) {
            return *replaced;
        }
        match self.removed.get(&output.node) {
            Some(source) => *source,
            None => output,
        }
    }

    fn resolve_node(&self, id: NodeId) -> NodeId {
        self.removed.get(&id).map_or(id, |source| source.node)
    }

    /// Returns whether rules may rewrite the node: its outputs depend on its inputs alone, and no input or output is a
    /// reference.
    fn can_rewrite(&self, id: NodeId) -> Result<bool> {
        let node = self.graph.node(id);
        let is_value = |types: ops::PortTypes| types.iter().all(|port| !port.is_ref);
        Ok(node.op.role() == Role::Compute
            && !node.op.is_stateful()
            && !is_placeholder(node.op)
            && !node.op.outputs.is_empty()
            && is_value(node.input_types()?)
            && is_value(node.output_types()?)
            && !self
                .topology
                .producers(id)
                .iter()
                .any(|p| !p.is_control() && self.references[p.node.index()]))
    }

    /// Returns whether rules may let the readers of the node read the node's inputs in place of its outputs.
    pub(super) fn may_be_looked_through(&self, id: NodeId) -> bool {
        id.index() < self.graph.len() && !self.fixed.contains(&id) && self.can_rewrite(id).unwrap_or(false)
    }

    /// Returns whether the time at which the node runs cannot be observed, so that a control edge from the node can be
    /// replaced by control edges from its inputs.
    pub(super) fn is_pure(&self, id: NodeId) -> bool {
        let reads_state = || {
            let types = self.node(id).input_types();
            types.is_ok_and(|types| types.iter().any(|port| port.dtype == DType::Resource))
        };
        self.may_be_looked_through(id) && !reads_state()
    }

    /// Returns whether `one` has certainly run before `other` and is alive whenever `other` is.
    pub(super) fn is_before(&self, one: NodeId, other: NodeId) -> bool {
        one.index().max(other.index()) < self.graph.len() && self.ancestors.is_before(one, other)
    }

    /// Builds the simplified graph, with the nodes in their original order.
    pub(super) fn finish(self) -> Result<Graph> {
        let graph = self.graph;
        let mut out = Graph::with_capacity(graph.len(), graph.num_edges()).with_settings_of(graph);
        let mut added_of: FxHashMap<NodeId, Vec<usize>> = FxHashMap::default();
        for (at, added) in self.added.iter().enumerate() {
            added_of.entry(added.before).or_default().push(at);
        }
        let mut new_ids = vec![None; graph.len() + self.added.len()];
        for id in graph.ids() {
            for at in added_of.get(&id).into_iter().flatten() {
                let mut node = self.added[*at].node.clone();
                while graph.find(&node.name).is_some() || out.find(&node.name).is_some() {
                    node.name = format!("{}_", node.name).into();
                }
                new_ids[graph.len() + at] = Some(out.add_unconnected(node)?);
            }
            if !self.removed.contains_key(&id) {
                new_ids[id.index()] = Some(out.add_unconnected(self.node(id).clone())?);
            }
        }
        let new_id = |id: NodeId| {
            new_ids[id.index()]
                .ok_or_else(|| Error::invalid(format!("simplifying lost '{}'", graph.node(id).name)))
        };
        let all = graph.ids().chain((graph.len()..new_ids.len()).map(NodeId::new));
        for id in all.filter(|id| new_ids[id.index()].is_some()) {
            let to = new_id(id)?;
            let inputs = if self.added_at(id).is_some() { SmallVec::new() } else { self.inputs(id) };
            for (slot, source) in inputs.into_iter().enumerate() {
                let source = self.resolve(source);
                out.connect(Output { node: new_id(source.node)?, index: source.index }, to, slot);
            }
            let mut seen = Control::new();
            for from in self.control(id) {
                let from = self.resolve_node(from);
                if is_first(&mut seen, from) {
                    out.connect_control(new_id(from)?, to);
                }
            }
        }
        checked(out)
    }
}

/// Returns whether `from` is not among the last eight entries of `seen`, the sources of the node's previous control
/// edges, and then appends `from` to `seen`. Duplicate edges are rare and next to each other, so a full search is not
/// worth its time.
fn is_first(seen: &mut Control, from: NodeId) -> bool {
    let is_first = !seen.iter().rev().take(8).any(|known| *known == from);
    if is_first {
        seen.push(from);
    }
    is_first
}
