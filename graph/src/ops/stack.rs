//! Stacks: values that a loop pushes and the loop of its gradient pops.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Stack",
        outputs: &["handle: Ref(string)"],
        attrs: &["elem_type: type", "stack_name: string = ''"],
        infer: legacy_handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StackPush",
        inputs: &["handle: Ref(string)", "elem: T"],
        outputs: &["output: T"],
        attrs: &["T: type", "swap_memory: bool = false"],
        infer: push,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StackPop",
        inputs: &["handle: Ref(string)"],
        outputs: &["elem: elem_type"],
        attrs: &["elem_type: type"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef { name: "StackClose", inputs: &["handle: Ref(string)"], gradient: Gradient::Leaf, ..OpDef::NEW },
    OpDef {
        name: "StackV2",
        inputs: &["max_size: int32"],
        outputs: &["handle: resource"],
        attrs: &["elem_type: type", "stack_name: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StackPushV2",
        inputs: &["handle: resource", "elem: T"],
        outputs: &["output: T"],
        attrs: &["T: type", "swap_memory: bool = false"],
        infer: push,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StackPopV2",
        inputs: &["handle: resource"],
        outputs: &["elem: elem_type"],
        attrs: &["elem_type: type"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StackCloseV2",
        inputs: &["handle: resource"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

fn legacy_handle(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::vector(Some(2)));
    Ok(())
}

/// Gives the output the shape of the pushed value, which is passed through.
fn push(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(1);
    infer.set(0, shape);
    Ok(())
}
