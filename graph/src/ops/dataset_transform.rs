//! Datasets that choose, repeat, order or keep the elements of other datasets.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "ConcatenateDataset",
        inputs: &["input_dataset: variant", "another_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ZipDataset",
        inputs: &["input_datasets: N * variant"],
        outputs: &["handle: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "N: int >= 1",
            "metadata: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "RepeatDataset",
        inputs: &["input_dataset: variant", "count: int64"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "TakeDataset",
        inputs: &["input_dataset: variant", "count: int64"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SkipDataset",
        inputs: &["input_dataset: variant", "count: int64"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ShardDataset",
        inputs: &["input_dataset: variant", "num_shards: int64", "index: int64"],
        outputs: &["handle: variant"],
        attrs: &[
            "require_non_empty: bool = false",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ShuffleDataset",
        inputs: &["input_dataset: variant", "buffer_size: int64", "seed: int64", "seed2: int64"],
        outputs: &["handle: variant"],
        attrs: &[
            "reshuffle_each_iteration: bool = true",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ShuffleDatasetV2",
        inputs: &["input_dataset: variant", "buffer_size: int64", "seed_generator: resource"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ShuffleDatasetV3",
        inputs: &[
            "input_dataset: variant",
            "buffer_size: int64",
            "seed: int64",
            "seed2: int64",
            "seed_generator: resource",
        ],
        outputs: &["handle: variant"],
        attrs: &[
            "reshuffle_each_iteration: bool = true",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ShuffleAndRepeatDataset",
        inputs: &[
            "input_dataset: variant",
            "buffer_size: int64",
            "seed: int64",
            "seed2: int64",
            "count: int64",
        ],
        outputs: &["handle: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "reshuffle_each_iteration: bool = true",
            "metadata: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ShuffleAndRepeatDatasetV2",
        inputs: &[
            "input_dataset: variant",
            "buffer_size: int64",
            "seed: int64",
            "seed2: int64",
            "count: int64",
            "seed_generator: resource",
        ],
        outputs: &["handle: variant"],
        attrs: &[
            "reshuffle_each_iteration: bool = true",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "CacheDataset",
        inputs: &["input_dataset: variant", "filename: string"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "CacheDatasetV2",
        inputs: &["input_dataset: variant", "filename: string", "cache: resource"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "PrefetchDataset",
        inputs: &["input_dataset: variant", "buffer_size: int64"],
        outputs: &["handle: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "slack_period: int = 0",
            "legacy_autotune: bool = true",
            "buffer_size_min: int = 0",
            "metadata: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniqueDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalUniqueDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "IgnoreErrorsDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "log_warning: bool = false",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalIgnoreErrorsDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "log_warning: bool = false",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AssertCardinalityDataset",
        inputs: &["input_dataset: variant", "cardinality: int64"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DirectedInterleaveDataset",
        inputs: &["selector_input_dataset: variant", "data_input_datasets: N * variant"],
        outputs: &["handle: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "N: int >= 1",
            "stop_on_empty_dataset: bool = false",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];
