//! What a node in a new form has to wait for, so that whoever reads it still waits for what the old form did.

use super::draft::{Control, Draft};
use crate::graph::{NodeId, Output};
use crate::ops::Role;

/// What is waited for is followed back so far, and so many nodes are looked at.
const MOST_STEPS: u32 = 4;
const MOST_NODES: usize = 64;

/// A node that would have to wait for more than this stays as it was.
const MOST_AWAITED: usize = 64;

impl Draft<'_> {
    /// What a node that takes these outputs must wait for besides, to run after all that it, and the nodes that it
    /// looked through, ran after, and to live only where they did. `None` if no control edges say that.
    pub(super) fn still_awaited(&self, id: NodeId, through: &[NodeId], taken: &[Output]) -> Option<Control> {
        let mut awaited = Awaited { draft: self, taken, left: MOST_NODES, control: Control::new() };
        for member in std::iter::once(&id).chain(through) {
            for before in self.control(*member) {
                awaited.wait_for(before)?;
            }
            for input in self.inputs(*member) {
                if !through.contains(&input.node) {
                    awaited.wait_for_value(input, MOST_STEPS)?;
                }
            }
        }
        Some(awaited.control)
    }
}

struct Awaited<'d, 'a> {
    draft: &'d Draft<'a>,
    taken: &'d [Output],
    /// How many nodes may still be looked at.
    left: usize,
    control: Control,
}

impl Awaited<'_, '_> {
    fn wait_for_value(&mut self, value: Output, steps: u32) -> Option<()> {
        if self.has_value(value, steps) {
            return Some(());
        }
        let id = value.node;
        // A control edge from a Switch does not tell which way the value went.
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
        if self.has(id, MOST_STEPS) { Some(()) } else { self.push(id) }
    }

    fn push(&mut self, id: NodeId) -> Option<()> {
        if !self.control.contains(&id) {
            self.control.push(id);
        }
        (self.control.len() <= MOST_AWAITED).then_some(())
    }

    fn has_value(&mut self, value: Output, steps: u32) -> bool {
        self.taken.contains(&value)
            || (self.draft.role(value.node) != Role::Switch && self.has(value.node, steps))
    }

    /// Whether the node has surely run before what is taken, and lives wherever that does.
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
            && draft.topology.producers(id).len() <= MOST_NODES
            && draft.inputs(id).into_iter().all(|input| self.has_value(input, steps - 1))
            && draft.control(id).into_iter().all(|before| self.has(before, steps - 1))
    }
}
