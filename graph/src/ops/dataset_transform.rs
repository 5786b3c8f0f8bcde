//! Datasets that select, repeat, reorder or cache the elements of other datasets.

use super::dataset_source::{DATASET, ELEMENTS, ELEMENTS_AND_METADATA};
use super::{OpDef, Traits};

/// The op table fields that are common to datasets that split each batch evenly among replicas.
const REBATCHED: OpDef = OpDef {
    inputs: &["input_dataset: variant", "num_replicas: int64"],
    attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "use_fallback: bool = true"],
    ..DATASET
};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "ConcatenateDataset",
        inputs: &["input_dataset: variant", "another_dataset: variant"],
        attrs: ELEMENTS_AND_METADATA,
        ..DATASET
    },
    OpDef {
        name: "ZipDataset",
        inputs: &["input_datasets: N * variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "N: int >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "RepeatDataset",
        inputs: &["input_dataset: variant", "count: int64"],
        attrs: ELEMENTS_AND_METADATA,
        ..DATASET
    },
    OpDef {
        name: "TakeDataset",
        inputs: &["input_dataset: variant", "count: int64"],
        attrs: ELEMENTS_AND_METADATA,
        ..DATASET
    },
    OpDef {
        name: "SkipDataset",
        inputs: &["input_dataset: variant", "count: int64"],
        attrs: ELEMENTS_AND_METADATA,
        ..DATASET
    },
    OpDef {
        name: "AutoShardDataset",
        inputs: &["input_dataset: variant", "num_workers: int64", "index: int64"],
        attrs: &[
            "auto_shard_policy: int = 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "num_replicas: int = 0",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalAutoShardDataset",
        inputs: &["input_dataset: variant", "num_workers: int64", "index: int64"],
        attrs: &[
            "auto_shard_policy: int = 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef { name: "RebatchDataset", ..REBATCHED },
    OpDef { name: "ExperimentalRebatchDataset", ..REBATCHED },
    OpDef {
        name: "RebatchDatasetV2",
        inputs: &["input_dataset: variant", "batch_sizes: int64", "drop_remainder: bool"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ShardDataset",
        inputs: &["input_dataset: variant", "num_shards: int64", "index: int64"],
        attrs: &[
            "require_non_empty: bool = false",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ShuffleDataset",
        inputs: &["input_dataset: variant", "buffer_size: int64", "seed: int64", "seed2: int64"],
        attrs: &[
            "reshuffle_each_iteration: bool = true",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ShuffleDatasetV2",
        inputs: &["input_dataset: variant", "buffer_size: int64", "seed_generator: resource"],
        attrs: ELEMENTS_AND_METADATA,
        traits: Traits::STATEFUL,
        ..DATASET
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
        attrs: &[
            "reshuffle_each_iteration: bool = true",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "GlobalShuffleDataset",
        inputs: &["input_dataset: variant", "seed: int64", "seed2: int64", "seed_generator: resource"],
        attrs: &[
            "reshuffle_each_iteration: bool = true",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
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
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "reshuffle_each_iteration: bool = true",
            "metadata: string = ''",
        ],
        ..DATASET
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
        attrs: &[
            "reshuffle_each_iteration: bool = true",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "CacheDataset",
        inputs: &["input_dataset: variant", "filename: string"],
        attrs: ELEMENTS_AND_METADATA,
        ..DATASET
    },
    OpDef {
        name: "CacheDatasetV2",
        inputs: &["input_dataset: variant", "filename: string", "cache: resource"],
        attrs: ELEMENTS_AND_METADATA,
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "PrefetchDataset",
        inputs: &["input_dataset: variant", "buffer_size: int64"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "slack_period: int = 0",
            "legacy_autotune: bool = true",
            "buffer_size_min: int = 0",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "UniqueDataset",
        inputs: &["input_dataset: variant"],
        attrs: ELEMENTS_AND_METADATA,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalUniqueDataset",
        inputs: &["input_dataset: variant"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "IgnoreErrorsDataset",
        inputs: &["input_dataset: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "log_warning: bool = false",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalIgnoreErrorsDataset",
        inputs: &["input_dataset: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "log_warning: bool = false",
        ],
        ..DATASET
    },
    OpDef {
        name: "AssertCardinalityDataset",
        inputs: &["input_dataset: variant", "cardinality: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "DirectedInterleaveDataset",
        inputs: &["selector_input_dataset: variant", "data_input_datasets: N * variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "N: int >= 1",
            "stop_on_empty_dataset: bool = false",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalDirectedInterleaveDataset",
        inputs: &["selector_input_dataset: variant", "data_input_datasets: N * variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "N: int >= 1"],
        ..DATASET
    },
    OpDef {
        name: "SleepDataset",
        inputs: &["input_dataset: variant", "sleep_microseconds: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalSleepDataset",
        inputs: &["input_dataset: variant", "sleep_microseconds: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ChooseFastestDataset",
        inputs: &["input_datasets: N * variant"],
        attrs: &[
            "N: int >= 2",
            "num_experiments: int",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalChooseFastestDataset",
        inputs: &["input_datasets: N * variant"],
        attrs: &[
            "N: int >= 2",
            "num_experiments: int",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "SamplingDataset",
        inputs: &["input_dataset: variant", "rate: float", "seed: int64", "seed2: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "WeightedFlatMapDataset",
        inputs: &["input_datasets: N * variant", "weights: M * double"],
        attrs: &[
            "N: int >= 2",
            "M: int >= 2",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
];
