//! Simulated quantization: numbers are rounded to quantized values without changing their type; and its gradients.

use super::{Gradient, OpDef};
use crate::attr::AttrValue;
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

const BITS: &str = "num_bits: int = 8";
const NARROW: &str = "narrow_range: bool = false";
const SIGNED: &str = "signed_input: bool = true";
const GIVEN: &str = "range_given: bool = false";
const FLOATS: &str = "T: {bfloat16, half, float, double}";
const ROUND: &str = "round_mode: {'HALF_TO_EVEN', 'HALF_UP'} = 'HALF_TO_EVEN'";
const AXIS: &str = "axis: int = -1";
const BOUNDS: &[&str] = &["min: float = -6.0", "max: float = 6.0", BITS, NARROW];
const V2: &[&str] = &[SIGNED, BITS, GIVEN, FLOATS, ROUND, NARROW, AXIS];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "FakeQuantWithMinMaxArgs",
        inputs: &["inputs: float"],
        outputs: &["outputs: float"],
        attrs: BOUNDS,
        infer: like_first,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            let mut call = s.op("FakeQuantWithMinMaxArgsGradient").input(dy).input(f.input(0));
            for name in ["min", "max", "num_bits", "narrow_range"] {
                call = call.attr(name, f.attr::<AttrValue>(name)?);
            }
            Ok(vec![Some(call.output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "FakeQuantWithMinMaxArgsGradient",
        inputs: &["gradients: float", "inputs: float"],
        outputs: &["backprops: float"],
        attrs: BOUNDS,
        infer: like_first,
        ..OpDef::NEW
    },
    OpDef {
        name: "FakeQuantWithMinMaxVars",
        inputs: &["inputs: float", "min: float", "max: float"],
        outputs: &["outputs: float"],
        attrs: &[BITS, NARROW],
        infer: like_first,
        gradient: Gradient::Defined(|s, f, dy| of_bounds(s, f, dy, "FakeQuantWithMinMaxVarsGradient")),
        ..OpDef::NEW
    },
    OpDef {
        name: "FakeQuantWithMinMaxVarsGradient",
        inputs: &["gradients: float", "inputs: float", "min: float", "max: float"],
        outputs: &["backprops_wrt_input: float", "backprop_wrt_min: float", "backprop_wrt_max: float"],
        attrs: &[BITS, NARROW],
        infer: |infer| like_first_and(infer, PartialShape::scalar()),
        ..OpDef::NEW
    },
    OpDef {
        name: "FakeQuantWithMinMaxVarsPerChannel",
        inputs: &["inputs: float", "min: float", "max: float"],
        outputs: &["outputs: float"],
        attrs: &[BITS, NARROW],
        infer: like_first,
        gradient: Gradient::Defined(|s, f, dy| {
            of_bounds(s, f, dy, "FakeQuantWithMinMaxVarsPerChannelGradient")
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "FakeQuantWithMinMaxVarsPerChannelGradient",
        inputs: &["gradients: float", "inputs: float", "min: float", "max: float"],
        outputs: &["backprops_wrt_input: float", "backprop_wrt_min: float", "backprop_wrt_max: float"],
        attrs: &[BITS, NARROW],
        infer: |infer| {
            let bounds = infer.input_of_rank(2, 1)?;
            like_first_and(infer, bounds)
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizeAndDequantize",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: &[SIGNED, BITS, GIVEN, "input_min: float = 0.0", "input_max: float = 0.0", FLOATS],
        infer: like_first,
        gradient: Gradient::Defined(|_, f, dy| Ok(straight_through(f, dy))),
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizeAndDequantizeV2",
        inputs: &["input: T", "input_min: T", "input_max: T"],
        outputs: &["output: T"],
        attrs: V2,
        infer: like_first,
        gradient: Gradient::Defined(|_, f, dy| Ok(straight_through(f, dy))),
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizeAndDequantizeV3",
        inputs: &["input: T", "input_min: T", "input_max: T", "num_bits: int32"],
        outputs: &["output: T"],
        attrs: &[SIGNED, "range_given: bool = true", FLOATS, NARROW, AXIS],
        infer: like_first,
        gradient: Gradient::Defined(|_, f, dy| Ok(straight_through(f, dy))),
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizeAndDequantizeV4",
        inputs: &["input: T", "input_min: T", "input_max: T"],
        outputs: &["output: T"],
        attrs: V2,
        infer: like_first,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None; 3]) };
            let call = s.op("QuantizeAndDequantizeV4Grad").input(dy);
            let call = call.input(f.input(0)).input(f.input(1)).input(f.input(2));
            let all = call.attr("axis", f.attr::<AttrValue>("axis")?).outputs();
            Ok(all.into_iter().map(Some).collect())
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizeAndDequantizeV4Grad",
        inputs: &["gradients: T", "input: T", "input_min: T", "input_max: T"],
        outputs: &["input_backprop: T", "input_min_backprop: T", "input_max_backprop: T"],
        attrs: &[FLOATS, AXIS],
        infer: |infer| {
            let bounds = infer.input(2);
            like_first_and(infer, bounds)
        },
        ..OpDef::NEW
    },
];

pub(super) fn like_first(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0);
    infer.set(0, shape);
    Ok(())
}

/// Gives the first output the first input's shape, and all other outputs the shape `others`.
pub(super) fn like_first_and(infer: &mut Infer<'_>, others: PartialShape) -> Result<()> {
    infer.set_all(others);
    like_first(infer)
}

fn of_bounds(s: &Scope, f: &Forward, dy: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None; 3]) };
    let mut call = s.op(op).input(dy).input(f.input(0)).input(f.input(1)).input(f.input(2));
    for name in ["num_bits", "narrow_range"] {
        call = call.attr(name, f.attr::<AttrValue>(name)?);
    }
    Ok(call.outputs().into_iter().map(Some).collect())
}

/// The straight-through gradient: the gradient of the output is passed to the input as if nothing had been rounded.
fn straight_through(f: &Forward, dy: &[Option<Output>]) -> Vec<Option<Output>> {
    let mut out = vec![None; f.inputs.len()];
    out[0] = dy[0];
    out
}
