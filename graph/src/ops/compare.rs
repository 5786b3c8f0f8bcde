//! Comparisons and logical ops.

use super::broadcast::broadcast;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

const fn equality(name: &'static str) -> OpDef {
    OpDef {
        name,
        inputs: &["x: T", "y: T"],
        outputs: &["z: bool"],
        attrs: &["T: type", "incompatible_shape_error: bool = true"],
        infer: equality_shape,
        gradient: Gradient::Leaf,
        traits: Traits::COMMUTATIVE,
        ..OpDef::NEW
    }
}

const fn ordering(name: &'static str) -> OpDef {
    OpDef {
        name,
        inputs: &["x: T", "y: T"],
        outputs: &["z: bool"],
        attrs: &["T: realnumbertype"],
        infer: broadcast,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    }
}

const fn logical(name: &'static str) -> OpDef {
    OpDef {
        name,
        inputs: &["x: bool", "y: bool"],
        outputs: &["z: bool"],
        infer: broadcast,
        gradient: Gradient::Leaf,
        traits: Traits::COMMUTATIVE,
        ..OpDef::NEW
    }
}

pub(super) const OPS: &[OpDef] = &[
    equality("Equal"),
    equality("NotEqual"),
    ordering("Less"),
    ordering("LessEqual"),
    ordering("Greater"),
    ordering("GreaterEqual"),
    OpDef {
        name: "ApproximateEqual",
        inputs: &["x: T", "y: T"],
        outputs: &["z: bool"],
        attrs: &["T: numbertype", "tolerance: float = 0.00001"],
        infer: |infer| {
            let shape = infer.input(0).merge(&infer.input(1))?;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Leaf,
        traits: Traits::COMMUTATIVE,
        ..OpDef::NEW
    },
    logical("LogicalAnd"),
    logical("LogicalOr"),
    OpDef {
        name: "LogicalNot",
        inputs: &["x: bool"],
        outputs: &["y: bool"],
        infer: super::unary::same_shape,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

/// Infers the shape of Equal and NotEqual. A node that accepts incompatible shapes returns a scalar for them, so the
/// output's shape is known only if both input shapes are known.
fn equality_shape(infer: &mut Infer<'_>) -> Result<()> {
    if infer.attr::<bool>("incompatible_shape_error")? {
        return broadcast(infer);
    }
    let (x, y) = (infer.input(0), infer.input(1));
    let known = x.is_fully_defined() && y.is_fully_defined();
    let shape = if known { PartialShape::broadcast(&x, &y).ok() } else { None };
    infer.set(0, shape.unwrap_or_default());
    Ok(())
}
