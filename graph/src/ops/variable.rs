//! Reference variables: the node holds the variable, and ops that write take a `Ref` of it.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "VariableV2",
        outputs: &["ref: Ref(dtype)"],
        attrs: &["shape: shape", "dtype: type", "container: string = ''", "shared_name: string = ''"],
        infer: declared,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "Variable",
        outputs: &["ref: Ref(dtype)"],
        attrs: &["shape: shape", "dtype: type", "container: string = ''", "shared_name: string = ''"],
        infer: legacy_declared,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "TemporaryVariable",
        outputs: &["ref: Ref(dtype)"],
        attrs: &["shape: shape", "dtype: type", "var_name: string = ''"],
        infer: declared,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DestroyTemporaryVariable",
        inputs: &["ref: Ref(T)"],
        outputs: &["value: T"],
        attrs: &["T: type", "var_name: string"],
        infer: super::identity::same,
        ..OpDef::NEW
    },
    OpDef {
        name: "Assign",
        inputs: &["ref: Ref(T)", "value: T"],
        outputs: &["output_ref: Ref(T)"],
        attrs: &["T: type", "validate_shape: bool = true", "use_locking: bool = true"],
        infer: assign,
        gradient: Gradient::Leaf,
        traits: Traits { allows_uninitialized_input: true, ..Traits::NONE },
        ..OpDef::NEW
    },
    OpDef {
        name: "AssignAdd",
        inputs: &["ref: Ref(T)", "value: T"],
        outputs: &["output_ref: Ref(T)"],
        attrs: &["T: numbertype", "use_locking: bool = false"],
        infer: update,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AssignSub",
        inputs: &["ref: Ref(T)", "value: T"],
        outputs: &["output_ref: Ref(T)"],
        attrs: &["T: numbertype", "use_locking: bool = false"],
        infer: update,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "IsVariableInitialized",
        inputs: &["ref: Ref(dtype)"],
        outputs: &["is_initialized: bool"],
        attrs: &["dtype: type"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits { allows_uninitialized_input: true, ..Traits::NONE },
        ..OpDef::NEW
    },
    OpDef {
        name: "CountUpTo",
        inputs: &["ref: Ref(T)"],
        outputs: &["output: T"],
        attrs: &["limit: int", "T: {int32, int64}"],
        infer: count,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn declared(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.attr::<PartialShape>("shape")?;
    infer.set(0, shape);
    Ok(())
}

/// Infers the shape of the old op `Variable`, where a scalar's shape may also mean an unknown shape.
fn legacy_declared(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.attr::<PartialShape>("shape")?;
    infer.set(0, if shape.rank() == Some(0) { PartialShape::unknown() } else { shape });
    Ok(())
}

fn assign(infer: &mut Infer<'_>) -> Result<()> {
    if infer.attr::<bool>("validate_shape")? {
        return update(infer);
    }
    let shape = infer.input(1);
    infer.set(0, shape);
    Ok(())
}

fn update(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0).merge(&infer.input(1))?;
    infer.set(0, shape);
    Ok(())
}

fn count(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 0)?;
    scalar(infer)
}
