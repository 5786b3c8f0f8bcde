//! Datasets in files: saving, loading, and the parts of stored datasets.

use super::dataset_source::{DATASET, ELEMENTS};
use super::{Gradient, OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "SaveDataset",
        inputs: &["input_dataset: variant", "path: string", "shard_func_other_args: Tshard_func_args"],
        attrs: &[
            "compression: string = ''",
            "shard_func: func",
            "use_shard_func: bool = true",
            "Tshard_func_args: list(type) >= 0",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "SaveDatasetV2",
        inputs: &["input_dataset: variant", "path: string", "shard_func_other_args: Tshard_func_args"],
        attrs: &[
            "compression: string = ''",
            "shard_func: func",
            "use_shard_func: bool = true",
            "Tshard_func_args: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "LoadDataset",
        inputs: &["path: string", "reader_func_other_args: Treader_func_args"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "compression: string = ''",
            "reader_func: func",
            "Treader_func_args: list(type) >= 0",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "SnapshotDatasetReader",
        inputs: &["shard_dir: string", "start_index: int64"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "compression: string = ''",
            "version: int",
        ],
        ..DATASET
    },
    OpDef {
        name: "SnapshotNestedDatasetReader",
        inputs: &["inputs: N * variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "N: int >= 1"],
        ..DATASET
    },
    OpDef {
        name: "SnapshotChunkDataset",
        inputs: &["chunk_file: string"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "compression: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "ListSnapshotChunksDataset",
        inputs: &["snapshot_path: string"],
        attrs: ELEMENTS,
        traits: Traits::STATEFUL,
        ..DATASET
    },
];
