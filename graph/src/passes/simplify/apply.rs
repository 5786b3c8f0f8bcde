//! Application of a rewrite to a node: its new form, and the control inputs that the new form needs.

use super::draft::{AddedConstant, Control, Draft, RewrittenNode};
use super::rule::{Form, Input, Rewrite};
use crate::attr::{AttrValue, Attrs};
use crate::error::Result;
use crate::graph::{NodeId, Output};
use crate::node::Node;
use crate::ops::{Op, Role};
use crate::tensor::Tensor;
use smallvec::{SmallVec, smallvec};

impl Draft<'_> {
    /// Applies a rewrite to a node, if control edges can preserve the node's ordering and aliveness. Returns whether
    /// the node changed.
    pub(super) fn apply(&mut self, id: NodeId, rewrite: Rewrite) -> Result<bool> {
        match rewrite.form {
            Form::Same(source) => self.replace_by(id, source, &rewrite.bypassed),
            Form::Other { op, attrs, inputs } => self.change(id, op, attrs, inputs, &rewrite.bypassed),
            Form::Values(values) => self.set_values(id, values),
        }
    }

    /// Replaces a node by the output `source`, which has the same value: readers read `source` or, if the node must
    /// stay in the graph, the node becomes an Identity of `source`.
    fn replace_by(&mut self, id: NodeId, source: Output, bypassed: &[NodeId]) -> Result<bool> {
        if source.node.index() < self.graph.len() && self.references[source.node.index()] {
            return Ok(false);
        }
        let Some(control) = self.remaining_control(id, bypassed, &[source]) else { return Ok(false) };
        let is_switch = self.role(source.node) == Role::Switch;
        let orders = || self.topology.consumers(id).iter().any(|consumer| consumer.is_control());
        let goes = control.is_empty()
            && !self.anchors.contains(&id)
            && source.node.index() < self.graph.len()
            && self.graph.node(source.node).device == self.graph.node(id).device
            && !(is_switch && orders());
        if goes {
            self.changed.remove(&id);
            self.removed.insert(id, source);
            return Ok(true);
        }
        let old = self.node(id);
        if std::ptr::eq(old.op, self.identity) && self.inputs(id).as_slice() == [source] {
            return Ok(false);
        }
        let Some(port) = old.output_types()?.first().copied() else { return Ok(false) };
        let node = self.with_form(id, self.identity, [("T", port.dtype.into())]);
        self.changed.insert(id, RewrittenNode { node, inputs: smallvec![source], control });
        Ok(true)
    }

    /// Gives a node another op, other attributes or other inputs.
    fn change(
        &mut self,
        id: NodeId,
        op: &'static Op,
        attrs: Vec<(&'static str, AttrValue)>,
        inputs: Vec<Input>,
        bypassed: &[NodeId],
    ) -> Result<bool> {
        let taken: SmallVec<[Output; 4]> = inputs
            .iter()
            .filter_map(|input| match input {
                Input::From(output) => Some(*output),
                Input::Constant(_) => None,
            })
            .collect();
        let is_reference = |output: &Output| self.references.get(output.node.index()).is_some_and(|is| *is);
        if taken.iter().any(is_reference) {
            return Ok(false);
        }
        let Some(control) = self.remaining_control(id, bypassed, &taken) else { return Ok(false) };
        // Inside a loop, a new constant needs a control input, which decides the iteration that the constant belongs
        // to.
        let is_plain =
            |output: &&Output| self.role(output.node) != Role::Switch && !self.is_constant(output.node);
        let beside = match taken.iter().find(is_plain) {
            Some(output) if self.has_loops => smallvec![output.node],
            None if self.has_loops && taken.len() < inputs.len() => return Ok(false),
            _ => Control::new(),
        };
        let node = self.with_form(id, op, attrs);
        let sources = inputs.into_iter().map(|input| match input {
            Input::From(output) => output,
            Input::Constant(value) => self.add_constant(id, "constant", value, beside.clone()),
        });
        let inputs = sources.collect();
        self.changed.insert(id, RewrittenNode { node, inputs, control });
        Ok(true)
    }

    /// Replaces the node's outputs by constants; `None` in `values` leaves an output unchanged.
    fn set_values(&mut self, id: NodeId, values: Vec<Option<Tensor>>) -> Result<bool> {
        let Some(control) = self.remaining_control(id, &[], &[]) else { return Ok(false) };
        let mut is_read = vec![false; values.len()];
        for consumer in self.topology.consumers(id).iter().filter(|consumer| !consumer.is_control()) {
            is_read[consumer.output as usize] = true;
        }
        let is_wanted =
            |index: &usize| is_read[*index] && !self.replaced.contains_key(&Output::new(id, *index));
        let wanted: Vec<usize> = (0..values.len()).filter(is_wanted).collect();
        let is_whole = wanted.iter().all(|index| values[*index].is_some());
        let mut is_new = false;
        for index in wanted {
            let Some(value) = &values[index] else { continue };
            is_new = true;
            self.shapes.set_value(Output::new(id, index), value.clone());
            if is_whole && index == 0 {
                let node = self.with_form(id, self.constant, constant_attrs(value.clone()));
                self.changed
                    .insert(id, RewrittenNode { node, inputs: SmallVec::new(), control: control.clone() });
                continue;
            }
            let constant = self.add_constant(id, &format!("output_{index}"), value.clone(), control.clone());
            self.replaced.insert(Output::new(id, index), constant);
        }
        Ok(is_new)
    }

    /// Adds a constant with a name under the name of the node `id`; the constant is inserted before that node.
    fn add_constant(&mut self, id: NodeId, what: &str, value: Tensor, control: Control) -> Output {
        let of = self.graph.node(id);
        let mut node = Node::new(format!("{}/{what}", of.name), self.constant);
        node.device = of.device.clone();
        for (name, attr) in constant_attrs(value.clone()) {
            node.attrs.set(name, attr);
        }
        let output = Output::from(NodeId::new(self.graph.len() + self.added.len()));
        self.shapes.set_value(output, value);
        self.added.push(AddedConstant { before: id, node, control });
        output
    }

    /// Returns the node with another op and attributes, but its own name, device and attributes that begin with an
    /// underscore.
    fn with_form(
        &self,
        id: NodeId,
        op: &'static Op,
        attrs: impl IntoIterator<Item = (&'static str, AttrValue)>,
    ) -> Node {
        let old = self.graph.node(id);
        let beside = old.attrs.iter().filter(|(name, _)| name.starts_with('_'));
        let mut kept: Attrs = beside.map(|(name, value)| (name.clone(), value.clone())).collect();
        for (name, value) in attrs {
            kept.set(name, value);
        }
        Node { op, attrs: kept, ..old.clone() }
    }
}

fn constant_attrs(value: Tensor) -> [(&'static str, AttrValue); 2] {
    [("dtype", value.dtype().into()), ("value", value.into())]
}
