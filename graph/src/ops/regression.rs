//! Regressions: isotonic ones, and linear models trained by stochastic dual coordinate ascent.

use super::{Gradient, OpDef};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "IsotonicRegression",
        inputs: &["input: T"],
        outputs: &["output: output_dtype", "segments: int32"],
        attrs: &["T: realnumbertype", "output_dtype: {half, bfloat16, float, double} = float"],
        infer: |infer| {
            let shape = infer.input(0);
            infer.set_all(shape);
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "SdcaShrinkL1",
        inputs: &["weights: num_features * Ref(float)"],
        attrs: &["num_features: int >= 0", "l1: float", "l2: float"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];
