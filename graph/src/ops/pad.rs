//! Padding with zeros, with a value, or with a mirror image.

use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Pad",
        inputs: &["input: T", "paddings: Tpaddings"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tpaddings: {int32, int64} = int32"],
        infer: |infer| padded(infer, true),
        gradient: Gradient::Defined(pad_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "PadV2",
        inputs: &["input: T", "paddings: Tpaddings", "constant_values: T"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tpaddings: {int32, int64} = int32"],
        infer: |infer| padded(infer, true),
        gradient: Gradient::Defined(pad_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "MirrorPad",
        inputs: &["input: T", "paddings: Tpaddings"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tpaddings: {int32, int64} = int32", "mode: {'REFLECT', 'SYMMETRIC'}"],
        infer: |infer| padded(infer, true),
        gradient: Gradient::Defined(|scope, f, dz| mirrored(scope, f, dz, "MirrorPadGrad")),
        ..OpDef::NEW
    },
    OpDef {
        name: "MirrorPadGrad",
        inputs: &["input: T", "paddings: Tpaddings"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tpaddings: {int32, int64} = int32", "mode: {'REFLECT', 'SYMMETRIC'}"],
        infer: |infer| padded(infer, false),
        gradient: Gradient::Defined(|scope, f, dz| mirrored(scope, f, dz, "MirrorPad")),
        ..OpDef::NEW
    },
];

fn padded(infer: &mut Infer<'_>, outwards: bool) -> Result<()> {
    let (input, paddings) = (infer.input(0), infer.input_of_rank(1, 2)?);
    if let Some(columns) = paddings.dim(1)
        && columns != 2
    {
        crate::invalid!("paddings must be a matrix with 2 columns: {paddings}");
    }
    let Some(rank) = input.rank().or(paddings.dim(0)) else { return Ok(()) };
    let input = input.with_rank(rank)?;
    if paddings.dim(0).is_some_and(|rows| rows != rank) {
        crate::invalid!("The first dimension of paddings must be the rank of inputs{paddings} {input}");
    }
    let Some(value) = infer.value(1) else {
        infer.set(0, PartialShape::of_rank(rank));
        return Ok(());
    };
    let mut out = Vec::with_capacity(rank);
    for (i, pair) in value.to_i64s()?.chunks_exact(2).enumerate() {
        if pair[0] < 0 || pair[1] < 0 {
            crate::invalid!("Paddings must be non-negative: {} {}", pair[0], pair[1]);
        }
        let Some(dim) = input.dim(i) else {
            out.push(None);
            continue;
        };
        let sum = i128::from(pair[0]) + i128::from(pair[1]);
        let size = if outwards { dim as i128 + sum } else { dim as i128 - sum };
        let size = usize::try_from(size).map_err(|_| {
            Error::invalid(format!("Paddings {} {} do not fit dimension {dim}", pair[0], pair[1]))
        })?;
        out.push(Some(size));
    }
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

/// Gradient of Pad: `dz` without the padding.
fn pad_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let paddings = forward.input(1);
    let dtype = scope.dtype(paddings);
    let Some(&before) = scope.unpack(paddings, 2, 1).first() else { return Ok(first_only(forward, None)) };
    let size = scope.shape_of_as(forward.input(0), dtype);
    Ok(first_only(forward, Some(scope.op("Slice").input(dz).input(before).input(size).output())))
}

fn mirrored(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
    op: &str,
) -> Result<Vec<Option<Output>>> {
    let mode: String = forward.attr("mode")?;
    let back = |dz| scope.op(op).input(dz).input(forward.input(1)).attr("mode", mode.as_str()).output();
    Ok(first_only(forward, dz[0].map(back)))
}
