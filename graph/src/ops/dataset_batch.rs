//! Datasets that batch the elements of another dataset, or split them.

use super::OpDef;
use super::dataset_source::{DATASET, ELEMENTS, ELEMENTS_AND_METADATA};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "BatchDataset",
        inputs: &["input_dataset: variant", "batch_size: int64"],
        attrs: ELEMENTS_AND_METADATA,
        ..DATASET
    },
    OpDef {
        name: "BatchDatasetV2",
        inputs: &["input_dataset: variant", "batch_size: int64", "drop_remainder: bool"],
        attrs: &[
            "parallel_copy: bool = false",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParallelBatchDataset",
        inputs: &[
            "input_dataset: variant",
            "batch_size: int64",
            "num_parallel_calls: int64",
            "drop_remainder: bool",
        ],
        attrs: &[
            "parallel_copy: bool = false",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "deterministic: string = 'default'",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "PaddedBatchDataset",
        inputs: &[
            "input_dataset: variant",
            "batch_size: int64",
            "padded_shapes: N * int64",
            "padding_values: Toutput_types",
        ],
        attrs: &[
            "Toutput_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "N: int >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "PaddedBatchDatasetV2",
        inputs: &[
            "input_dataset: variant",
            "batch_size: int64",
            "padded_shapes: N * int64",
            "padding_values: Toutput_types",
            "drop_remainder: bool",
        ],
        attrs: &[
            "parallel_copy: bool = false",
            "Toutput_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "N: int >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "UnbatchDataset",
        inputs: &["input_dataset: variant"],
        attrs: ELEMENTS_AND_METADATA,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalUnbatchDataset",
        inputs: &["input_dataset: variant"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "WindowDataset",
        inputs: &[
            "input_dataset: variant",
            "size: int64",
            "shift: int64",
            "stride: int64",
            "drop_remainder: bool",
        ],
        attrs: ELEMENTS_AND_METADATA,
        ..DATASET
    },
    OpDef {
        name: "SlidingWindowDataset",
        inputs: &[
            "input_dataset: variant",
            "window_size: int64",
            "window_shift: int64",
            "window_stride: int64",
        ],
        attrs: &[
            "drop_remainder: bool = true",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalSlidingWindowDataset",
        inputs: &[
            "input_dataset: variant",
            "window_size: int64",
            "window_shift: int64",
            "window_stride: int64",
        ],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "DenseToSparseBatchDataset",
        inputs: &["input_dataset: variant", "batch_size: int64", "row_shape: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalDenseToSparseBatchDataset",
        inputs: &["input_dataset: variant", "batch_size: int64", "row_shape: int64"],
        attrs: ELEMENTS,
        ..DATASET
    },
];
