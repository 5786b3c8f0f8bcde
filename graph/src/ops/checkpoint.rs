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
