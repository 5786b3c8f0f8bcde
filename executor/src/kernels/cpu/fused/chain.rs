//! A chain of element-wise ops as the attributes of `_FusedElementwise` have it, whatever device computes it and in
//! whatever way.

use super::texts;
use crate::error::{Error, Result};
use crate::function::no_functions;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit, SyncKernel};
use crate::kernels::cpu::broadcast::Plan;
use crate::value::Value;
use graph::passes::MOST_FUSED_OPS;
use graph::{AttrValue, Node, Shape};
use smallvec::SmallVec;
use std::sync::OnceLock;

/// What takes how many operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels) enum Form {
    Map,
    Zip(Pairing),
}

/// Which shapes two operands may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels) enum Pairing {
    Broadcast,
    Equal,
    /// The second is a vector along the last axis of the first.
    Bias,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::kernels) enum Source {
    Input(usize),
    /// The value of an op before.
    Value(usize),
}

/// Ops in the order in which they are computed; the last one's value is the chain's. `F` is what the device has for each.
pub(in crate::kernels) struct Chain<F> {
    pub(in crate::kernels) ops: Vec<ChainOp<F>>,
    pub(in crate::kernels) inputs: usize,
    /// Operands of one shape fit.
    takes_equal_shapes: bool,
}

pub(in crate::kernels) struct ChainOp<F> {
    pub(in crate::kernels) function: F,
    /// One, or two where it has a form of two.
    pub(in crate::kernels) operands: SmallVec<[Source; 2]>,
    form: Form,
    alone: Alone,
}

impl<F> Chain<F> {
    /// The node's chain; `function` gives what the device has for an op, and the op's form.
    ///
    /// # Errors
    /// `InvalidArgument` for attributes that are no chain; `Unimplemented` naming an op that the device does not have.
    pub(in crate::kernels) fn new(
        init: &KernelInit<'_>,
        function: impl Fn(&str) -> Option<(Form, F)>,
    ) -> Result<Chain<F>> {
        let (names, inputs) = (texts(init, "names")?, init.inputs.len());
        let (operands, wanted) = (init.attr::<Vec<i64>>("operands")?, texts(init, "ops")?);
        if wanted.len() > MOST_FUSED_OPS || inputs > 2 * MOST_FUSED_OPS {
            crate::invalid!(
                "a fused op of {} ops and {inputs} inputs, where {MOST_FUSED_OPS} ops are the most",
                wanted.len()
            );
        }
        let mut operands = operands.iter().map(|operand| usize::try_from(*operand).unwrap_or(usize::MAX));
        let mut ops: Vec<ChainOp<F>> = Vec::new();
        for (at, op) in wanted.iter().enumerate() {
            let Some((form, function)) = function(op) else {
                return Err(Error::unimplemented(format!("'{op}' in a fused op")));
            };
            let taken = if form == Form::Map { 1 } else { 2 };
            let mut sources = SmallVec::new();
            for operand in operands.by_ref().take(taken) {
                sources.push(match operand.checked_sub(inputs) {
                    None => Source::Input(operand),
                    Some(before) if before < at => Source::Value(before),
                    Some(_) => crate::invalid!("'{op}', op {at} of a fused op, takes what is not there yet"),
                });
            }
            if sources.len() < taken {
                crate::invalid!("a fused op has no operand for '{op}', its op {at}");
            }
            let name = names.get(at).map_or(&*init.node.name, |name| name.as_str());
            let alone = Alone::new(init, op, name, taken)?;
            ops.push(ChainOp { function, operands: sources, form, alone });
        }
        let takes_equal_shapes = !ops.iter().any(|op| op.form == Form::Zip(Pairing::Bias));
        Ok(Chain { ops, inputs, takes_equal_shapes })
    }

