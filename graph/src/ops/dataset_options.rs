//! Datasets that set execution options for their input and pass its elements through unchanged.

use super::dataset_source::{DATASET, ELEMENTS};
use super::{OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "OptionsDataset",
        inputs: &["input_dataset: variant"],
        attrs: &[
            "serialized_options: string",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "FinalizeDataset",
        inputs: &["input_dataset: variant"],
        attrs: &[
            "has_captured_ref: bool = false",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "ModelDataset",
        inputs: &["input_dataset: variant"],
        attrs: &[
            "algorithm: int = 0",
            "cpu_budget: int = 0",
            "ram_budget: int = 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "OptimizeDataset",
        inputs: &["input_dataset: variant", "optimizations: string"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "optimization_configs: list(string) = []",
        ],
        ..DATASET
    },
    OpDef {
        name: "OptimizeDatasetV2",
        inputs: &[
            "input_dataset: variant",
            "optimizations_enabled: string",
            "optimizations_disabled: string",
            "optimizations_default: string",
        ],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "optimization_configs: list(string) = []",
        ],
        ..DATASET
    },
    OpDef {
        name: "AssertNextDataset",
        inputs: &["input_dataset: variant", "transformations: string"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalAssertNextDataset",
        inputs: &["input_dataset: variant", "transformations: string"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef { name: "NonSerializableDataset", inputs: &["input_dataset: variant"], attrs: ELEMENTS, ..DATASET },
    OpDef {
        name: "ExperimentalNonSerializableDataset",
        inputs: &["input_dataset: variant"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "MaxIntraOpParallelismDataset",
        inputs: &["input_dataset: variant", "max_intra_op_parallelism: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalMaxIntraOpParallelismDataset",
        inputs: &["input_dataset: variant", "max_intra_op_parallelism: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "PrivateThreadPoolDataset",
        inputs: &["input_dataset: variant", "num_threads: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalPrivateThreadPoolDataset",
        inputs: &["input_dataset: variant", "num_threads: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "RewriteDataset",
        inputs: &["input_dataset: variant", "rewrite_name: string"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "AssertPrevDataset",
        inputs: &["input_dataset: variant", "transformations: string"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ThreadPoolDataset",
        inputs: &["input_dataset: variant", "thread_pool: resource"],
        attrs: ELEMENTS,
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalThreadPoolDataset",
        inputs: &["input_dataset: variant", "thread_pool: resource"],
        attrs: ELEMENTS,
        traits: Traits::STATEFUL,
        ..DATASET
    },
];
