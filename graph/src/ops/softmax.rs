//! Softmax, and cross entropies based on it.

use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;
use crate::tensor::Tensor;

const FLOAT_T: &str = "T: {half, bfloat16, float, double}";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Softmax",
        inputs: &["logits: T"],
        outputs: &["softmax: T"],
        attrs: &[FLOAT_T],
        infer: same_of_rank_one_up,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            let y = f.output(0);
            let product = s.op("Mul").input(dy).input(y).output();
            let sum = sum_last(s, product);
            let rest = s.op("Sub").input(dy).input(sum).output();
            Ok(vec![Some(s.op("Mul").input(rest).input(y).output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "LogSoftmax",
        inputs: &["logits: T"],
        outputs: &["logsoftmax: T"],
        attrs: &[FLOAT_T],
        infer: same_of_rank_one_up,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            let softmax = s.op("Exp").input(f.output(0)).output();
            let sum = sum_last(s, dy);
            let share = s.op("Mul").input(sum).input(softmax).output();
            Ok(vec![Some(s.op("Sub").input(dy).input(share).output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "SoftmaxCrossEntropyWithLogits",
        inputs: &["features: T", "labels: T"],
        outputs: &["loss: T", "backprop: T"],
        attrs: &[FLOAT_T],
        infer: |infer| {
            let logits = PartialShape::broadcast(&infer.input(0), &infer.input(1))?.with_rank(2)?;
            infer.set(0, PartialShape::vector(logits.dim(0)));
            infer.set(1, logits);
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| {
            let logits = logits_gradient(s, f, d);
            let labels = d[0].map(|loss| {
                let log = s.op("LogSoftmax").input(f.input(0)).output();
                let minus = s.op("Neg").input(log).output();
                scale_rows(s, loss, minus)
            });
            Ok(vec![logits, labels])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "SparseSoftmaxCrossEntropyWithLogits",
        inputs: &["features: T", "labels: Tlabels"],
        outputs: &["loss: T", "backprop: T"],
        attrs: &[FLOAT_T, "Tlabels: {int32, int64} = int64"],
        infer: |infer| {
            let logits = infer.input_of_rank(0, 2)?;
            let labels = infer.input_of_rank(1, 1)?;
            let batch = PartialShape::vector(logits.dim(0)).merge(&labels)?;
            infer.set(1, PartialShape::from([batch.dim(0), logits.dim(1)]));
            infer.set(0, batch);
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, d| Ok(vec![logits_gradient(s, f, d), None])),
        ..OpDef::NEW
    },
];

fn same_of_rank_one_up(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0);
    if shape.rank() == Some(0) {
        crate::invalid!("Shape must be at least rank 1 but is rank 0");
    }
    infer.set(0, shape);
    Ok(())
}

/// Returns the gradient of the logits of a cross entropy op. The part from the loss (output 0) is the incoming gradient
/// times output 1; the part from output 1 is the derivative of softmax.
fn logits_gradient(s: &Scope, f: &Forward, d: &[Option<Output>]) -> Option<Output> {
    let through_loss = d[0].map(|loss| scale_rows(s, loss, f.output(1)));
    let Some(dd) = d[1] else { return through_loss };
    let softmax = s.op("Softmax").input(f.input(0)).output();
    let product = s.op("Mul").input(dd).input(softmax).output();
    let sum = sum_last(s, product);
    let rest = s.op("Sub").input(dd).input(sum).output();
    let through_backprop = s.op("Mul").input(rest).input(softmax).output();
    Some(match through_loss {
        Some(first) => s.op("AddV2").input(first).input(through_backprop).output(),
        None => through_backprop,
    })
}

/// Multiplies each row of `matrix` by its element of `vector`.
fn scale_rows(s: &Scope, vector: Output, matrix: Output) -> Output {
    let axis = last_axis(s);
    let column = s.op("ExpandDims").input(vector).input(axis).output();
    s.op("Mul").input(column).input(matrix).output()
}

/// Sums over the last axis, which is kept with size 1.
fn sum_last(s: &Scope, x: Output) -> Output {
    let axis = last_axis(s);
    s.op("Sum").input(x).input(axis).attr("keep_dims", true).output()
}

fn last_axis(s: &Scope) -> Output {
    let axis = Tensor::scalar(-1i32);
    s.op("Const").attr("dtype", axis.dtype()).attr("value", axis).output()
}
