//! Simplification: nodes whose values follow from others, or from shapes, with less work. Rules are data in the tables
//! of the files beside this one; here is the walk that applies them.

mod classes;
mod draft;
mod forms;
mod operand;
mod order;
mod pass_on;
mod reduce;
mod reshape;
mod rule;
mod shape_values;
mod site;
mod sizes;
mod transpose;

use crate::error::Result;
use crate::graph::{Graph, NodeId};
use draft::Draft;

/// Rules of a kind are switched together, as TensorFlow's optimizers are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simplification {
    /// What passes its input on (`Identity` and its like).
    PassingOn,
    /// What constants and shapes decide: `x * 1`, a reshape to the shape that it has, the shape itself.
    Constants,
    /// What two ops in a row come to: a negation of a negation, one transposition after another.
    Arithmetic,
    /// Arithmetic on shapes.
    Shapes,
}

impl Simplification {
    pub const ALL: &'static [Simplification] = &[
        Simplification::PassingOn,
        Simplification::Constants,
        Simplification::Arithmetic,
        Simplification::Shapes,
    ];
}

/// What may be simplified.
#[derive(Clone, Debug)]
pub struct SimplifyOptions<'a> {
    /// Nodes that are fed, fetched or named otherwise from outside: they stay as they are, and what they give is not
    /// known.
    pub keep: &'a [NodeId],
    pub kinds: &'a [Simplification],
}

impl SimplifyOptions<'_> {
    pub const DEFAULT: SimplifyOptions<'static> = SimplifyOptions { keep: &[], kinds: Simplification::ALL };
}

/// Gives nodes another form where rules know one that costs less and has the same values, bit for bit.
///
/// A node keeps its name, device and colocation, or goes: then its readers take what it stood for, which is on the
/// same device. Either way they wait for whatever they waited for, are dead where they were dead, and in the same
/// frame. References are left alone: when they are read shows. Nodes that nobody reads any more stay, for
/// [`prune`](super::prune).
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is no loop.
pub fn simplify(graph: &Graph, options: &SimplifyOptions<'_>) -> Result<Graph> {
    let mut draft = Draft::new(graph, options.keep)?;
    let rules = rule::by_op(options.kinds);
    for id in draft.order() {
        draft.visit(id, &rules)?;
    }
    draft.finish()
}
