//! Simplification: nodes are replaced if their values can be computed with less work from other nodes or from shapes.
//! The rules are tables in the other files of this folder; this file holds the pass that applies them.

mod apply;
mod classes;
mod control;
mod draft;
mod forward;
mod operand;
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

/// The kinds of rules; like TensorFlow's optimizers, each kind can be switched on and off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Simplification {
    /// Removal of nodes that forward their input (`Identity` and similar ops).
    Forwarding,
    /// Simplifications that a constant operand or a known shape allows: `x * 1` becomes `x`, a reshape to the input's
    /// shape is removed, the shape of a tensor of known shape becomes a constant.
    Constants,
    /// Combinations of two ops in a row, such as two negations or two transpositions.
    Arithmetic,
    /// Simplifications of arithmetic on shape vectors.
    Shapes,
}

impl Simplification {
    /// All kinds of rules.
    pub const ALL: &'static [Simplification] = &[
        Simplification::Forwarding,
        Simplification::Constants,
        Simplification::Arithmetic,
        Simplification::Shapes,
    ];
}

/// The nodes that simplification must not change, and the rules that it may apply.
#[derive(Clone, Debug)]
pub struct SimplifyOptions<'a> {
    /// Nodes that are fed, fetched or otherwise referred to from outside the graph; the pass does not change them and
    /// does not rely on their values.
    pub keep: &'a [NodeId],
    /// The kinds of rules to apply.
    pub kinds: &'a [Simplification],
}

impl SimplifyOptions<'_> {
    /// Default options: an empty `keep`, all kinds of rules.
    pub const DEFAULT: SimplifyOptions<'static> = SimplifyOptions { keep: &[], kinds: Simplification::ALL };
}

/// Rewrites nodes into cheaper forms that have the same values, bit for bit.
///
/// A node keeps its name, device and colocation, or is removed; its readers then read an output with the same value on
/// the same device. In both cases the readers still wait for the same nodes, are dead in the same cases, and belong to
/// the same loop frame. Reads of references are not changed, because the time of a read can be observed. Nodes without
/// readers stay; [`prune`](super::prune) removes them.
///
/// # Errors
/// `InvalidArgument` naming a node of a cycle that is not a loop; `Unimplemented` if the op table lacks `Identity` or
/// `Const`.
pub fn simplify(graph: &Graph, options: &SimplifyOptions<'_>) -> Result<Graph> {
    let mut draft = Draft::new(graph, options.keep)?;
    let rules = rule::by_op(options.kinds);
    for id in draft.order() {
        draft.visit(id, &rules)?;
    }
    draft.finish()
}
