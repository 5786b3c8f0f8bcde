//! Equality of unknown shapes: groups of outputs that certainly have the same shape, although the sizes are unknown.
//! This is enough to prove that a gradient has the shape of its variable or activation.

use super::sizes::{NodeFacts, Size, Sizes, Windows};
use crate::graph::Output;
use crate::ops::Role;
use crate::shape::{Dim, PartialShape};
use rustc_hash::FxHashMap;

/// The groups of outputs with equal shapes, and the equal sizes of single axes, that have been derived so far.
#[derive(Debug, Default)]
pub(super) struct ShapeClasses {
    /// For each output that has the shape of an earlier output, the first output in the chain of equal shapes.
    roots: FxHashMap<Output, Output>,
    /// The symbolic sizes of outputs that share only some sizes with other outputs, but not the whole shape.
    sizes: FxHashMap<Output, Sizes>,
    windows: Windows,
}

impl ShapeClasses {
    fn root(&self, output: Output) -> Output {
        self.roots.get(&output).copied().unwrap_or(output)
    }

    /// Returns the known or symbolic size of each axis of the output, if its rank is known.
    fn sizes(&self, output: Output, shape: &dyn Fn(Output) -> PartialShape) -> Option<Sizes> {
        shape(output).dims().map(|dims| self.sizes_of(output, dims))
    }

    /// Returns the known or symbolic size of each axis of an output, for which shape inference gave `dims`.
    pub(super) fn sizes_of(&self, output: Output, dims: &[Dim]) -> Sizes {
        let root = self.root(output);
        let learnt = self.sizes.get(&root);
        let size = |axis: usize, known: Dim| match (known, learnt.and_then(|sizes| sizes.get(axis))) {
            (Some(known), _) => Size::Known(known),
            (None, Some(size)) => *size,
            (None, None) => Size::OfAxis(root, axis),
        };
        dims.iter().enumerate().map(|(axis, known)| size(axis, *known)).collect()
    }

    /// Returns whether two outputs certainly have the same shape.
    pub(super) fn have_same_shape(
        &self,
        one: Output,
        other: Output,
        shape: &dyn Fn(Output) -> PartialShape,
    ) -> bool {
        let sizes = |output| self.sizes(output, shape);
        self.root(one) == self.root(other) || sizes(one).is_some_and(|one| Some(one) == sizes(other))
    }

    /// Records the equalities between a node's output shapes and its input shapes, after the equalities of its
    /// producers have been recorded. For each input that is the shape vector of some output, `described` holds that
    /// output.
    pub(super) fn learn(&mut self, facts: &NodeFacts<'_>, described: &[Option<Output>]) {
        if facts.node.op.role() != Role::Compute {
            return;
        }
        if let Some(like) = self.like(facts, described) {
            self.roots.insert(facts.id.into(), self.root(like));
            return;
        }
        let Ok(outputs) = facts.node.output_types() else { return };
        let mut windows = std::mem::take(&mut self.windows);
        let sizes = match BROADCASTING.contains(&facts.node.op.name()) {
            true => facts.broadcast(self),
            false => facts.sizes(self, &mut windows),
        };
        self.windows = windows;
        let is_open = |sizes: &Sizes| sizes.iter().any(|size| !matches!(size, Size::Known(_)));
        let Some(sizes) = sizes.filter(is_open) else { return };
        for index in 0..outputs.len() {
            self.sizes.insert(Output::new(facts.id, index), sizes.clone());
        }
    }

    /// Returns an input, or an output described by a shape vector, that certainly has the shape of the node's first
    /// output.
    fn like(&self, facts: &NodeFacts<'_>, described: &[Option<Output>]) -> Option<Output> {
        let (op, inputs) = (facts.node.op.name(), facts.inputs);
        if FIRST.contains(&op) {
            return inputs.first().copied();
        }
        if SECOND.contains(&op) {
            return inputs.get(1).copied();
        }
        if let Some((_, input)) = DESCRIBED.iter().find(|(name, _)| *name == op) {
            return *described.get(*input)?;
        }
        let &[x, y] = inputs else { return None };
        if !BROADCASTING.contains(&op) {
            return None;
        }
        if self.root(x) == self.root(y) || self.keeps_shape(x, y, facts.shape) {
            Some(x)
        } else {
            self.keeps_shape(y, x, facts.shape).then_some(y)
        }
    }

