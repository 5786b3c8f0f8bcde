//! The format of simplification rules: the ops a rule applies to, its kind, and the rewrite that it makes of a node.

use super::site::Site;
use super::{Simplification, forward, operand, reduce, reshape, shape_values, transpose};
use crate::attr::AttrValue;
use crate::graph::{NodeId, Output};
use crate::ops::{self, Op};
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// A simplification rule: a row of a rule table. The new form of a node is at least as cheap as the old form, and no
/// other rule restores the old form, so that repeated application ends.
pub(super) struct Rule {
    pub(super) ops: &'static [&'static str],
    pub(super) kind: Simplification,
    /// The function that returns the rewrite of a node, or `None` if the rule does not match; it visits a bounded
    /// number of nodes.
    pub(super) apply: fn(&Site<'_>) -> Option<Rewrite>,
}

/// The result of a rule for a node: the node's new form, and the nodes that it bypasses.
pub(super) struct Rewrite {
    pub(super) form: Form,
    /// The nodes between the rewritten node and its new inputs; the rewritten node must still wait for the inputs and
    /// control inputs of these nodes.
    pub(super) bypassed: SmallVec<[NodeId; 2]>,
}

/// The new form of a node.
pub(super) enum Form {
    /// An existing output that has the value of the node's only output and replaces it.
    Same(Output),
    /// Another op, other attributes or other inputs for the node.
    Other { op: &'static Op, attrs: Vec<(&'static str, AttrValue)>, inputs: Vec<Input> },
    /// Constants that replace the node's outputs; `None` for outputs whose values are unknown.
    Values(Vec<Option<Tensor>>),
}

/// An input of a node in its new form.
pub(super) enum Input {
    From(Output),
    Constant(Tensor),
}

impl Rewrite {
    /// Returns a rewrite that replaces the node by an existing output.
    pub(super) fn same(output: Output) -> Option<Rewrite> {
        Some(Rewrite { form: Form::Same(output), bypassed: SmallVec::new() })
    }

    /// Returns a rewrite that replaces outputs by constants, with one entry per output of the node.
    pub(super) fn values(values: Vec<Option<Tensor>>) -> Option<Rewrite> {
        Some(Rewrite { form: Form::Values(values), bypassed: SmallVec::new() })
    }

    /// Returns a rewrite that gives the node the op `op`, or `None` if the op table has no such op.
    pub(super) fn other(
        op: &str,
        attrs: impl IntoIterator<Item = (&'static str, AttrValue)>,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Option<Rewrite> {
        let (attrs, inputs) = (attrs.into_iter().collect(), inputs.into_iter().collect());
        Some(Rewrite { form: Form::Other { op: ops::lookup(op)?, attrs, inputs }, bypassed: SmallVec::new() })
    }

    /// Returns the rewrite with the node of `site` added to the bypassed nodes.
    pub(super) fn bypassing(mut self, site: &Site<'_>) -> Rewrite {
        self.bypassed.push(site.id);
        self
    }
}

const TABLES: &[&[Rule]] =
    &[forward::RULES, shape_values::RULES, operand::RULES, reduce::RULES, reshape::RULES, transpose::RULES];

/// Returns the rules of these kinds, indexed by op; for each op the first rule that matches is applied.
pub(super) fn by_op(kinds: &[Simplification]) -> Vec<Vec<&'static Rule>> {
    let mut by_op = vec![Vec::new(); ops::all().len()];
    for rule in TABLES.iter().copied().flatten().filter(|rule| kinds.contains(&rule.kind)) {
        for op in rule.ops.iter().filter_map(|name| ops::lookup(name)) {
            by_op[op.index].push(rule);
        }
    }
    by_op
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_existing_stateless_ops() {
        for name in TABLES.iter().copied().flatten().flat_map(|rule| rule.ops) {
            let op = ops::lookup(name);
            assert!(op.is_some_and(|op| !op.is_stateful()), "{name}");
        }
    }
}
