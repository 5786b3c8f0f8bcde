//! Datasets that say how their input is to run, and give its elements as they are.

use super::check::scalar;
use super::{Gradient, OpDef};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "OptionsDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &[
            "serialized_options: string",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "FinalizeDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &[
            "has_captured_ref: bool = false",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ModelDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &[
            "algorithm: int = 0",
            "cpu_budget: int = 0",
            "ram_budget: int = 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "OptimizeDataset",
        inputs: &["input_dataset: variant", "optimizations: string"],
        outputs: &["handle: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "optimization_configs: list(string) = []",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "OptimizeDatasetV2",
        inputs: &[
            "input_dataset: variant",
            "optimizations_enabled: string",
            "optimizations_disabled: string",
            "optimizations_default: string",
        ],
        outputs: &["handle: variant"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "optimization_configs: list(string) = []",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AssertNextDataset",
        inputs: &["input_dataset: variant", "transformations: string"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalAssertNextDataset",
        inputs: &["input_dataset: variant", "transformations: string"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "BytesProducedStatsDataset",
        inputs: &["input_dataset: variant", "tag: string"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalBytesProducedStatsDataset",
        inputs: &["input_dataset: variant", "tag: string"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "LatencyStatsDataset",
        inputs: &["input_dataset: variant", "tag: string"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalLatencyStatsDataset",
        inputs: &["input_dataset: variant", "tag: string"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "NonSerializableDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalNonSerializableDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "MaxIntraOpParallelismDataset",
        inputs: &["input_dataset: variant", "max_intra_op_parallelism: int64"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalMaxIntraOpParallelismDataset",
        inputs: &["input_dataset: variant", "max_intra_op_parallelism: int64"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "PrivateThreadPoolDataset",
        inputs: &["input_dataset: variant", "num_threads: int64"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalPrivateThreadPoolDataset",
        inputs: &["input_dataset: variant", "num_threads: int64"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "RewriteDataset",
        inputs: &["input_dataset: variant", "rewrite_name: string"],
        outputs: &["handle: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];
