//! Clusters of points: the nearest centers of points, and initial centers.

use super::check::scalar;
use super::{Gradient, OpDef};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "NearestNeighbors",
        inputs: &["points: float", "centers: float", "k: int64"],
        outputs: &["nearest_center_indices: int64", "nearest_center_distances: float"],
        infer: |infer| {
            let points = infer.input_of_rank(0, 2)?;
            infer.input_of_rank(1, 2)?;
            infer.input_of_rank(2, 0)?;
            infer.set(0, [points.dim(0), None]);
            infer.set(1, [points.dim(0), None]);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "KmeansPlusPlusInitialization",
        inputs: &["points: float", "num_to_sample: int64", "seed: int64", "num_retries_per_sample: int64"],
        outputs: &["samples: float"],
        infer: |infer| {
            let points = infer.input_of_rank(0, 2)?;
            (1..4).try_for_each(|i| infer.input_of_rank(i, 0).map(|_| ()))?;
            infer.set(0, [None, points.dim(1)]);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "KMC2ChainInitialization",
        inputs: &["distances: float", "seed: int64"],
        outputs: &["index: int64"],
        infer: |infer| {
            infer.input_of_rank(0, 1)?;
            infer.input_of_rank(1, 0)?;
            scalar(infer)
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];