    /// The inputs' shapes.
    pub(in crate::kernels) fn given<'c>(
        &self,
        ctx: &'c KernelContext<'_>,
    ) -> Option<SmallVec<[&'c Shape; 8]>> {
        (0..self.inputs).map(|i| ctx.shape(i).ok()).collect()
    }

    /// Whether all that is given, which is something, is of one shape, and all values are of that.
    pub(in crate::kernels) fn takes_as_one_shape(&self, given: &[&Shape]) -> bool {
        self.takes_equal_shapes
            && given.split_first().is_some_and(|(x, others)| others.iter().all(|y| y == x))
    }

    /// The shape of each op's value; `None` where one does not take its operands.
    pub(in crate::kernels) fn shapes(&self, given: &[&Shape]) -> Option<SmallVec<[Shape; 16]>> {
        let mut shapes: SmallVec<[Shape; 16]> = SmallVec::new();
        for op in &self.ops {
            let shape_of = |source: Source| match source {
                Source::Input(i) => given[i],
                Source::Value(before) => &shapes[before],
            };
            let shape = match (op.form, op.operands.as_slice()) {
                (Form::Zip(pairing), &[x, y]) => paired(pairing, shape_of(x), shape_of(y))?,
                (_, &[x, ..]) => shape_of(x).clone(),
                _ => return None,
            };
            shapes.push(shape);
        }
        Some(shapes)
    }

    /// Every op in turn over the whole tensors, as if they had not been fused.
    pub(in crate::kernels) fn one_by_one(&self, ctx: &mut KernelContext<'_>) -> Result<()> {
        let mut left: SmallVec<[usize; 16]> = SmallVec::from_elem(0, self.inputs + self.ops.len());
        let slot = |source: &Source| match *source {
            Source::Input(i) => i,
            Source::Value(before) => self.inputs + before,
        };
        self.ops.iter().flat_map(|op| &op.operands).for_each(|source| left[slot(source)] += 1);
        let mut values: SmallVec<[Value; 16]> = (0..self.inputs).map(|i| ctx.take_value(i)).collect();
        for op in &self.ops {
            let mut inputs: SmallVec<[Value; 2]> = SmallVec::new();
            for source in &op.operands {
                let slot = slot(source);
                left[slot] -= 1;
                // Who reads it last may write in its memory.
                inputs.push(if left[slot] == 0 {
                    std::mem::take(&mut values[slot])
                } else {
                    values[slot].clone()
                });
            }
            let value =
                op.alone.run(ctx, &mut inputs).map_err(|e| match op.alone.node.name == ctx.node.name {
                    true => e,
                    false => e.at_node(&op.alone.node.name),
                })?;
            values.push(value);
        }
        ctx.outputs[0] = values.pop().unwrap_or_default();
        Ok(())
    }
}

/// The shape of an op's value, unless it does not take its operands.
fn paired(pairing: Pairing, x: &Shape, y: &Shape) -> Option<Shape> {
    match pairing {
        _ if x == y && pairing != Pairing::Bias => Some(x.clone()),
        Pairing::Broadcast => Some(Plan::fit(x, y).ok()??.shape().clone()),
        Pairing::Bias if x.rank() > 1 && y.rank() == 1 && x.last() == y.last() => Some(x.clone()),
        Pairing::Equal | Pairing::Bias => None,
    }
}

/// An op as the node that it was. Its kernel is made when it first runs: as a rule, never.
struct Alone {
    node: Node,
    def: &'static KernelDef,
    kernel: OnceLock<Result<Box<SyncKernel>>>,
}

impl Alone {
    fn new(init: &KernelInit<'_>, op: &str, name: &str, operands: usize) -> Result<Alone> {
        let unknown = || Error::unimplemented(format!("{}: '{op}' in a fused op", init.node.op.name()));
        let mut node = Node::new(name, graph::ops::lookup(op).ok_or_else(unknown)?);
        node.attrs.set("T", init.attr::<AttrValue>("T")?);
        if node.op.attrs.iter().any(|spec| spec.name == "N") {
            node.attrs.set("N", operands as i64);
        }
        let def = init.device.find_kernel(&node).ok_or_else(unknown)?;
        Ok(Alone { node, def, kernel: OnceLock::new() })
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
            Kernel::Async(_) => Err(Error::internal(format!("{} waits in a fused op", node.op.name()))),
        }
    }
}
