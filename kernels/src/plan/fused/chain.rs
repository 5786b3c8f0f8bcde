//! Chains of element-wise ops, as the attributes of `_FusedElementwise` describe them; independent of the device that
//! computes them.

use crate::numeric::broadcast::Plan;
use crate::plan::fused::texts;
use device::function::no_functions;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit, SyncKernel};
use device::value::Value;
use device::{Error, Result};
use graph::passes::MAX_FUSED_OPS;
use graph::{AttrValue, Node, Shape};
use smallvec::SmallVec;
use std::fmt;
use std::sync::OnceLock;

/// The arity of a fused op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// The op has one operand.
    Map,
    /// The op has two operands.
    Zip(Pairing),
}

/// The shapes that two operands may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// The shapes of both operands broadcast.
    Broadcast,
    /// Both operands have the same shape.
    Equal,
    /// The second operand is a vector along the last axis of the first.
    Bias,
}

/// The source of an operand: an input of the fused node or an earlier op of the chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    /// An input of the fused node, by its index.
    Input(usize),
    /// The result of an earlier op of the chain, by its index.
    Value(usize),
}

/// The ops of a chain in the order of their computation; the last op computes the result. `F` is the device's
/// representation of an op.
#[derive(Debug)]
pub struct Chain<F> {
    pub ops: Vec<ChainOp<F>>,
    /// The number of the node's inputs.
    pub inputs: usize,
    /// Set if all ops accept operands of equal shapes.
    takes_equal_shapes: bool,
}

/// An op of a chain.
#[derive(Debug)]
pub struct ChainOp<F> {
    pub function: F,
    /// The source of the operand or, if the op is an [`Arity::Zip`], the sources of both operands.
    pub operands: SmallVec<[Source; 2]>,
    arity: Arity,
    unfused: UnfusedOp,
}

impl<F> Chain<F> {
    /// Reads the node's chain; `function` returns the arity of an op and the device's representation of it.
    ///
    /// # Errors
    /// `InvalidArgument` if the attributes describe no chain; `Unimplemented` naming an op that the device lacks.
    pub fn new(init: &KernelInit<'_>, function: impl Fn(&str) -> Option<(Arity, F)>) -> Result<Chain<F>> {
        let (names, inputs) = (texts(init, "names")?, init.inputs.len());
        let (operands, op_names) = (init.attr::<Vec<i64>>("operands")?, texts(init, "ops")?);
        if op_names.len() > MAX_FUSED_OPS || inputs > 2 * MAX_FUSED_OPS {
            device::invalid!(
                "a fused op has {} ops and {inputs} inputs; at most {MAX_FUSED_OPS} ops are supported",
                op_names.len()
            );
        }
        let mut operands = operands.iter().map(|operand| usize::try_from(*operand).unwrap_or(usize::MAX));
        let mut ops: Vec<ChainOp<F>> = Vec::new();
        for (at, op) in op_names.iter().enumerate() {
            let Some((arity, function)) = function(op) else {
                return Err(Error::unimplemented(format!("'{op}' in a fused op")));
            };
            let taken = if arity == Arity::Map { 1 } else { 2 };
            let mut sources = SmallVec::new();
            for operand in operands.by_ref().take(taken) {
                sources.push(match operand.checked_sub(inputs) {
                    None => Source::Input(operand),
                    Some(before) if before < at => Source::Value(before),
                    Some(_) => {
                        device::invalid!(
                            "'{op}', op {at} of a fused op, takes a value that is computed later"
                        )
                    }
                });
            }
            if sources.len() < taken {
                device::invalid!("a fused op has no operand for '{op}', its op {at}");
            }
            let name = names.get(at).map_or(&*init.node.name, |name| name.as_str());
            let unfused = UnfusedOp::new(init, op, name, taken)?;
            ops.push(ChainOp { function, operands: sources, arity, unfused });
        }
        let takes_equal_shapes = !ops.iter().any(|op| op.arity == Arity::Zip(Pairing::Bias));
        Ok(Chain { ops, inputs, takes_equal_shapes })
    }

