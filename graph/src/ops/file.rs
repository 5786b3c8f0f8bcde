//! Ops on whole files: reading, writing, and listing files by pattern.

use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "ImmutableConst",
        outputs: &["tensor: dtype"],
        attrs: &["dtype: type", "shape: shape", "memory_region_name: string"],
        infer: |infer| {
            let shape = infer.attr::<PartialShape>("shape")?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ReadFile",
        inputs: &["filename: string"],
        outputs: &["contents: string"],
        infer: read,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "WriteFile",
        inputs: &["filename: string", "contents: string"],
        infer: write,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MatchingFiles",
        inputs: &["pattern: string"],
        outputs: &["filenames: string"],
        infer: matching,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "FileSystemSetConfiguration",
        inputs: &["scheme: string", "key: string", "value: string"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

fn read(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 0)?;
    infer.set(0, PartialShape::scalar());
    Ok(())
}

fn write(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 0)?;
    infer.input_of_rank(1, 0)?;
    Ok(())
}

fn matching(infer: &mut Infer<'_>) -> Result<()> {
    if infer.input(0).rank().is_some_and(|rank| rank > 1) {
        crate::invalid!("Shape must be at most rank 1 but is rank {}", infer.input(0).rank().unwrap_or(0));
    }
    infer.set(0, PartialShape::of_rank(1));
    Ok(())
}
