//! Ops that check or print values.

use super::{Gradient, OpDef, Traits};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Assert",
        inputs: &["condition: bool", "data: T"],
        attrs: &["T: list(type) >= 1", "summarize: int = 3"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "Print",
        inputs: &["input: T", "data: U"],
        outputs: &["output: T"],
        attrs: &[
            "T: type",
            "U: list(type) >= 0",
            "message: string = ''",
            "first_n: int = -1",
            "summarize: int = 3",
        ],
        infer: first,
        gradient: Gradient::Defined(print),
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "PrintV2",
        inputs: &["input: string"],
        attrs: &["output_stream: string = 'stderr'", "end: string = '\n'"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "Timestamp",
        outputs: &["ts: double"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringFormat",
        inputs: &["inputs: T"],
        outputs: &["output: string"],
        attrs: &[
            "T: list(type) >= 0",
            "template: string = '%s'",
            "placeholder: string = '%s'",
            "summarize: int = 3",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

fn first(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0);
    infer.set(0, shape);
    Ok(())
}

/// Sets the output's shape to that of a scalar.
pub(super) fn scalar(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::scalar());
    Ok(())
}

/// Forwards the gradient to the first input; the inputs that are only printed get none.
fn print(_: &Scope, forward: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let mut dx = vec![None; forward.inputs.len()];
    dx[0] = dy[0];
    Ok(dx)
}
