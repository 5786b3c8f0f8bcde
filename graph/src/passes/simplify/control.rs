//! The control inputs that a rewritten node needs in order to run after the same nodes as before the rewrite.

use super::draft::{Control, Draft};
use crate::graph::{NodeId, Output};
use crate::ops::Role;

/// The limits of a search through the inputs of a node: the largest depth, and the largest number of visited nodes.
const MAX_DEPTH: u32 = 4;
const MAX_VISITED: usize = 64;

/// The largest number of control inputs that a rewrite may add; a node that needs more is left unchanged.
const MAX_CONTROL: usize = 64;

impl Draft<'_> {
    /// Returns the control inputs that the node needs when its new inputs are the outputs `taken`. The node must still
    /// run after all its old inputs and the inputs of the nodes `bypassed`, and be alive in the same cases. Returns
    /// `None` if control edges cannot ensure both.
    pub(super) fn remaining_control(
        &self,
        id: NodeId,
        bypassed: &[NodeId],
        taken: &[Output],
    ) -> Option<Control> {
        let mut awaited = ControlSearch { draft: self, taken, left: MAX_VISITED, control: Control::new() };
        for member in std::iter::once(&id).chain(bypassed) {
            for before in self.control(*member) {
                awaited.wait_for(before)?;
            }
            for input in self.inputs(*member) {
                if !bypassed.contains(&input.node) {
                    awaited.wait_for_value(input, MAX_DEPTH)?;
                }
            }
        }
        Some(awaited.control)
    }
}

/// A bounded search for the control inputs that a rewritten node needs.
struct ControlSearch<'d, 'a> {
    draft: &'d Draft<'a>,
    taken: &'d [Output],
    /// The number of nodes that the search may still visit.
    left: usize,
    control: Control,
}

impl ControlSearch<'_, '_> {
    fn wait_for_value(&mut self, value: Output, steps: u32) -> Option<()> {
        if self.has_value(value, steps) {
            return Some(());
        }
        let id = value.node;
        // A data edge from a Switch cannot be replaced by a control edge, because a control edge does not depend on
        // which output of the Switch is alive.
        if self.draft.role(id) == Role::Switch {
            return None;
        }
        if self.draft.is_constant(id) {
            return self.draft.control(id).into_iter().try_for_each(|before| self.wait_for(before));
        }
        if steps > 0 && self.draft.node(id).op.def.traits.metadata && self.draft.is_pure(id) {
            self.draft.control(id).into_iter().try_for_each(|before| self.wait_for(before))?;
            let mut inputs = self.draft.inputs(id).into_iter();
            return inputs.try_for_each(|input| self.wait_for_value(input, steps - 1));
        }
        self.push(id)
    }

    fn wait_for(&mut self, id: NodeId) -> Option<()> {
        if self.has(id, MAX_DEPTH) { Some(()) } else { self.push(id) }
    }

    fn push(&mut self, id: NodeId) -> Option<()> {
        if !self.control.contains(&id) {
            self.control.push(id);
        }
        (self.control.len() <= MAX_CONTROL).then_some(())
    }

    fn has_value(&mut self, value: Output, steps: u32) -> bool {
        self.taken.contains(&value)
            || (self.draft.role(value.node) != Role::Switch && self.has(value.node, steps))
    }

    /// Returns whether the node has certainly run before a node that reads the outputs `taken`, and is alive whenever
    /// these outputs are alive.
    fn has(&mut self, id: NodeId, steps: u32) -> bool {
        let Some(left) = self.left.checked_sub(1) else { return false };
        self.left = left;
        let draft = self.draft;
        let is_before = |taken: &Output| taken.node == id || draft.is_before(id, taken.node);
        if self.taken.iter().any(is_before) {
            return true;
        }
        if draft.is_constant(id) {
            return draft.control(id).into_iter().all(|before| self.has(before, steps));
        }
        steps > 0
            && draft.is_pure(id)
            && draft.topology.producers(id).len() <= MAX_VISITED
            && draft.inputs(id).into_iter().all(|input| self.has_value(input, steps - 1))
            && draft.control(id).into_iter().all(|before| self.has(before, steps - 1))
    }
}
