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
        name: "SnapshotDataset",
        inputs: &["input_dataset: variant", "path: string"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "compression: string = ''",
            "reader_path_prefix: string = ''",
            "writer_path_prefix: string = ''",
            "shard_size_bytes: int = 10737418240",
            "pending_snapshot_expiry_seconds: int = 86400",
            "num_reader_threads: int = 1",
            "reader_buffer_size: int = 1",
            "num_writer_threads: int = 1",
            "writer_buffer_size: int = 1",
            "shuffle_on_read: bool = false",
            "seed: int = 0",
            "seed2: int = 0",
            "mode: string = 'auto'",
            "snapshot_name: string = ''",
        ],
        ..DATASET
    },
    OpDef {
        name: "SnapshotDatasetV2",
        inputs: &[
            "input_dataset: variant",
            "path: string",
            "reader_func_other_args: Treader_func_args",
            "shard_func_other_args: Tshard_func_args",
        ],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "compression: string = ''",
            "reader_prefix: string = ''",
            "writer_prefix: string = ''",
            "hash_valid: bool = false",
            "hash: int = 0",
            "reader_func: func",
            "shard_func: func",
            "Treader_func_args: list(type) >= 0",
            "Tshard_func_args: list(type) >= 0",
            "metadata: string = ''",
        ],
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
