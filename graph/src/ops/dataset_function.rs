//! Datasets that apply a function to the elements of another dataset.

use super::check::scalar;
use super::dataset_source::{DATASET, ELEMENTS};
use super::{Gradient, OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "MapDataset",
        inputs: &["input_dataset: variant", "other_arguments: Targuments"],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "use_inter_op_parallelism: bool = true",
            "preserve_cardinality: bool = false",
            "force_synchronous: bool = false",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalMapDataset",
        inputs: &["input_dataset: variant", "other_arguments: Targuments"],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "use_inter_op_parallelism: bool = true",
            "preserve_cardinality: bool = false",
            "force_synchronous: bool = false",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParallelMapDataset",
        inputs: &["input_dataset: variant", "other_arguments: Targuments", "num_parallel_calls: int32"],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "use_inter_op_parallelism: bool = true",
            "sloppy: bool = false",
            "preserve_cardinality: bool = false",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParallelMapDatasetV2",
        inputs: &["input_dataset: variant", "other_arguments: Targuments", "num_parallel_calls: int64"],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "use_inter_op_parallelism: bool = true",
            "deterministic: string = 'default'",
            "preserve_cardinality: bool = false",
            "use_unbounded_threadpool: bool = false",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParseExampleDataset",
        inputs: &["input_dataset: variant", "num_parallel_calls: int64", "dense_defaults: Tdense"],
        attrs: &[
            "sparse_keys: list(string) >= 0",
            "dense_keys: list(string) >= 0",
            "sparse_types: list({float, int64, string}) >= 0",
            "Tdense: list({float, int64, string}) >= 0",
            "dense_shapes: list(shape) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "sloppy: bool = false",
            "ragged_keys: list(string) >= 0 = []",
            "ragged_value_types: list({float, int64, string}) >= 0 = []",
            "ragged_split_types: list({int32, int64}) >= 0 = []",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalParseExampleDataset",
        inputs: &["input_dataset: variant", "num_parallel_calls: int64", "dense_defaults: Tdense"],
        attrs: &[
            "sparse_keys: list(string) >= 0",
            "dense_keys: list(string) >= 0",
            "sparse_types: list({float, int64, string}) >= 0",
            "Tdense: list({float, int64, string}) >= 0",
            "dense_shapes: list(shape) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "sloppy: bool = false",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParseExampleDatasetV2",
        inputs: &["input_dataset: variant", "num_parallel_calls: int64", "dense_defaults: Tdense"],
        attrs: &[
            "sparse_keys: list(string) >= 0",
            "dense_keys: list(string) >= 0",
            "sparse_types: list({float, int64, string}) >= 0",
            "Tdense: list({float, int64, string}) >= 0",
            "dense_shapes: list(shape) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "deterministic: string = 'default'",
            "ragged_keys: list(string) >= 0 = []",
            "ragged_value_types: list({float, int64, string}) >= 0 = []",
            "ragged_split_types: list({int32, int64}) >= 0 = []",
        ],
        ..DATASET
    },
    OpDef {
        name: "FlatMapDataset",
        inputs: &["input_dataset: variant", "other_arguments: Targuments"],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "InterleaveDataset",
        inputs: &[
            "input_dataset: variant",
            "other_arguments: Targuments",
            "cycle_length: int64",
            "block_length: int64",
        ],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParallelInterleaveDataset",
        inputs: &[
            "input_dataset: variant",
            "other_arguments: Targuments",
            "cycle_length: int64",
            "block_length: int64",
            "sloppy: bool",
            "buffer_output_elements: int64",
            "prefetch_input_elements: int64",
        ],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalParallelInterleaveDataset",
        inputs: &[
            "input_dataset: variant",
            "other_arguments: Targuments",
            "cycle_length: int64",
            "block_length: int64",
            "sloppy: bool",
            "buffer_output_elements: int64",
            "prefetch_input_elements: int64",
        ],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParallelInterleaveDatasetV2",
        inputs: &[
            "input_dataset: variant",
            "other_arguments: Targuments",
            "cycle_length: int64",
            "block_length: int64",
            "num_parallel_calls: int64",
        ],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "sloppy: bool = false",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParallelInterleaveDatasetV3",
        inputs: &[
            "input_dataset: variant",
            "other_arguments: Targuments",
            "cycle_length: int64",
            "block_length: int64",
            "num_parallel_calls: int64",
        ],
        attrs: &[
            "f: func",
            "deterministic: string = 'default'",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParallelInterleaveDatasetV4",
        inputs: &[
            "input_dataset: variant",
            "other_arguments: Targuments",
            "cycle_length: int64",
            "block_length: int64",
            "buffer_output_elements: int64",
            "prefetch_input_elements: int64",
            "num_parallel_calls: int64",
        ],
        attrs: &[
            "f: func",
            "deterministic: string = 'default'",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "LegacyParallelInterleaveDatasetV2",
        inputs: &[
            "input_dataset: variant",
            "other_arguments: Targuments",
            "cycle_length: int64",
            "block_length: int64",
            "buffer_output_elements: int64",
            "prefetch_input_elements: int64",
        ],
        attrs: &[
            "f: func",
            "deterministic: string = 'default'",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "FilterDataset",
        inputs: &["input_dataset: variant", "other_arguments: Targuments"],
        attrs: &[
            "predicate: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ParallelFilterDataset",
        inputs: &["input_dataset: variant", "other_arguments: Targuments", "num_parallel_calls: int64"],
        attrs: &[
            "predicate: func",
            "deterministic: string = 'default'",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "FilterByLastComponentDataset",
        inputs: &["input_dataset: variant"],
        outputs: &["output: variant"],
        attrs: ELEMENTS,
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "MapAndBatchDataset",
        inputs: &[
            "input_dataset: variant",
            "other_arguments: Targuments",
            "batch_size: int64",
            "num_parallel_calls: int64",
            "drop_remainder: bool",
        ],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "preserve_cardinality: bool = false",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalMapAndBatchDataset",
        inputs: &[
            "input_dataset: variant",
            "other_arguments: Targuments",
            "batch_size: int64",
            "num_parallel_calls: int64",
            "drop_remainder: bool",
        ],
        attrs: &[
            "f: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "preserve_cardinality: bool = false",
        ],
        ..DATASET
    },
    OpDef {
        name: "ScanDataset",
        inputs: &["input_dataset: variant", "initial_state: Tstate", "other_arguments: Targuments"],
        attrs: &[
            "f: func",
            "Tstate: list(type) >= 1",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "preserve_cardinality: bool = false",
            "use_default_device: bool = true",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalScanDataset",
        inputs: &["input_dataset: variant", "initial_state: Tstate", "other_arguments: Targuments"],
        attrs: &[
            "f: func",
            "Tstate: list(type) >= 1",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "preserve_cardinality: bool = false",
        ],
        ..DATASET
    },
    OpDef {
        name: "TakeWhileDataset",
        inputs: &["input_dataset: variant", "other_arguments: Targuments"],
        attrs: &[
            "predicate: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalTakeWhileDataset",
        inputs: &["input_dataset: variant", "other_arguments: Targuments"],
        attrs: &[
            "predicate: func",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "GroupByWindowDataset",
        inputs: &[
            "input_dataset: variant",
            "key_func_other_arguments: Tkey_func_other_arguments",
            "reduce_func_other_arguments: Treduce_func_other_arguments",
            "window_size_func_other_arguments: Twindow_size_func_other_arguments",
        ],
        attrs: &[
            "key_func: func",
            "reduce_func: func",
            "window_size_func: func",
            "Tkey_func_other_arguments: list(type) >= 0",
            "Treduce_func_other_arguments: list(type) >= 0",
            "Twindow_size_func_other_arguments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ExperimentalGroupByWindowDataset",
        inputs: &[
            "input_dataset: variant",
            "key_func_other_arguments: Tkey_func_other_arguments",
            "reduce_func_other_arguments: Treduce_func_other_arguments",
            "window_size_func_other_arguments: Twindow_size_func_other_arguments",
        ],
        attrs: &[
            "key_func: func",
            "reduce_func: func",
            "window_size_func: func",
            "Tkey_func_other_arguments: list(type) >= 0",
            "Treduce_func_other_arguments: list(type) >= 0",
            "Twindow_size_func_other_arguments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "GroupByReducerDataset",
        inputs: &[
            "input_dataset: variant",
            "key_func_other_arguments: Tkey_func_other_arguments",
            "init_func_other_arguments: Tinit_func_other_arguments",
            "reduce_func_other_arguments: Treduce_func_other_arguments",
            "finalize_func_other_arguments: Tfinalize_func_other_arguments",
        ],
        attrs: &[
            "key_func: func",
            "init_func: func",
            "reduce_func: func",
            "finalize_func: func",
            "Tkey_func_other_arguments: list(type) >= 0",
            "Tinit_func_other_arguments: list(type) >= 0",
            "Treduce_func_other_arguments: list(type) >= 0",
            "Tfinalize_func_other_arguments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalGroupByReducerDataset",
        inputs: &[
            "input_dataset: variant",
            "key_func_other_arguments: Tkey_func_other_arguments",
            "init_func_other_arguments: Tinit_func_other_arguments",
            "reduce_func_other_arguments: Treduce_func_other_arguments",
            "finalize_func_other_arguments: Tfinalize_func_other_arguments",
        ],
        attrs: &[
            "key_func: func",
            "init_func: func",
            "reduce_func: func",
            "finalize_func: func",
            "Tkey_func_other_arguments: list(type) >= 0",
            "Tinit_func_other_arguments: list(type) >= 0",
            "Treduce_func_other_arguments: list(type) >= 0",
            "Tfinalize_func_other_arguments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "ChooseFastestBranchDataset",
        inputs: &[
            "input_dataset: variant",
            "ratio_numerator: int64",
            "ratio_denominator: int64",
            "other_arguments: Targuments",
        ],
        attrs: &[
            "Targuments: list(type) >= 0",
            "num_elements_per_branch: int >= 1",
            "branches: list(func) >= 1",
            "other_arguments_lengths: list(int) >= 1",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "IndexFlatMapDataset",
        inputs: &[
            "input_dataset: variant",
            "map_func_other_args: Tmap_func_args",
            "index_map_func_other_args: Tindex_map_func_args",
            "output_cardinality: int64",
        ],
        attrs: &[
            "map_func: func",
            "index_map_func: func",
            "Tmap_func_args: list(type) >= 0",
            "Tindex_map_func_args: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        ..DATASET
    },
];