    /// Returns the shapes of the inputs; `None` if an input is not a tensor.
    pub fn input_shapes<'c>(&self, ctx: &'c KernelContext<'_>) -> Option<SmallVec<[&'c Shape; 8]>> {
        (0..self.inputs).map(|i| ctx.shape(i).ok()).collect()
    }

    /// Returns whether all inputs have the same shape and all ops accept operands of equal shapes, so that the results
    /// of all ops have the shape too; false if there is no input.
    pub fn has_one_shape(&self, input_shapes: &[&Shape]) -> bool {
        self.takes_equal_shapes
            && input_shapes.split_first().is_some_and(|(x, others)| others.iter().all(|y| y == x))
    }

    /// Returns the shape of each op's result; `None` if an op does not accept its operands' shapes.
    pub fn shapes(&self, input_shapes: &[&Shape]) -> Option<SmallVec<[Shape; 16]>> {
        let mut shapes: SmallVec<[Shape; 16]> = SmallVec::new();
        for op in &self.ops {
            let shape_of = |source: Source| match source {
                Source::Input(i) => input_shapes[i],
                Source::Value(before) => &shapes[before],
            };
            let shape = match (op.arity, op.operands.as_slice()) {
                (Arity::Zip(pairing), &[x, y]) => paired(pairing, shape_of(x), shape_of(y))?,
                (_, &[x, ..]) => shape_of(x).clone(),
                _ => return None,
            };
            shapes.push(shape);
        }
        Some(shapes)
    }

    /// Runs the ops one after another, each over whole tensors, like the unfused graph does.
    pub fn run_unfused(&self, ctx: &mut KernelContext<'_>) -> Result<()> {
        let mut uses_left: SmallVec<[usize; 16]> = SmallVec::from_elem(0, self.inputs + self.ops.len());
        let slot = |source: &Source| match *source {
            Source::Input(i) => i,
            Source::Value(before) => self.inputs + before,
        };
        self.ops.iter().flat_map(|op| &op.operands).for_each(|source| uses_left[slot(source)] += 1);
        let mut values: SmallVec<[Value; 16]> = (0..self.inputs).map(|i| ctx.take_value(i)).collect();
        for op in &self.ops {
            let mut inputs: SmallVec<[Value; 2]> = SmallVec::new();
            for source in &op.operands {
                let slot = slot(source);
                uses_left[slot] -= 1;
                // The last op that uses an operand takes it, so that the op may overwrite it.
                inputs.push(if uses_left[slot] == 0 {
                    std::mem::take(&mut values[slot])
                } else {
                    values[slot].clone()
                });
            }
            let value = op.unfused.run(ctx, &mut inputs).map_err(|e| {
                match op.unfused.node.name == ctx.node.name {
                    true => e,
                    false => e.at_node(&op.unfused.node.name),
                }
            })?;
            values.push(value);
        }
        ctx.outputs[0] = values.pop().unwrap_or_default();
        Ok(())
    }
}

/// Returns the shape of the result of an op with two operands; `None` if the op does not accept the operands' shapes.
fn paired(pairing: Pairing, x: &Shape, y: &Shape) -> Option<Shape> {
    match pairing {
        _ if x == y && pairing != Pairing::Bias => Some(x.clone()),
        Pairing::Broadcast => Some(Plan::fit(x, y).ok()??.shape().clone()),
        Pairing::Bias if x.rank() > 1 && y.rank() == 1 && x.last() == y.last() => Some(x.clone()),
        Pairing::Equal | Pairing::Bias => None,
    }
}

/// The node that an op was before fusion. Its kernel is made at its first run, because the chain is rarely run unfused.
struct UnfusedOp {
    node: Node,
    def: &'static KernelDef,
    kernel: OnceLock<Result<Box<SyncKernel>>>,
}

impl fmt::Debug for UnfusedOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "UnfusedOp({})", self.node.op.name())
    }
}

impl UnfusedOp {
    fn new(init: &KernelInit<'_>, op: &str, name: &str, operands: usize) -> Result<UnfusedOp> {
        let unknown = || Error::unimplemented(format!("{}: '{op}' in a fused op", init.node.op.name()));
        let mut node = Node::new(name, graph::ops::lookup(op).ok_or_else(unknown)?);
        node.attrs.set("T", init.attr::<AttrValue>("T")?);
        if node.op.attrs.iter().any(|spec| spec.name == "N") {
            node.attrs.set("N", operands as i64);
        }
        let def = init.device.find_kernel(&node).ok_or_else(unknown)?;
        Ok(UnfusedOp { node, def, kernel: OnceLock::new() })
    }

    fn run(&self, ctx: &KernelContext<'_>, inputs: &mut [Value]) -> Result<Value> {
        let kernel = self.kernel.get_or_init(|| self.make(ctx)).as_ref().map_err(Error::clone)?;
        let mut outputs = [Value::None];
        kernel(&mut KernelContext { node: &self.node, inputs, outputs: &mut outputs, ..*ctx })?;
        let [value] = outputs;
        Ok(value)
    }

    fn make(&self, ctx: &KernelContext<'_>) -> Result<Box<SyncKernel>> {
        let (inputs, outputs) = (self.node.input_types()?, self.node.output_types()?);
        let (node, device, functions) = (&self.node, ctx.device, no_functions());
        match (self.def.make)(&KernelInit { node, inputs: &inputs, outputs: &outputs, device, functions })? {
            Kernel::Sync(kernel) => Ok(kernel),
            Kernel::Async(_) => Err(Error::internal(format!(
                "{} is asynchronous, so a fused op cannot contain it",
                node.op.name()
            ))),
        }
    }
}
