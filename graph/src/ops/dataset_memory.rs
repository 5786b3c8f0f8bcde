//! Resources that datasets keep between iterators: seed generators and caches.

use super::iterator::scalars;
use super::{Gradient, OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "AnonymousSeedGenerator",
        inputs: &["seed: int64", "seed2: int64", "reshuffle: bool"],
        outputs: &["handle: resource", "deleter: variant"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousRandomSeedGenerator",
        inputs: &["seed: int64", "seed2: int64"],
        outputs: &["handle: resource", "deleter: variant"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DummySeedGenerator",
        outputs: &["handle: resource"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeleteSeedGenerator",
        inputs: &["handle: resource", "deleter: variant"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeleteRandomSeedGenerator",
        inputs: &["handle: resource", "deleter: variant"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousMemoryCache",
        outputs: &["handle: resource", "deleter: variant"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DummyMemoryCache",
        outputs: &["handle: resource"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeleteMemoryCache",
        inputs: &["handle: resource", "deleter: variant"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ThreadPoolHandle",
        outputs: &["handle: resource"],
        attrs: &[
            "num_threads: int",
            "max_intra_op_parallelism: int = 1",
            "display_name: string",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalThreadPoolHandle",
        outputs: &["handle: resource"],
        attrs: &[
            "num_threads: int",
            "max_intra_op_parallelism: int = 1",
            "display_name: string",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];
