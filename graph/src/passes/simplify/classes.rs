//! Outputs that surely have one shape, whatever it is: enough to see that gradients have the shape of what they are
//! gradients of.

use crate::graph::{NodeId, Output};
use crate::node::Node;
use crate::ops::Role;
use crate::shape::PartialShape;
use rustc_hash::FxHashMap;

/// For each output the one that it has its shape from, by way of ops that keep it.
#[derive(Debug, Default)]
pub(super) struct Classes(FxHashMap<Output, Output>);

impl Classes {
    pub(super) fn root(&self, output: Output) -> Output {
        self.0.get(&output).copied().unwrap_or(output)
    }

    /// Notes what a node says of its output's shape; of its producers it has been noted already.
    pub(super) fn learn(
        &mut self,
        id: NodeId,
        node: &Node,
        inputs: &[Output],
        shape: impl Fn(Output) -> PartialShape,
    ) {
        if node.op.role() != Role::Compute {
            return;
        }
        if let Some(like) = self.like(node.op.name(), inputs, shape) {
            self.0.insert(id.into(), self.root(like));
        }
    }

    /// The input whose shape the output has.
    fn like(&self, op: &str, inputs: &[Output], shape: impl Fn(Output) -> PartialShape) -> Option<Output> {
        if FIRST.contains(&op) {
            return inputs.first().copied();
        }
        if SECOND.contains(&op) {
            return inputs.get(1).copied();
        }
        let &[x, y] = inputs else { return None };
        if !BROADCASTING.contains(&op) {
            return None;
        }
        let (of_x, of_y) = (shape(x), shape(y));
        if self.root(x) == self.root(y) || takes_up(&of_x, &of_y) {
            Some(x)
        } else {
            takes_up(&of_y, &of_x).then_some(y)
        }
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
    "Identity",
    "IsFinite",
    "IsInf",
    "IsNan",
    "LeakyRelu",
    "Log",
    "Log1p",
    "LogicalNot",
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
const SECOND: &[&str] =
    &["EluGrad", "LeakyReluGrad", "Relu6Grad", "ReluGrad", "Select", "SeluGrad", "SoftplusGrad"];

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
