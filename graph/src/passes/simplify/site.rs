//! The view of one node that simplification rules work on: the node, and the shapes and values of its inputs.

use super::draft::Draft;
use crate::attr::FromAttr;
use crate::dtype::DType;
use crate::graph::{NodeId, Output};
use crate::node::Node;
use crate::shape::PartialShape;
use crate::tensor::Tensor;
use smallvec::SmallVec;

/// The node that a rule looks at, in its current form, after the rewrites applied so far.
pub(super) struct Site<'a> {
    draft: &'a Draft<'a>,
    pub(super) id: NodeId,
    pub(super) node: &'a Node,
    pub(super) inputs: SmallVec<[Output; 4]>,
}

impl<'a> Site<'a> {
    pub(super) fn of(draft: &'a Draft<'a>, id: NodeId) -> Site<'a> {
        Site { draft, id, node: draft.node(id), inputs: draft.inputs(id) }
    }

    pub(super) fn op(&self) -> &'static str {
        self.node.op.name()
    }

    pub(super) fn attr<T: FromAttr>(&self, name: &str) -> Option<T> {
        self.node.attr(name).ok()
    }

    pub(super) fn input(&self, i: usize) -> Option<Output> {
        self.inputs.get(i).copied()
    }

    pub(super) fn output(&self) -> Output {
        self.id.into()
    }

    pub(super) fn dtype(&self) -> Option<DType> {
        Some(self.node.output_types().ok()?.first()?.dtype)
    }

    pub(super) fn shape(&self, output: Output) -> PartialShape {
        self.draft.shapes.get(output)
    }

    /// Returns an output's value, if it is a constant or follows from shapes.
    pub(super) fn value(&self, output: Output) -> Option<Tensor> {
        self.draft.shapes.value(self.draft.graph, output)
    }

    /// Like [`Site::value`], for tensors of integers.
    pub(super) fn integers(&self, output: Output) -> Option<Vec<i64>> {
        self.value(output)?.to_i64s().ok()
    }

    /// Returns the partial shape whose sizes are the elements of `output`, a vector, as far as they are known.
    pub(super) fn sizes(&self, output: Output) -> PartialShape {
        self.draft.shapes.value_as_shape(self.draft.graph, output).unwrap_or_default()
    }

    /// Returns whether both outputs certainly have the same shape.
    pub(super) fn have_same_shape(&self, one: Output, other: Output) -> bool {
        self.draft.classes.have_same_shape(one, other, &|output| self.shape(output))
    }

    /// Returns the node that computes `output`, if its op is in `ops`, it is on the device of this node, and readers of
    /// `output` may read the inputs of that node instead.
    pub(super) fn producer_of(&self, output: Output, ops: &[&str]) -> Option<Site<'a>> {
        let id = output.node;
        let is_open = output.index == 0 && self.draft.may_be_looked_through(id);
        if !is_open || !ops.contains(&self.draft.node(id).op.name()) {
            return None;
        }
        let site = Site::of(self.draft, id);
        (site.node.device == self.node.device).then_some(site)
    }

    /// Like [`Site::producer_of`], for any output index and any device: the caller may inspect the node, but must not
    /// use the node's inputs as inputs of a rewrite.
    pub(super) fn any_producer_of(&self, output: Output, ops: &[&str]) -> Option<Site<'a>> {
        let id = output.node;
        let is_open = self.draft.may_be_looked_through(id) && ops.contains(&self.draft.node(id).op.name());
        is_open.then(|| Site::of(self.draft, id))
    }
}
