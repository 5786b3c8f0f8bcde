//! Candidate samplers: random sampling of classes for sampled losses.

use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

/// The fields that the op table rows of all candidate samplers share.
const SAMPLER: OpDef = OpDef {
    inputs: &["true_classes: int64"],
    outputs: &["sampled_candidates: int64", "true_expected_count: float", "sampled_expected_count: float"],
    infer: sampler,
    gradient: Gradient::Leaf,
    traits: Traits::STATEFUL,
    ..OpDef::NEW
};

const RANGE: &[&str] = &[
    "num_true: int >= 1",
    "num_sampled: int >= 1",
    "unique: bool",
    "range_max: int >= 1",
    "seed: int = 0",
    "seed2: int = 0",
];

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "UniformCandidateSampler", attrs: RANGE, ..SAMPLER },
    OpDef { name: "LogUniformCandidateSampler", attrs: RANGE, ..SAMPLER },
    OpDef { name: "LearnedUnigramCandidateSampler", attrs: RANGE, ..SAMPLER },
    OpDef { name: "ThreadUnsafeUnigramCandidateSampler", attrs: RANGE, ..SAMPLER },
    OpDef {
        name: "FixedUnigramCandidateSampler",
        attrs: &[
            "num_true: int >= 1",
            "num_sampled: int >= 1",
            "unique: bool",
            "range_max: int >= 1",
            "vocab_file: string = ''",
            "distortion: float = 1.0",
            "num_reserved_ids: int = 0",
            "num_shards: int >= 1 = 1",
            "shard: int >= 0 = 0",
            "unigrams: list(float) = []",
            "seed: int = 0",
            "seed2: int = 0",
        ],
        ..SAMPLER
    },
    OpDef {
        name: "AllCandidateSampler",
        attrs: &[
            "num_true: int >= 1",
            "num_sampled: int >= 1",
            "unique: bool",
            "seed: int = 0",
            "seed2: int = 0",
        ],
        ..SAMPLER
    },
    OpDef {
        name: "ComputeAccidentalHits",
        inputs: &["true_classes: int64", "sampled_candidates: int64"],
        outputs: &["indices: int32", "ids: int64", "weights: float"],
        attrs: &["num_true: int", "seed: int = 0", "seed2: int = 0"],
        infer: hits,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn sampler(infer: &mut Infer<'_>) -> Result<()> {
    let batch = infer.input_of_rank(0, 2)?.dim(0);
    let size = |name: &str| Ok::<_, crate::Error>(usize::try_from(infer.attr::<i64>(name)?).ok());
    let (columns, sampled) = (size("num_true")?, size("num_sampled")?);
    infer.set(0, PartialShape::vector(sampled));
    infer.set(1, [batch, columns]);
    infer.set(2, PartialShape::vector(sampled));
    Ok(())
}

/// Sets the shapes of the outputs of ComputeAccidentalHits: vectors with one element per hit, whose number is unknown.
fn hits(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 2)?;
    infer.input_of_rank(1, 1)?;
    infer.set_all(PartialShape::vector(None));
    Ok(())
}
