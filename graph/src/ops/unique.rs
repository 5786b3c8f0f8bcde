//! Distinct elements, and differences of lists.

use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Unique",
        inputs: &["x: T"],
        outputs: &["y: T", "idx: out_idx"],
        attrs: &["T: type", "out_idx: {int32, int64} = int32"],
        infer: |infer| {
            let input = infer.input_of_rank(0, 1)?;
            infer.set_all(PartialShape::vector(None));
            infer.set(1, input);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniqueWithCounts",
        inputs: &["x: T"],
        outputs: &["y: T", "idx: out_idx", "count: out_idx"],
        attrs: &["T: type", "out_idx: {int32, int64} = int32"],
        infer: |infer| {
            let input = infer.input_of_rank(0, 1)?;
            infer.set_all(PartialShape::vector(None));
            infer.set(1, input);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniqueV2",
        inputs: &["x: T", "axis: Taxis"],
        outputs: &["y: T", "idx: out_idx"],
        attrs: &["T: type", "Taxis: {int32, int64} = int64", "out_idx: {int32, int64} = int32"],
        infer: along_axis,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniqueWithCountsV2",
        inputs: &["x: T", "axis: Taxis"],
        outputs: &["y: T", "idx: out_idx", "count: out_idx"],
        attrs: &["T: type", "Taxis: {int32, int64} = int64", "out_idx: {int32, int64} = int32"],
        infer: along_axis,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ListDiff",
        inputs: &["x: T", "y: T"],
        outputs: &["out: T", "idx: out_idx"],
        attrs: &["T: type", "out_idx: {int32, int64} = int32"],
        infer: |infer| {
            infer.input_of_rank(0, 1)?;
            infer.input_of_rank(1, 1)?;
            infer.set_all(PartialShape::vector(None));
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn along_axis(infer: &mut Infer<'_>) -> Result<()> {
    let rank = infer.input(0).rank();
    infer.set_all(PartialShape::vector(None));
    infer.set(0, rank.map_or(PartialShape::unknown(), PartialShape::of_rank));
    Ok(())
}
