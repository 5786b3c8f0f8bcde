//! Outputs that surely have one shape, whatever it is: enough to see that gradients have the shape of what they are
//! gradients of.

use super::sizes::{Seen, Size, Sizes, Windows};
use crate::graph::Output;
use crate::ops::Role;
use crate::shape::{Dim, PartialShape};
use rustc_hash::FxHashMap;

/// What is known of shapes that are not known.
#[derive(Debug, Default)]
pub(super) struct Classes {
    /// For each output the one that it has its shape from, by way of ops that keep it.
    roots: FxHashMap<Output, Output>,
    /// The sizes of outputs that have some from others.
    sizes: FxHashMap<Output, Sizes>,
    windows: Windows,
}

impl Classes {
    fn root(&self, output: Output) -> Output {
        self.roots.get(&output).copied().unwrap_or(output)
    }

    /// The output's sizes, if its rank is known.
    fn sizes(&self, output: Output, shape: &dyn Fn(Output) -> PartialShape) -> Option<Sizes> {
        shape(output).dims().map(|dims| self.sizes_of(output, dims))
    }

    /// The sizes of an output of which this is known.
    pub(super) fn sizes_of(&self, output: Output, dims: &[Dim]) -> Sizes {
        let root = self.root(output);
        let learnt = self.sizes.get(&root);
        let size = |axis: usize, known: Dim| match (known, learnt.and_then(|sizes| sizes.get(axis))) {
            (Some(known), _) => Size::Known(known),
            (None, Some(size)) => *size,
            (None, None) => Size::Of(root, axis),
        };
        dims.iter().enumerate().map(|(axis, known)| size(axis, *known)).collect()
    }

    /// Whether two outputs surely have one shape.
    pub(super) fn are_alike(
        &self,
        one: Output,
        other: Output,
        shape: &dyn Fn(Output) -> PartialShape,
    ) -> bool {
        let sizes = |output| self.sizes(output, shape);
        self.root(one) == self.root(other) || sizes(one).is_some_and(|one| Some(one) == sizes(other))
    }

    /// Notes what a node says of its outputs' shapes; of its producers it has been noted already. `described` are, for
    /// each input that is a shape, the output whose shape that is.
    pub(super) fn learn(&mut self, seen: &Seen<'_>, described: &[Option<Output>]) {
        if seen.node.op.role() != Role::Compute {
            return;
        }
        if let Some(like) = self.like(seen, described) {
            self.roots.insert(seen.id.into(), self.root(like));
            return;
        }
        let Ok(outputs) = seen.node.output_types() else { return };
        let mut windows = std::mem::take(&mut self.windows);
        let sizes = match BROADCASTING.contains(&seen.node.op.name()) {
            true => seen.broadcast(self),
            false => seen.sizes(self, &mut windows),
        };
        self.windows = windows;
        let is_open = |sizes: &Sizes| sizes.iter().any(|size| !matches!(size, Size::Known(_)));
        let Some(sizes) = sizes.filter(is_open) else { return };
        for index in 0..outputs.len() {
            self.sizes.insert(Output::new(seen.id, index), sizes.clone());
        }
    }

    /// The output whose shape the node's first output has.
    fn like(&self, seen: &Seen<'_>, described: &[Option<Output>]) -> Option<Output> {
        let (op, inputs) = (seen.node.op.name(), seen.inputs);
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
        if self.root(x) == self.root(y) || self.takes_up(x, y, seen.shape) {
            Some(x)
        } else {
            self.takes_up(y, x, seen.shape).then_some(y)
        }
    }

    /// Whether broadcasting with the other surely leaves the shape of the one as it is.
    fn takes_up(&self, one: Output, other: Output, shape: &dyn Fn(Output) -> PartialShape) -> bool {
        if takes_up(&shape(one), &shape(other)) {
            return true;
        }
        let (Some(ours), Some(theirs)) = (self.sizes(one, shape), self.sizes(other, shape)) else {
            return false;
        };
        let Some(missing) = ours.len().checked_sub(theirs.len()) else { return false };
        ours[missing..].iter().zip(&theirs).all(|(own, other)| *other == Size::Known(1) || own == other)
    }
}

/// Whether broadcasting with something of shape `other` surely leaves `own` as it is.
pub(super) fn takes_up(own: &PartialShape, other: &PartialShape) -> bool {
    let Some(theirs) = other.dims() else { return false };
    if theirs.is_empty() {
        return true;
    }
    let Some(ours) = own.dims().filter(|ours| ours.len() >= theirs.len()) else { return false };
    let facing = &ours[ours.len() - theirs.len()..];
    facing.iter().zip(theirs).all(|(own, other)| *other == Some(1) || (other.is_some() && own == other))
}

/// The output has the shape of the first input.
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

/// The output has the shape of the second input.
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

/// The output has the shape that this input describes.
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

/// The output has the shape that both inputs are broadcast to.
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
