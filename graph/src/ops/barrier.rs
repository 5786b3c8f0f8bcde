//! Barriers: tuples of components that arrive separately under a key.

use super::check::scalar;
use super::queue::handle;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Barrier",
        outputs: &["handle: Ref(string)"],
        attrs: &[
            "component_types: list(type) >= 1",
            "shapes: list(shape) >= 0 = []",
            "capacity: int = -1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "BarrierInsertMany",
        inputs: &["handle: Ref(string)", "keys: string", "values: T"],
        attrs: &["T: type", "component_index: int"],
        infer: insert,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "BarrierTakeMany",
        inputs: &["handle: Ref(string)", "num_elements: int32"],
        outputs: &["indices: int64", "keys: string", "values: component_types"],
        attrs: &[
            "component_types: list(type) >= 1",
            "allow_small_batch: bool = false",
            "wait_for_incomplete: bool = false",
            "timeout_ms: int = -1",
        ],
        infer: take,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "BarrierClose",
        inputs: &["handle: Ref(string)"],
        attrs: &["cancel_pending_enqueues: bool = false"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "BarrierReadySize",
        inputs: &["handle: Ref(string)"],
        outputs: &["size: int32"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "BarrierIncompleteSize",
        inputs: &["handle: Ref(string)"],
        outputs: &["size: int32"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn insert(infer: &mut Infer<'_>) -> Result<()> {
    let keys = infer.input_of_rank(1, 1)?;
    let values = infer.input(2);
    match values.dims() {
        None => Ok(()),
        Some([]) => crate::invalid!("Shape must be at least rank 1 but is rank 0"),
        Some(dims) => keys.merge(&PartialShape::vector(dims[0])).map(|_| ()),
    }
}

fn take(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    infer.set(0, PartialShape::of_rank(1));
    infer.set(1, PartialShape::of_rank(1));
    Ok(())
}