    /// Returns whether broadcasting `one` with `other` certainly leaves the shape of `one` unchanged.
    fn keeps_shape(&self, one: Output, other: Output, shape: &dyn Fn(Output) -> PartialShape) -> bool {
        if keeps_shape(&shape(one), &shape(other)) {
            return true;
        }
        let (Some(ours), Some(theirs)) = (self.sizes(one, shape), self.sizes(other, shape)) else {
            return false;
        };
        let Some(missing) = ours.len().checked_sub(theirs.len()) else { return false };
        ours[missing..].iter().zip(&theirs).all(|(own, other)| *other == Size::Known(1) || own == other)
    }
}

/// Returns whether broadcasting with a tensor of shape `other` certainly leaves the shape `own` unchanged.
pub(super) fn keeps_shape(own: &PartialShape, other: &PartialShape) -> bool {
    let Some(theirs) = other.dims() else { return false };
    if theirs.is_empty() {
        return true;
    }
    let Some(ours) = own.dims().filter(|ours| ours.len() >= theirs.len()) else { return false };
    let facing = &ours[ours.len() - theirs.len()..];
    facing.iter().zip(theirs).all(|(own, other)| *other == Some(1) || (other.is_some() && own == other))
}

/// Ops whose first output has the shape of the first input.
const FIRST: &[&str] = &[
    "Abs",
    "AddN",
    "BiasAdd",
    "Cast",
    "Ceil",
    "CheckNumerics",
    "Elu",
    "Erf",
    "Exp",
    "Expm1",
    "Floor",
    "FusedBatchNorm",
    "FusedBatchNormV2",
    "FusedBatchNormV3",
    "Identity",
    "IsFinite",
    "IsInf",
    "IsNan",
    "LRN",
    "LeakyRelu",
    "Log",
    "Log1p",
    "LogicalNot",
    "MaxPoolGrad",
    "Neg",
    "OnesLike",
    "PreventGradient",
    "Reciprocal",
    "Relu",
    "Relu6",
    "Rint",
    "Round",
    "Rsqrt",
    "RsqrtGrad",
    "Selu",
    "Sigmoid",
    "SigmoidGrad",
    "Sign",
    "Softmax",
    "Softplus",
    "Softsign",
    "Sqrt",
    "SqrtGrad",
    "Square",
    "StopGradient",
    "Tanh",
    "TanhGrad",
    "ZerosLike",
];

/// Ops whose output has the shape of the second input.
const SECOND: &[&str] = &[
    "EluGrad",
    "FusedBatchNormGrad",
    "FusedBatchNormGradV2",
    "FusedBatchNormGradV3",
    "LeakyReluGrad",
    "Relu6Grad",
    "ReluGrad",
    "Select",
    "SeluGrad",
    "SoftplusGrad",
];

/// Ops whose output shape is the value of an input, each with the index of that input.
const DESCRIBED: &[(&str, usize)] = &[
    ("AvgPoolGrad", 0),
    ("BroadcastTo", 1),
    ("Conv2DBackpropInput", 0),
    ("DepthwiseConv2dNativeBackpropInput", 0),
    ("Fill", 0),
    ("RandomStandardNormal", 0),
    ("RandomUniform", 0),
    ("Reshape", 1),
    ("TruncatedNormal", 0),
];

/// Ops whose output has the broadcast shape of both inputs.
const BROADCASTING: &[&str] = &[
    "Add",
    "AddV2",
    "Div",
    "DivNoNan",
    "Equal",
    "FloorDiv",
    "Greater",
    "GreaterEqual",
    "Less",
    "LessEqual",
    "LogicalAnd",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Mul",
    "NotEqual",
    "Pow",
    "RealDiv",
    "SquaredDifference",
    "Sub",
];
