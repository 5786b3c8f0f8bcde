//! Regressions: isotonic ones, and linear models trained by stochastic dual coordinate ascent.

use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;

/// A step of stochastic dual coordinate ascent; the versions differ in the name of an attribute.
const SDCA: OpDef = OpDef {
    inputs: &[
        "sparse_example_indices: num_sparse_features * int64",
        "sparse_feature_indices: num_sparse_features * int64",
        "sparse_feature_values: num_sparse_features_with_values * float",
        "dense_features: num_dense_features * float",
        "example_weights: float",
        "example_labels: float",
        "sparse_indices: num_sparse_features * int64",
        "sparse_weights: num_sparse_features * float",
        "dense_weights: num_dense_features * float",
        "example_state_data: float",
    ],
    outputs: &[
        "out_example_state_data: float",
        "out_delta_sparse_weights: num_sparse_features * float",
        "out_delta_dense_weights: num_dense_features * float",
    ],
    infer: sdca,
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

/// The attributes of a step. Its versions name the choice of examples by their loss differently.
macro_rules! sdca_attrs {
    ($adaptive:literal) => {
        &[
            "loss_type: {'logistic_loss', 'squared_loss', 'hinge_loss', 'smooth_hinge_loss', 'poisson_loss'}",
            concat!($adaptive, ": bool = false"),
            "num_sparse_features: int >= 0",
            "num_sparse_features_with_values: int >= 0",
            "num_dense_features: int >= 0",
            "l1: float",
            "l2: float",
            "num_loss_partitions: int >= 1",
            "num_inner_iterations: int >= 1",
        ]
    };
}

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
    OpDef { name: "SdcaOptimizer", attrs: sdca_attrs!("adaptative"), ..SDCA },
    OpDef { name: "SdcaOptimizerV2", attrs: sdca_attrs!("adaptive"), ..SDCA },
    OpDef {
        name: "SdcaFprint",
        inputs: &["input: string"],
        outputs: &["output: int64"],
        infer: |infer| {
            let input = infer.input_of_rank(0, 1)?;
            infer.set(0, [input.dim(0), Some(2)]);
            Ok(())
        },
        gradient: Gradient::Leaf,
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

/// Sets the shapes of the changes of weights to those of the weights, which are the last inputs but one.
fn sdca(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, [None, Some(4)]);
    let changes = infer.num_outputs() - 1;
    for i in 0..changes {
        let weights = infer.input(infer.num_inputs() - 1 - changes + i);
        infer.set(1 + i, weights);
    }
    Ok(())
}
