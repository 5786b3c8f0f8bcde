//! Checkpoint files: variables are saved by name, whole or in slices, and restored.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "SaveV2",
        inputs: &["prefix: string", "tensor_names: string", "shape_and_slices: string", "tensors: dtypes"],
        attrs: &["dtypes: list(type) >= 1"],
        infer: save,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "RestoreV2",
        inputs: &["prefix: string", "tensor_names: string", "shape_and_slices: string"],
        outputs: &["tensors: dtypes"],
        attrs: &["dtypes: list(type) >= 1"],
        infer: save,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "SetAsideVariable",
        inputs: &["resource: resource"],
        outputs: &["aside: variant"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        is_extension: true,
        ..OpDef::NEW
    },
    OpDef {
        name: "KeepSnapshot",
        inputs: &["asides: N * variant"],
        attrs: &["N: int >= 1", "container: string = ''", "shared_name: string = ''"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        is_extension: true,
        ..OpDef::NEW
    },
    OpDef {
        name: "SaveSnapshot",
        inputs: &["prefix: string", "tensor_names: string", "shape_and_slices: string", "behind_steps: bool"],
        attrs: &["container: string = ''", "shared_name: string = ''"],
        infer: save,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        is_extension: true,
        ..OpDef::NEW
    },
    OpDef {
        name: "GenerateVocabRemapping",
        inputs: &["new_vocab_file: string", "old_vocab_file: string"],
        outputs: &["remapping: int64", "num_present: int32"],
        attrs: &["new_vocab_offset: int >= 0", "num_new_vocab: int >= 0", "old_vocab_size: int >= -1 = -1"],
        infer: |infer| {
            restore_legacy(infer)?;
            let count = infer.attr::<i64>("num_new_vocab")?;
            infer.set(0, PartialShape::vector(usize::try_from(count).ok()));
            infer.set(1, PartialShape::scalar());
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "LoadAndRemapMatrix",
        inputs: &[
            "ckpt_path: string",
            "old_tensor_name: string",
            "row_remapping: int64",
            "col_remapping: int64",
            "initializing_values: float",
        ],
        outputs: &["output_matrix: float"],
        attrs: &["num_rows: int >= 0", "num_cols: int >= 1", "max_rows_in_memory: int = -1"],
        infer: |infer| {
            infer.input_of_rank(2, 1)?;
            infer.input_of_rank(3, 1)?;
            let count = |attr: &str| Ok::<_, crate::Error>(usize::try_from(infer.attr::<i64>(attr)?).ok());
            let shape = [count("num_rows")?, count("num_cols")?];
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MergeV2Checkpoints",
        inputs: &["checkpoint_prefixes: string", "destination_prefix: string"],
        attrs: &["delete_old_dirs: bool = true", "allow_missing_files: bool = false"],
        infer: merge,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ShardedFilename",
        inputs: &["basename: string", "shard: int32", "num_shards: int32"],
        outputs: &["filename: string"],
        infer: file_name,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ShardedFilespec",
        inputs: &["basename: string", "num_shards: int32"],
        outputs: &["filename: string"],
        infer: file_name,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "Save",
        inputs: &["filename: string", "tensor_names: string", "data: T"],
        attrs: &["T: list(type) >= 1"],
        infer: save_legacy,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "SaveSlices",
        inputs: &["filename: string", "tensor_names: string", "shapes_and_slices: string", "data: T"],
        attrs: &["T: list(type) >= 1"],
        infer: save,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "Restore",
        inputs: &["file_pattern: string", "tensor_name: string"],
        outputs: &["tensor: dt"],
        attrs: &["dt: type", "preferred_shard: int = -1"],
        infer: restore_legacy,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "RestoreSlice",
        inputs: &["file_pattern: string", "tensor_name: string", "shape_and_slice: string"],
        outputs: &["tensor: dt"],
        attrs: &["dt: type", "preferred_shard: int = -1"],
        infer: restore_legacy,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

/// Checks the shapes of the inputs: the prefix, the tensor names and the slice specifications, where names and
/// specifications have one element per tensor.
fn save(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 0)?;
    infer.input_of_rank(1, 1)?.merge(&infer.input_of_rank(2, 1)?)?;
    Ok(())
}

fn merge(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 1)?;
    infer.input_of_rank(1, 0)?;
    Ok(())
}

fn save_legacy(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 0)?;
    infer.input_of_rank(1, 1)?;
    Ok(())
}

/// Checks that all inputs are scalars; the output's shape depends on the file.
fn restore_legacy(infer: &mut Infer<'_>) -> Result<()> {
    for i in 0..infer.num_inputs() {
        infer.input_of_rank(i, 0)?;
    }
    Ok(())
}

fn file_name(infer: &mut Infer<'_>) -> Result<()> {
    restore_legacy(infer)?;
    infer.set(0, PartialShape::scalar());
    Ok(())
}
