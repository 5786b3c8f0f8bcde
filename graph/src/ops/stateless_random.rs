//! Stateless pseudo-random numbers, which depend only on inputs: seeds, or a key and a counter.

use super::random::{gamma_gradient, multinomial, shape_given};
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

const SHAPE: &str = "T: {int32, int64} = int32";
const SEED: &str = "Tseed: {int32, int64} = int64";
const FLOAT: &str = "dtype: {half, bfloat16, float, double} = float";
const TSHAPE: &str = "Tshape: {int32, int64} = int32";

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "StatelessRandomUniform", ..SEEDED },
    OpDef { name: "StatelessRandomNormal", ..SEEDED },
    OpDef { name: "StatelessTruncatedNormal", ..SEEDED },
    OpDef {
        name: "StatelessRandomUniformInt",
        inputs: &["shape: T", "seed: Tseed", "minval: dtype", "maxval: dtype"],
        attrs: &["dtype: {int32, int64}", "T: {int32, int64}", SEED],
        infer: |infer| {
            infer.input_of_rank(2, 0)?;
            infer.input_of_rank(3, 0)?;
            seeded(infer)
        },
        ..SEEDED
    },
    OpDef {
        name: "StatelessRandomUniformFullInt",
        attrs: &[
            "dtype: {int32, int64, uint32, uint64} = uint64",
            SHAPE,
            "Tseed: {int32, int64, uint32, uint64} = int64",
        ],
        ..SEEDED
    },
    OpDef {
        name: "StatelessMultinomial",
        inputs: &["logits: T", "num_samples: int32", "seed: Tseed"],
        outputs: &["output: output_dtype"],
        attrs: &["T: realnumbertype", SEED, "output_dtype: {int32, int64} = int64"],
        infer: |infer| {
            check_seeds(infer, 2)?;
            multinomial(infer)
        },
        ..SEEDED
    },
    OpDef {
        name: "StatelessRandomGammaV2",
        inputs: &["shape: T", "seed: Tseed", "alpha: dtype"],
        attrs: &["dtype: {half, float, double}", "T: {int32, int64}", SEED],
        gradient: Gradient::Defined(|scope, forward, dz| gamma_gradient(scope, forward, dz, 2)),
        ..SEEDED
    },
    OpDef {
        name: "StatelessRandomPoisson",
        inputs: &["shape: T", "seed: Tseed", "lam: Rtype"],
        attrs: &[
            "Rtype: {half, float, double, int32, int64}",
            "dtype: {half, float, double, int32, int64}",
            "T: {int32, int64}",
            SEED,
        ],
        ..SEEDED
    },
    OpDef {
        name: "StatelessRandomBinomial",
        inputs: &["shape: S", "seed: Tseed", "counts: T", "probs: T"],
        attrs: &[
            "S: {int32, int64}",
            SEED,
            "T: {half, float, double, int32, int64} = double",
            "dtype: {half, float, double, int32, int64} = int64",
        ],
        ..SEEDED
    },
    OpDef {
        name: "StatelessParameterizedTruncatedNormal",
        inputs: &[
            "shape: S",
            "seed: Tseed",
            "means: dtype",
            "stddevs: dtype",
            "minvals: dtype",
            "maxvals: dtype",
        ],
        attrs: &["S: {int32, int64}", SEED, "dtype: {half, float, double}"],
        ..SEEDED
    },
    OpDef {
        name: "RandomIndexShuffle",
        inputs: &["index: dtype", "seed: Tseed", "max_index: dtype"],
        outputs: &["output: dtype"],
        attrs: &[
            "rounds: int = 4",
            "dtype: {int32, uint32, int64, uint64}",
            "Tseed: {int32, uint32, int64, uint64}",
        ],
        infer: super::unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef { name: "StatelessRandomUniformV2", ..KEYED },
    OpDef { name: "StatelessRandomNormalV2", ..KEYED },
    OpDef { name: "StatelessTruncatedNormalV2", ..KEYED },
    OpDef {
        name: "StatelessRandomUniformIntV2",
        inputs: &[
            "shape: Tshape",
            "key: uint64",
            "counter: uint64",
            "alg: int32",
            "minval: dtype",
            "maxval: dtype",
        ],
        attrs: &["dtype: {int32, int64, uint32, uint64}", TSHAPE],
        infer: |infer| {
            infer.input_of_rank(4, 0)?;
            infer.input_of_rank(5, 0)?;
            keyed(infer)
        },
        ..KEYED
    },
    OpDef {
        name: "StatelessRandomUniformFullIntV2",
        attrs: &["dtype: {int32, int64, uint32, uint64} = uint64", TSHAPE],
        ..KEYED
    },
    OpDef {
        name: "StatelessRandomGammaV3",
        inputs: &["shape: shape_dtype", "key: uint64", "counter: uint64", "alg: int32", "alpha: dtype"],
        attrs: &["dtype: {half, float, double}", "shape_dtype: {int32, int64} = int32"],
        gradient: Gradient::Defined(|scope, forward, dz| gamma_gradient(scope, forward, dz, 4)),
        ..KEYED
    },
    OpDef {
        name: "StatelessShuffle",
        inputs: &["value: T", "key: uint64", "counter: uint64", "alg: int32"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: |infer| {
            check_key(infer)?;
            infer.set(0, infer.input(0));
            Ok(())
        },
        ..KEYED
    },
    OpDef { name: "StatelessRandomGetKeyCounter", ..OF_SEEDS },
    OpDef {
        name: "StatelessRandomGetKeyCounterAlg",
        outputs: &["key: uint64", "counter: uint64", "alg: int32"],
        infer: |infer| {
            key_and_counter(infer)?;
            infer.set(2, PartialShape::scalar());
            Ok(())
        },
        ..OF_SEEDS
    },
    OpDef {
        name: "StatelessRandomGetAlg",
        outputs: &["alg: int32"],
        infer: |infer| {
            infer.set(0, PartialShape::scalar());
            Ok(())
        },
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

const SEEDED: OpDef = OpDef {
    inputs: &["shape: T", "seed: Tseed"],
    outputs: &["output: dtype"],
    attrs: &[FLOAT, SHAPE, SEED],
    infer: seeded,
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

const KEYED: OpDef = OpDef {
    inputs: &["shape: Tshape", "key: uint64", "counter: uint64", "alg: int32"],
    outputs: &["output: dtype"],
    attrs: &[FLOAT, TSHAPE],
    infer: keyed,
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

const OF_SEEDS: OpDef = OpDef {
    inputs: &["seed: Tseed"],
    outputs: &["key: uint64", "counter: uint64"],
    attrs: &[SEED],
    infer: key_and_counter,
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

fn check_seeds(infer: &Infer<'_>, at: usize) -> Result<()> {
    infer.input(at).merge(&PartialShape::vector(Some(2))).map(|_| ())
}

fn seeded(infer: &mut Infer<'_>) -> Result<()> {
    check_seeds(infer, 1)?;
    shape_given(infer)
}

fn check_key(infer: &Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 1)?;
    infer.input_of_rank(2, 1)?;
    infer.input_of_rank(3, 0).map(|_| ())
}

fn keyed(infer: &mut Infer<'_>) -> Result<()> {
    check_key(infer)?;
    shape_given(infer)
}

fn key_and_counter(infer: &mut Infer<'_>) -> Result<()> {
    check_seeds(infer, 0)?;
    infer.set(0, PartialShape::vector(Some(1)));
    infer.set(1, PartialShape::vector(Some(2)));
    Ok(())
}
