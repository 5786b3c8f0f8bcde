//! Ops of a fused node that run one after another, each with its own kernel for the device.

pub mod chain;

use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit, SyncKernel};
use device::value::Value;
use device::{Error, Result};
use graph::{AttrValue, DType, Node};
use smallvec::SmallVec;
use std::fmt;

/// An op of a fused node. The first input of the op is the result of the previous op; its other inputs are inputs of
/// the fused node.
pub struct FusedOp {
    /// The op as an unfused node, for the context of the op's kernel.
    pub node: Node,
    kernel: Box<SyncKernel>,
    /// The number of the op's inputs.
    pub(crate) inputs: usize,
    /// The number of the op's outputs.
    outputs: usize,
}

impl fmt::Debug for FusedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FusedOp({})", self.node.op.name())
    }
}

impl FusedOp {
    /// Makes the op named `op` of a fused node, with its kernel.
    pub(crate) fn new(
        init: &KernelInit<'_>,
        op: &str,
        inputs: usize,
        attrs: Vec<(&'static str, AttrValue)>,
    ) -> Result<FusedOp> {
        let unknown = || Error::unimplemented(format!("{}: '{op}' in a fused op", init.node.op.name()));
        let mut node = Node::new(init.node.name.clone(), graph::ops::lookup(op).ok_or_else(unknown)?);
        for (name, value) in attrs {
            node.attrs.set(name, value);
        }
        let def = init.device.find_kernel(&node).ok_or_else(unknown)?;
        let (input_types, output_types) = (node.input_types()?, node.output_types()?);
        let kernel =
            (def.make)(&KernelInit { node: &node, inputs: &input_types, outputs: &output_types, ..*init })?;
        let Kernel::Sync(kernel) = kernel else { return Err(unknown()) };
        Ok(FusedOp { kernel, inputs, outputs: output_types.len(), node })
    }
}

/// Returns the attributes of the node that have these names.
pub(crate) fn copied(
    init: &KernelInit<'_>,
    names: &[&'static str],
) -> Result<Vec<(&'static str, AttrValue)>> {
    names.iter().map(|name| Ok((*name, init.attr::<AttrValue>(name)?))).collect()
}

/// Returns the strings in the list attribute `name`.
pub(crate) fn texts(init: &KernelInit<'_>, name: &str) -> Result<Vec<String>> {
    let texts = init.attr::<Vec<Bytes>>(name)?;
    Ok(texts.iter().map(|text| String::from_utf8_lossy(text).into_owned()).collect())
}

/// Returns the ops that the attribute `fused_ops` names, which follow the first op of the fused node; the first op
/// takes `first` inputs.
///
/// # Errors
/// `Unimplemented` naming an unknown op; `InvalidArgument` if the ops take more or fewer inputs than the node has.
pub fn fused_ops(init: &KernelInit<'_>, first: usize) -> Result<Vec<FusedOp>> {
    let then =
        texts(init, "fused_ops")?.iter().map(|op| follower(init, op)).collect::<Result<Vec<FusedOp>>>()?;
    check_inputs(init, first, &then)?;
    Ok(then)
}

/// Number of inputs of a batch normalisation without the ops that follow it.
pub const NORMALIZATION_INPUTS: usize = 5;

/// Returns the ops that follow the normalisation in a `_FusedBatchNormEx`: the sum with the side input, and the
/// activation.
///
/// # Errors
/// `Unimplemented` naming an unknown activation; `InvalidArgument` if the ops take more or fewer inputs than the
/// node has.
pub fn ops_after_normalization(init: &KernelInit<'_>) -> Result<Vec<FusedOp>> {
    let mut then = Vec::new();
    for _ in 0..init.attr::<i64>("num_side_inputs")? {
        then.push(FusedOp::new(init, "AddV2", 2, copied(init, &["T"])?)?);
    }
    let mode = init.attr::<String>("activation_mode")?;
    if mode != "Identity" {
        then.push(follower(init, &mode)?);
    }
    check_inputs(init, NORMALIZATION_INPUTS, &then)?;
    Ok(then)
}

/// Checks that a first op with `first` inputs and the ops `then` take exactly the inputs of the fused node.
pub(crate) fn check_inputs(init: &KernelInit<'_>, first: usize, then: &[FusedOp]) -> Result<()> {
    let expected = first + then.iter().map(|op| op.inputs - 1).sum::<usize>();
    if expected != init.inputs.len() {
        device::invalid!("{} takes {expected} inputs, not {}", init.node.op.name(), init.inputs.len());
    }
    Ok(())
}

/// Makes an op that follows the first op of a fused node: it takes the previous result as its first input.
fn follower(init: &KernelInit<'_>, op: &str) -> Result<FusedOp> {
    let element = init.attr::<DType>("T")?;
    let mut attrs = vec![("T", element.into())];
    match op {
        "BiasAdd" => {
            attrs.extend(init.attr::<AttrValue>("data_format").ok().map(|format| ("data_format", format)));
            FusedOp::new(init, op, 2, attrs)
        }
        "FusedBatchNorm" => {
            attrs.extend(copied(init, &["epsilon", "data_format"])?);
            attrs.push(("is_training", false.into()));
            FusedOp::new(init, op, 5, attrs)
        }
        "LeakyRelu" => {
            attrs.push(("alpha", init.attr::<AttrValue>("leakyrelu_alpha")?));
            FusedOp::new(init, op, 1, attrs)
        }
        "Relu" | "Relu6" | "Elu" | "Selu" | "Tanh" | "Sigmoid" => FusedOp::new(init, op, 1, attrs),
        _ => Err(Error::unimplemented(format!("{}: '{op}' in a fused op", init.node.op.name()))),
    }
}

/// Runs each op of `then` on output 0 and on the node's next inputs, which begin with `next`, and replaces output 0.
pub fn run_ops(ctx: &mut KernelContext<'_>, then: &[FusedOp], mut next: usize) -> Result<()> {
    for op in then {
        let value = std::mem::take(&mut ctx.outputs[0]);
        run(ctx, op, next, value)?;
        next += op.inputs - 1;
    }
    Ok(())
}

/// Runs `op` on `value`, unless that is `Value::None`, and on the node's inputs from `next` on.
pub(crate) fn run(ctx: &mut KernelContext<'_>, op: &FusedOp, next: usize, value: Value) -> Result<()> {
    let mut inputs: SmallVec<[Value; 6]> = SmallVec::new();
    if !matches!(value, Value::None) {
        inputs.push(value);
    }
    let further = op.inputs - inputs.len();
    inputs.extend((next..next + further).map(|i| ctx.take_value(i)));
    let mut outputs: SmallVec<[Value; 6]> = SmallVec::from_elem(Value::None, op.outputs);
    let mut op_ctx = KernelContext { node: &op.node, inputs: &mut inputs, outputs: &mut outputs, ..*ctx };
    (op.kernel)(&mut op_ctx)?;
    for (whole, value) in ctx.outputs.iter_mut().zip(outputs) {
        if matches!(whole, Value::None) {
            *whole = value;
        }
    }
    Ok(())
}
