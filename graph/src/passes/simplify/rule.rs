//! Rules as data: for which ops, of which kind, and what they make of a node.

use super::site::Site;
use super::{Simplification, operand, pass_on, reduce, reshape, shape_values, transpose};
use crate::attr::AttrValue;
use crate::graph::{NodeId, Output};
use crate::ops::{self, Op};
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// One row of a table. What a rule gives is at least as good as what was there and is not undone by another rule, so
/// that applying them again and again ends.
pub(super) struct Rule {
    pub(super) ops: &'static [&'static str],
    pub(super) kind: Simplification,
    /// Looks at a bounded number of nodes.
    pub(super) apply: fn(&Site<'_>) -> Option<Rewrite>,
}

/// What a rule makes of a node.
pub(super) struct Rewrite {
    pub(super) form: Form,
    /// Nodes on the way from the node to what it now takes: their inputs counted, and what they wait for still does.
    pub(super) through: SmallVec<[NodeId; 2]>,
}

pub(super) enum Form {
    /// Its one output is this.
    Same(Output),
    /// It is of another op, or takes something else.
    Other { op: &'static Op, attrs: Vec<(&'static str, AttrValue)>, inputs: Vec<Input> },
    /// The values of its outputs, of those that are known.
    Values(Vec<Option<Tensor>>),
}

pub(super) enum Input {
    From(Output),
    Constant(Tensor),
}

impl Rewrite {
    pub(super) fn same(output: Output) -> Option<Rewrite> {
        Some(Rewrite { form: Form::Same(output), through: SmallVec::new() })
    }

    pub(super) fn values(values: Vec<Option<Tensor>>) -> Option<Rewrite> {
        Some(Rewrite { form: Form::Values(values), through: SmallVec::new() })
    }

    pub(super) fn other(
        op: &str,
        attrs: impl IntoIterator<Item = (&'static str, AttrValue)>,
        inputs: impl IntoIterator<Item = Input>,
    ) -> Option<Rewrite> {
        let (attrs, inputs) = (attrs.into_iter().collect(), inputs.into_iter().collect());
        Some(Rewrite { form: Form::Other { op: ops::lookup(op)?, attrs, inputs }, through: SmallVec::new() })
    }

    pub(super) fn through(mut self, site: &Site<'_>) -> Rewrite {
        self.through.push(site.id);
        self
    }
}

const TABLES: &[&[Rule]] =
    &[pass_on::RULES, shape_values::RULES, operand::RULES, reduce::RULES, reshape::RULES, transpose::RULES];

/// The rules of these kinds for each op, by its index; the first that applies is taken.
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
    fn rules_name_ops_that_there_are() {
        for name in TABLES.iter().copied().flatten().flat_map(|rule| rule.ops) {
            let op = ops::lookup(name);
            assert!(op.is_some_and(|op| !op.is_stateful()), "{name}");
        }
    }
}
