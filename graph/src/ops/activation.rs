//! Activation functions of neural networks, and their gradients.

use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;
use crate::tensor::Tensor;

const FLOAT_T: &str = "T: {half, bfloat16, float, double}";
const FLOAT_T_OR_F32: &str = "T: {half, bfloat16, float, double} = float";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Relu",
        attrs: &[
            "T: {float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, uint32, uint64, qint8}",
        ],
        gradient: Gradient::Defined(|s, f, dy| through_output(s, f, dy, "ReluGrad")),
        ..FORWARD
    },
    OpDef {
        name: "ReluGrad",
        attrs: &["T: realnumbertype"],
        gradient: Gradient::Defined(|s, f, dy| step_grad(s, f, dy, "ReluGrad")),
        ..OF_FEATURES
    },
    OpDef {
        name: "Relu6",
        attrs: &["T: realnumbertype"],
        gradient: Gradient::Defined(|s, f, dy| through_output(s, f, dy, "Relu6Grad")),
        ..FORWARD
    },
    OpDef {
        name: "Relu6Grad",
        attrs: &["T: realnumbertype"],
        gradient: Gradient::Defined(|s, f, dy| step_grad(s, f, dy, "Relu6Grad")),
        ..OF_FEATURES
    },
    OpDef {
        name: "LeakyRelu",
        attrs: &["alpha: float = 0.2", FLOAT_T_OR_F32],
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            let alpha: f32 = f.attr("alpha")?;
            Ok(vec![Some(s.op("LeakyReluGrad").input(dy).input(f.input(0)).attr("alpha", alpha).output())])
        }),
        ..FORWARD
    },
    OpDef {
        name: "LeakyReluGrad",
        attrs: &["alpha: float = 0.2", FLOAT_T_OR_F32],
        gradient: Gradient::Defined(|s, f, d| {
            let Some(d) = d[0] else { return Ok(vec![None, None]) };
            let (x, alpha) = (f.input(1), f.attr::<f32>("alpha")?);
            let dg = s.op("LeakyReluGrad").input(d).input(x).attr("alpha", alpha).output();
            Ok(vec![Some(dg), Some(s.op("ZerosLike").input(x).output())])
        }),
        ..OF_FEATURES
    },
    OpDef {
        name: "Elu",
        attrs: &[FLOAT_T],
        gradient: Gradient::Defined(|s, f, dy| through_output(s, f, dy, "EluGrad")),
        ..FORWARD
    },
    OpDef {
        name: "EluGrad",
        attrs: &[FLOAT_T],
        gradient: Gradient::Defined(|s, f, dy| curved_grad(s, f, dy, "EluGrad")),
        ..OF_OUTPUTS
    },
    OpDef {
        name: "Selu",
        attrs: &[FLOAT_T],
        gradient: Gradient::Defined(|s, f, dy| through_output(s, f, dy, "SeluGrad")),
        ..FORWARD
    },
    OpDef {
        name: "SeluGrad",
        attrs: &[FLOAT_T],
        gradient: Gradient::Defined(|s, f, dy| curved_grad(s, f, dy, "SeluGrad")),
        ..OF_OUTPUTS
    },
    OpDef {
        name: "Softplus",
        attrs: &[FLOAT_T],
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            let sigmoid = s.op("Sigmoid").input(f.input(0)).output();
            Ok(vec![Some(s.op("Mul").input(dy).input(sigmoid).output())])
        }),
        ..FORWARD
    },
    OpDef {
        name: "SoftplusGrad",
        attrs: &[FLOAT_T],
        gradient: Gradient::Defined(softplus_grad_grad),
        ..OF_FEATURES
    },
    OpDef {
        name: "Softsign",
        attrs: &[FLOAT_T],
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            Ok(vec![Some(s.op("SoftsignGrad").input(dy).input(f.input(0)).output())])
        }),
        ..FORWARD
    },
    OpDef { name: "SoftsignGrad", attrs: &[FLOAT_T], ..OF_FEATURES },
    OpDef {
        name: "L2Loss",
        inputs: &["t: T"],
        outputs: &["output: T"],
        attrs: &[FLOAT_T],
        infer: |infer| {
            infer.set(0, PartialShape::scalar());
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            Ok(vec![Some(s.op("Mul").input(f.input(0)).input(dy).output())])
        }),
        ..OpDef::NEW
    },
];

const FORWARD: OpDef = OpDef {
    inputs: &["features: T"],
    outputs: &["activations: T"],
    infer: |infer| {
        infer.set(0, infer.input(0));
        Ok(())
    },
    ..OpDef::NEW
};

const OF_FEATURES: OpDef = OpDef {
    inputs: &["gradients: T", "features: T"],
    outputs: &["backprops: T"],
    infer: merge_inputs,
    ..OpDef::NEW
};

const OF_OUTPUTS: OpDef = OpDef { inputs: &["gradients: T", "outputs: T"], ..OF_FEATURES };

/// Sets the output's shape to the merged shapes of both inputs, which must be compatible.
fn merge_inputs(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0).merge(&infer.input(1))?;
    infer.set(0, shape);
    Ok(())
}

/// Returns the gradient of an activation by its gradient op `op`, which takes the activation's output and not its
/// input.
fn through_output(s: &Scope, f: &Forward, dy: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    Ok(vec![dy[0].map(|dy| s.op(op).input(dy).input(f.output(0)).output())])
}

/// Returns the gradient of an activation's gradient op, for an activation whose slope is piecewise constant.
fn step_grad(s: &Scope, f: &Forward, d: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(d) = d[0] else { return Ok(vec![None, None]) };
    let x = f.input(1);
    let dg = s.op(op).input(d).input(x).output();
    Ok(vec![Some(dg), Some(s.op("ZerosLike").input(x).output())])
}

/// Returns the gradient of an activation's gradient op that computes `gradients * (outputs + c)` where `outputs < 0`,
/// and is linear elsewhere.
fn curved_grad(s: &Scope, f: &Forward, d: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(d) = d[0] else { return Ok(vec![None, None]) };
    let (g, y) = (f.input(0), f.input(1));
    let dg = s.op(op).input(d).input(y).output();
    let zeros = s.op("ZerosLike").input(y).output();
    let negative = s.op("Less").input(y).input(zeros).output();
    let curve = s.op("Mul").input(d).input(g).output();
    let dy = s.op("SelectV2").input(negative).input(curve).input(zeros).output();
    Ok(vec![Some(dg), Some(dy)])
}

/// Returns the gradient of SoftplusGrad, which computes `g / (1 + exp(-x))`.
fn softplus_grad_grad(s: &Scope, f: &Forward, d: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(d) = d[0] else { return Ok(vec![None, None]) };
    let (g, x) = (f.input(0), f.input(1));
    let dg = s.op("SoftplusGrad").input(d).input(x).output();
    let minus = s.op("Neg").input(x).output();
    let falling = s.op("Exp").input(minus).output();
    let rising = s.op("Exp").input(x).output();
    let two = match s.dtype(x) {
        DType::Double => Tensor::scalar(2f64),
        DType::Half => Tensor::scalar(half::f16::from_f32(2.0)),
        DType::BFloat16 => Tensor::scalar(half::bf16::from_f32(2.0)),
        _ => Tensor::scalar(2f32),
    };
    let two = s.op("Const").attr("dtype", two.dtype()).attr("value", two).output();
    let sum = s.op("AddV2").input(falling).input(two).output();
    let sum = s.op("AddV2").input(sum).input(rising).output();
    let product = s.op("Mul").input(d).input(g).output();
    Ok(vec![Some(dg), Some(s.op("RealDiv").input(product).input(sum).output())])
}
