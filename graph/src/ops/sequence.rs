//! Reversal and rotation along axes, and conversion between flat and multi-dimensional indices.

use super::broadcast::arrived;
use super::shape::first_only;
use super::unary::same_shape;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "ReverseSequence",
        inputs: &["input: T", "seq_lengths: Tlen"],
        outputs: &["output: T"],
        attrs: &["seq_dim: int", "batch_dim: int = 0", "T: type", "Tlen: {int32, int64} = int64"],
        infer: same_shape,
        gradient: Gradient::Defined(reverse_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "Roll",
        inputs: &["input: T", "shift: Tshift", "axis: Taxis"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tshift: {int32, int64}", "Taxis: {int32, int64}"],
        infer: same_shape,
        gradient: Gradient::Defined(roll_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "UnravelIndex",
        inputs: &["indices: Tidx", "dims: Tidx"],
        outputs: &["output: Tidx"],
        attrs: &["Tidx: {int32, int64} = int32"],
        infer: unravel,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "Cross",
        inputs: &["a: T", "b: T"],
        outputs: &["product: T"],
        attrs: &["T: realnumbertype"],
        infer: same_shape,
        gradient: Gradient::Defined(cross_gradient),
        ..OpDef::NEW
    },
];

fn unravel(infer: &mut Infer<'_>) -> Result<()> {
    let (indices, dims) = (infer.input(0), infer.input_of_rank(1, 1)?);
    match indices.dims() {
        Some([]) => infer.set(0, dims),
        Some(&[count]) => infer.set(0, [dims.dim(0), count]),
        _ => {}
    }
    Ok(())
}

fn reverse_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let call = scope.op("ReverseSequence").input(arrived(forward, dz)?).input(forward.input(1));
    let call = call.attr("seq_dim", forward.attr::<i64>("seq_dim")?);
    Ok(first_only(forward, Some(call.attr("batch_dim", forward.attr::<i64>("batch_dim")?).output())))
}

fn roll_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let call = scope.op("Roll").input(arrived(forward, dz)?).input(scope.neg(forward.input(1)));
    Ok(first_only(forward, Some(call.input(forward.input(2)).output())))
}

fn cross_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let (u, v, dz) = (forward.input(0), forward.input(1), arrived(forward, dz)?);
    let cross = |x: Output, y: Output| scope.op("Cross").input(x).input(y).output();
    Ok(vec![Some(cross(v, dz)), Some(cross(dz, u))])
}
