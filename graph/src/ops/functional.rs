//! Function calls, and control flow whose branches are functions.

use super::{Gradient, InferFn, OpDef, Traits};
use crate::attr::FuncAttr;
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

const CALL_ATTRS: &[&str] = &[
    "Tin: list(type) >= 0",
    "Tout: list(type) >= 0",
    "f: func",
    "config: string = ''",
    "config_proto: string = ''",
    "executor_type: string = ''",
];
const IF_ATTRS: &[&str] = &[
    "Tcond: type",
    "Tin: list(type) >= 0",
    "Tout: list(type) >= 0",
    "then_branch: func",
    "else_branch: func",
    "output_shapes: list(shape) = []",
];
const WHILE_ATTRS: &[&str] = &[
    "T: list(type) >= 0",
    "cond: func",
    "body: func",
    "output_shapes: list(shape) = []",
    "parallel_iterations: int = 10",
];
const CASE_ATTRS: &[&str] = &[
    "Tin: list(type) >= 0",
    "Tout: list(type) >= 0",
    "branches: list(func) >= 1",
    "output_shapes: list(shape) = []",
];

const fn of(
    name: &'static str,
    inputs: &'static [&'static str],
    outputs: &'static [&'static str],
    attrs: &'static [&'static str],
    infer: InferFn,
    traits: Traits,
) -> OpDef {
    OpDef { name, inputs, outputs, attrs, infer, traits, ..OpDef::NEW }
}

const fn call(name: &'static str, traits: Traits) -> OpDef {
    let gradient = Gradient::Defined(gradient_of_call);
    let infer = super::unknown_shapes;
    OpDef { gradient, ..of(name, &["args: Tin"], &["output: Tout"], CALL_ATTRS, infer, traits) }
}

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "MapDefun",
        inputs: &["arguments: Targuments", "captured_inputs: Tcaptured"],
        outputs: &["output: output_types"],
        attrs: &[
            "Targuments: list(type) >= 1",
            "Tcaptured: list(type) >= 0 = []",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "f: func",
            "max_intra_op_parallelism: int = 1",
        ],
        infer: rows_of_results,
        ..OpDef::NEW
    },
    call("PartitionedCall", Traits::NONE),
    call("StatefulPartitionedCall", Traits::STATEFUL),
    of(
        "RemoteCall",
        &["target: string", "args: Tin"],
        &["output: Tout"],
        &["Tin: list(type) >= 1", "Tout: list(type) >= 1", "f: func"],
        super::unknown_shapes,
        Traits::STATEFUL,
    ),
    of("If", &["cond: Tcond", "input: Tin"], &["output: Tout"], IF_ATTRS, declared_shapes, Traits::STATEFUL),
    of(
        "StatelessIf",
        &["cond: Tcond", "input: Tin"],
        &["output: Tout"],
        IF_ATTRS,
        declared_shapes,
        Traits::NONE,
    ),
    of("While", &["input: T"], &["output: T"], WHILE_ATTRS, declared_shapes, Traits::STATEFUL),
    of("StatelessWhile", &["input: T"], &["output: T"], WHILE_ATTRS, declared_shapes, Traits::NONE),
    of(
        "Case",
        &["branch_index: int32", "input: Tin"],
        &["output: Tout"],
        CASE_ATTRS,
        declared_shapes,
        Traits::STATEFUL,
    ),
    of(
        "StatelessCase",
        &["branch_index: int32", "input: Tin"],
        &["output: Tout"],
        CASE_ATTRS,
        declared_shapes,
        Traits::NONE,
    ),
    of(
        "For",
        &["start: int32", "limit: int32", "delta: int32", "input: T"],
        &["output: T"],
        &["T: list(type) >= 0", "body: func"],
        super::unknown_shapes,
        Traits::NONE,
    ),
    of(
        "SymbolicGradient",
        &["input: Tin"],
        &["output: Tout"],
        &["Tin: list(type) >= 1", "Tout: list(type) >= 1", "f: func"],
        super::unknown_shapes,
        Traits::NONE,
    ),
    OpDef {
        gradient: Gradient::Leaf,
        ..of("ToBool", &["input: T"], &["output: bool"], &["T: type"], scalar, Traits::NONE)
    },
    OpDef {
        gradient: Gradient::Leaf,
        ..of("DeviceIndex", &[], &["index: int32"], &["device_names: list(string)"], scalar, Traits::STATEFUL)
    },
    OpDef {
        gradient: Gradient::Leaf,
        ..of("FakeParam", &[], &["output: dtype"], &["dtype: type", "shape: shape"], fake_param, Traits::NONE)
    },
];

/// Returns the gradient of a call as a `SymbolicGradient` node, which lowering replaces by the function's gradient.
fn gradient_of_call(scope: &Scope, call: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let func: FuncAttr = call.attr("f")?;
    if call.inputs.iter().any(|input| scope.dtype(*input) == DType::Resource) {
        let message = format!("the gradient of function {}, which is given variables", func.name);
        return Err(Error::unimplemented(message).at_node(&call.node.name));
    }
    let arrives = |(i, dy): (usize, &Option<Output>)| dy.unwrap_or_else(|| scope.zeros_like(call.output(i)));
    let inputs: Vec<Output> = call.inputs.iter().copied().chain(dy.iter().enumerate().map(arrives)).collect();
    let gradient = scope.op("SymbolicGradient").input(inputs);
    let gradient = gradient.attr("Tout", call.attr::<Vec<DType>>("Tin")?).attr("f", func).outputs();
    let is_number = |input: &Output| scope.dtype(*input).is_differentiable();
    Ok(gradient.into_iter().zip(&call.inputs).map(|(g, input)| is_number(input).then_some(g)).collect())
}

/// Sets the output shapes that the attribute `output_shapes` declares, if it has one entry per output.
fn declared_shapes(infer: &mut Infer<'_>) -> Result<()> {
    let shapes = infer.attr::<Vec<PartialShape>>("output_shapes")?;
    if shapes.len() == infer.num_outputs() {
        shapes.into_iter().enumerate().for_each(|(i, shape)| infer.set(i, shape));
    }
    Ok(())
}

fn scalar(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::scalar());
    Ok(())
}

/// The outputs are the stacked results of a function, which has one call for each row of the first input.
fn rows_of_results(infer: &mut Infer<'_>) -> Result<()> {
    let rows = infer.input(0).dim(0);
    let shapes = infer.attr::<Vec<PartialShape>>("output_shapes")?;
    if shapes.len() != infer.num_outputs() {
        crate::invalid!("`output_shapes` must be the same length as `output_types`");
    }
    for (i, shape) in shapes.into_iter().enumerate() {
        if let Some(dims) = shape.dims() {
            infer.set(i, PartialShape::of_dims(std::iter::once(rows).chain(dims.iter().copied())));
        }
    }
    Ok(())
}

fn fake_param(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.attr::<PartialShape>("shape")?;
    infer.set(0, shape);
    Ok(())
}
