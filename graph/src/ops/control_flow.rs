//! Low-level control flow: Switch and Merge, and the ops of loop frames.

use super::identity::same;
use super::{Gradient, OpDef, Role, Traits};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Switch",
        inputs: &["data: T", "pred: bool"],
        outputs: &["output_false: T", "output_true: T"],
        attrs: &["T: type"],
        infer: switch,
        gradient: Gradient::Defined(switch_gradient),
        role: Role::Switch,
        ..OpDef::NEW
    },
    OpDef {
        name: "RefSwitch",
        inputs: &["data: Ref(T)", "pred: bool"],
        outputs: &["output_false: Ref(T)", "output_true: Ref(T)"],
        attrs: &["T: type"],
        infer: switch,
        role: Role::Switch,
        traits: Traits { allows_uninitialized_input: true, ..Traits::NONE },
        ..OpDef::NEW
    },
    OpDef {
        name: "_SwitchN",
        inputs: &["data: T", "output_index: int32"],
        outputs: &["outputs: num_outs * T"],
        attrs: &["num_outs: int >= 1", "T: type"],
        infer: switch,
        gradient: Gradient::Defined(switch_gradient),
        role: Role::Switch,
        ..OpDef::NEW
    },
    OpDef {
        name: "Merge",
        inputs: &["inputs: N * T"],
        outputs: &["output: T", "value_index: int32"],
        attrs: &["T: type", "N: int >= 1"],
        infer: merge,
        gradient: Gradient::Defined(merge_gradient),
        role: Role::Merge,
        ..OpDef::NEW
    },
    OpDef {
        name: "RefMerge",
        inputs: &["inputs: N * Ref(T)"],
        outputs: &["output: Ref(T)", "value_index: int32"],
        attrs: &["T: type", "N: int >= 1"],
        infer: merge,
        role: Role::Merge,
        ..OpDef::NEW
    },
    OpDef {
        name: "Enter",
        inputs: &["data: T"],
        outputs: &["output: T"],
        attrs: &[
            "T: type",
            "frame_name: string",
            "is_constant: bool = false",
            "parallel_iterations: int = 10",
        ],
        infer: enter,
        role: Role::Enter,
        ..OpDef::NEW
    },
    OpDef {
        name: "RefEnter",
        inputs: &["data: Ref(T)"],
        outputs: &["output: Ref(T)"],
        attrs: &[
            "T: type",
            "frame_name: string",
            "is_constant: bool = false",
            "parallel_iterations: int = 10",
        ],
        infer: enter,
        role: Role::Enter,
        ..OpDef::NEW
    },
    OpDef {
        name: "Exit",
        inputs: &["data: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same,
        role: Role::Exit,
        ..OpDef::NEW
    },
    OpDef {
        name: "RefExit",
        inputs: &["data: Ref(T)"],
        outputs: &["output: Ref(T)"],
        attrs: &["T: type"],
        infer: same,
        role: Role::Exit,
        ..OpDef::NEW
    },
    OpDef {
        name: "NextIteration",
        inputs: &["data: T"],
        outputs: &["output: T"],
        attrs: &["T: type"],
        infer: same,
        role: Role::NextIteration,
        ..OpDef::NEW
    },
    OpDef {
        name: "RefNextIteration",
        inputs: &["data: Ref(T)"],
        outputs: &["output: Ref(T)"],
        attrs: &["T: type"],
        infer: same,
        role: Role::NextIteration,
        ..OpDef::NEW
    },
    OpDef {
        name: "LoopCond",
        inputs: &["input: bool"],
        outputs: &["output: bool"],
        infer: condition,
        gradient: Gradient::Leaf,
        role: Role::LoopCond,
        ..OpDef::NEW
    },
    OpDef { name: "ControlTrigger", gradient: Gradient::Leaf, role: Role::ControlTrigger, ..OpDef::NEW },
    OpDef {
        name: "RefSelect",
        inputs: &["index: int32", "inputs: N * Ref(T)"],
        outputs: &["output: Ref(T)"],
        attrs: &["T: type", "N: int >= 1"],
        infer: select,
        ..OpDef::NEW
    },
];

/// Gives each output the shape of input 0 and, if it is a resource handle, the dtype and shape of its variable.
fn switch(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    let shape = infer.input(0);
    for i in 0..infer.num_outputs() {
        infer.set(i, shape.clone());
        if let Some((dtype, shape)) = infer.handle(0) {
            infer.set_handle(i, dtype, shape);
        }
    }
    Ok(())
}

/// Sets the shape on which all inputs agree. The shape at a back edge is not known yet, so loop variables have an
/// unknown shape.
fn merge(infer: &mut Infer<'_>) -> Result<()> {
    let inputs: Vec<PartialShape> = (0..infer.num_inputs()).map(|i| infer.input(i)).collect();
    infer.set(0, agreed(&inputs));
    infer.set(1, PartialShape::scalar());
    let handle = infer.handle(0);
    if (1..infer.num_inputs()).all(|i| infer.handle(i) == handle)
        && let Some((dtype, shape)) = handle
    {
        infer.set_handle(0, dtype, shape);
    }
    Ok(())
}

fn agreed(shapes: &[PartialShape]) -> PartialShape {
    let Some((first, others)) = shapes.split_first() else { return PartialShape::unknown() };
    let Some(dims) = first.dims() else { return PartialShape::unknown() };
    if others.iter().any(|s| s.rank() != Some(dims.len())) {
        return PartialShape::unknown();
    }
    let agrees = |i: usize| others.iter().all(|s| s.dim(i) == dims[i]);
    PartialShape::of_dims(dims.iter().enumerate().map(|(i, d)| if agrees(i) { *d } else { None }))
}

/// Sets the output's shape to the input's shape for a loop constant, and to unknown for a loop variable, whose shape
/// may change between iterations.
fn enter(infer: &mut Infer<'_>) -> Result<()> {
    if infer.attr::<bool>("is_constant")? {
        let shape = infer.input(0);
        infer.set(0, shape);
    }
    if let Some((dtype, shape)) = infer.handle(0) {
        infer.set_handle(0, dtype, shape);
    }
    Ok(())
}

fn condition(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input_of_rank(0, 0)?;
    infer.set(0, shape);
    Ok(())
}

/// Infers the shape of RefSelect, which forwards one of several references.
fn select(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 0)?;
    let inputs: Vec<PartialShape> = (1..infer.num_inputs()).map(|i| infer.input(i)).collect();
    let shape = if inputs.iter().all(PartialShape::is_fully_defined) {
        agreed(&inputs)
    } else {
        PartialShape::unknown()
    };
    infer.set(0, shape);
    Ok(())
}

/// Gradient of Switch: merges the gradients of all outputs. For an output at which no gradient arrived, zeros are
/// merged; the zeros are alive if and only if that output is alive.
fn switch_gradient(s: &Scope, forward: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let ways: Vec<Output> =
        (0..dy.len()).map(|i| dy[i].unwrap_or_else(|| s.zeros_like(forward.output(i)))).collect();
    Ok(vec![Some(s.op("Merge").input(ways).output()), None])
}

/// Gradient of Merge: routes the gradient of the output to the input that was alive.
fn merge_gradient(s: &Scope, forward: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None; forward.inputs.len()]) };
    let count = forward.inputs.len() as i64;
    let ways = s.op("_SwitchN").input(dy).input(forward.output(1)).attr("num_outs", count).outputs();
    Ok(ways.into_iter().map(Some).collect())
}
