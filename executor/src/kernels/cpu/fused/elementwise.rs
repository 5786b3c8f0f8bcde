//! A chain of element-wise ops as one pass over memory: a strip of elements goes through all of them while it is in the
//! first cache, so that only operands and the result cross memory. Each op rounds as it does by itself: the bits are
//! the same.
//!
//! Operands are whole (one element for each of the result's), single (one for all), or spread (repeated along some axes).
//! A value between ops is whole or single. Where shapes fit in no such way the ops run one by one, each as its own
//! kernel: so do those whose shapes do not fit at all, and the error is that of the op.

mod fit;
mod pass;

use self::fit::{Fit, Place};
use self::pass::Pass;
use super::strip::{Computed, Pairing, Run, Strip, strip};
use super::{Link, texts};
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelInit};
use crate::kernels::cpu::broadcast::{Operand, of_one};
use crate::kernels::cpu::dispatch::dispatch;
use crate::kernels::cpu::stream;
use crate::kernels::cpu::threads::{Cost, chunk_size, for_chunks};
use crate::kernels::cpu::wide::Lane;
use crate::value::Value;
use graph::Tensor;
use graph::passes::MOST_FUSED_OPS;
use smallvec::SmallVec;

pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    dispatch!(float, init.input_type(0), T => {
        let chain = Chain::<<T as Lane>::Wide>::new(init)?;
        Kernel::sync(move |ctx| match Fit::of(&chain, ctx) {
            Some(fit) => in_strips::<T>(ctx, &chain, &fit),
            None => one_by_one(ctx, &chain),
        })
    })
}

struct Chain<W: 'static> {
    ops: Vec<ChainOp<W>>,
    inputs: usize,
    /// Strips of values that are still to be read, at most.
    registers: usize,
    /// Operands of one shape fit.
    takes_equal_shapes: bool,
    cost: Cost,
}

struct ChainOp<W: 'static> {
    strip: Strip<W>,
    operands: SmallVec<[Source; 2]>,
    /// Where its strips are.
    register: usize,
    /// The op by itself.
    link: Link,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Input(usize),
    /// The value of an op before.
    Value(usize),
}

impl<W: Computed> Chain<W> {
    fn new(init: &KernelInit<'_>) -> Result<Chain<W>> {
        let (names, inputs) = (texts(init, "names")?, init.inputs.len());
        let (operands, wanted) = (init.attr::<Vec<i64>>("operands")?, texts(init, "ops")?);
        if wanted.len() > MOST_FUSED_OPS || inputs > 2 * MOST_FUSED_OPS {
            crate::invalid!(
                "a fused op of {} ops and {inputs} inputs, where {MOST_FUSED_OPS} ops are the most",
                wanted.len()
            );
        }
        let mut operands = operands.iter().map(|operand| usize::try_from(*operand).unwrap_or(usize::MAX));
        let mut ops: Vec<ChainOp<W>> = Vec::new();
        for (at, op) in wanted.iter().enumerate() {
            let Some(strip) = strip::<W>(op) else {
                return Err(crate::Error::unimplemented(format!("'{op}' in a fused op")));
            };
            let taken = if matches!(strip.run, Run::Map(_)) { 1 } else { 2 };
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
            let mut link = Link::new(init, op, taken, vec![("T", init.attr("T")?)])?;
            link.node.name = names.get(at).map_or(init.node.name.clone(), |name| name.as_str().into());
            ops.push(ChainOp { strip, operands: sources, register: 0, link });
        }
        let registers = assign_registers(&mut ops);
        let is_dear = ops.len() > 3 || ops.iter().any(|op| op.strip.cost == Cost::Dear);
        let cost = if is_dear { Cost::Dear } else { Cost::Cheap };
        let takes_equal_shapes = !ops.iter().any(|op| matches!(op.strip.run, Run::Zip(_, Pairing::Bias)));
        Ok(Chain { ops, inputs, registers, takes_equal_shapes, cost })
    }
}

/// Gives each op's strip a register that nobody has still to read, and that is none of its own operands'; says how
/// many there are.
fn assign_registers<W>(ops: &mut [ChainOp<W>]) -> usize {
    let last_readers = last_readers(ops);
    let mut readers: Vec<Option<usize>> = Vec::new();
    for at in 0..ops.len() {
        let free = readers.iter().position(|last| last.is_none_or(|last| last < at));
        let register = free.unwrap_or_else(|| {
            readers.push(None);
            readers.len() - 1
        });
        readers[register] = last_readers[at];
        ops[at].register = register;
    }
    readers.len()
}

/// Who reads each op's value last, if anybody does.
fn last_readers<W>(ops: &[ChainOp<W>]) -> Vec<Option<usize>> {
    let mut last = vec![None; ops.len()];
    for (at, op) in ops.iter().enumerate() {
        for source in &op.operands {
            if let Source::Value(before) = source {
                last[*before] = Some(at);
            }
        }
    }
    last
}

/// Every op in turn over the whole tensors, as if they had not been fused.
fn one_by_one<W>(ctx: &mut KernelContext<'_>, chain: &Chain<W>) -> Result<()> {
    let mut left: SmallVec<[usize; 16]> = SmallVec::from_elem(0, chain.inputs + chain.ops.len());
    let slot = |source: &Source| match *source {
        Source::Input(i) => i,
        Source::Value(before) => chain.inputs + before,
    };
    chain.ops.iter().flat_map(|op| &op.operands).for_each(|source| left[slot(source)] += 1);
    let mut values: SmallVec<[Value; 16]> = (0..chain.inputs).map(|i| ctx.take_value(i)).collect();
    for op in &chain.ops {
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
        let mut outputs = [Value::None];
        let node = &op.link.node;
        let mut of_op = KernelContext { node, inputs: &mut inputs, outputs: &mut outputs, ..*ctx };
        (op.link.kernel)(&mut of_op).map_err(|e| match node.name == ctx.node.name {
            true => e,
            false => e.at_node(&node.name),
        })?;
        values.extend(outputs);
    }
    ctx.outputs[0] = values.pop().unwrap_or_default();
    Ok(())
}

fn in_strips<T: Lane<Wide: Computed>>(
    ctx: &mut KernelContext<'_>,
    chain: &Chain<T::Wide>,
    fit: &Fit,
) -> Result<()> {
    let mut inputs = SmallVec::<[Option<Tensor>; 8]>::new();
    for i in 0..chain.inputs {
        inputs.push(Some(ctx.take_input(i)?));
    }
    let singles = Singles::of::<T>(chain, fit, &inputs)?;
    if let (1, Some(value)) = (fit.shape.num_elements(), singles.values.last()) {
        ctx.set_output(0, of_one(T::of_wide(*value), &fit.shape)?);
        return Ok(());
    }
    // The result may take the place of an operand: each strip of that is read before it is written.
    let is_free = |i: &usize| {
        matches!(fit.inputs[*i], Place::Whole) && inputs[*i].as_ref().is_some_and(Tensor::is_unique)
    };
    let in_place = (0..chain.inputs).find(is_free);
    let streams = in_place.is_none() && stream::is_worth_it::<T>(fit.shape.num_elements());
    let mut out = match in_place.and_then(|i| inputs[i].take()) {
        Some(operand) => operand,
        None => ctx.allocate(T::DTYPE, fit.shape.clone())?,
    };
    let elements = inputs.iter().map(|input| input.as_ref().map(Tensor::values::<T>).transpose());
    let elements = elements.collect::<graph::Result<SmallVec<[Option<&[T]>; 8]>>>()?;
    let is_read_last = |i: usize| chain.ops.last().is_some_and(|op| op.operands.contains(&Source::Input(i)));
    let in_place = in_place.filter(|i| T::NATIVE && !is_read_last(*i));
    let pass = Pass { chain, fit, singles: &singles, elements, in_place, streams };
    let chunk = chunk_size(fit.shape.num_elements(), chain.cost).next_multiple_of(fit.strip);
    for_chunks(out.values_mut::<T>()?, chunk, |start, part| pass.run(start, part));
    ctx.set_output(0, out);
    Ok(())
}

/// The single operands and values; the others' places are 0.
struct Singles<W> {
    inputs: SmallVec<[W; 8]>,
    values: SmallVec<[W; 16]>,
}

impl<W: Computed> Singles<W> {
    /// Of a result of one element all values are single.
    fn of<T: Lane<Wide = W>>(chain: &Chain<W>, fit: &Fit, given: &[Option<Tensor>]) -> Result<Singles<W>> {
        let all = fit.shape.num_elements() == 1;
        let is_single = |place: &Place| all || matches!(place, Place::Single);
        let mut singles = Singles { inputs: SmallVec::new(), values: SmallVec::new() };
        for (place, tensor) in fit.inputs.iter().zip(given) {
            singles.inputs.push(match tensor {
                Some(tensor) if is_single(place) => tensor.item::<T>()?.to_wide(),
                _ => W::zeroed(),
            });
        }
        for (op, place) in chain.ops.iter().zip(&fit.values) {
            let mut out = [W::zeroed()];
            if is_single(place) {
                let value = |source: &Source| match *source {
                    Source::Input(i) => singles.inputs[i],
                    Source::Value(before) => singles.values[before],
                };
                op.compute(&mut out, |source| Operand::One(value(source)));
            }
            singles.values.push(T::of_wide(out[0]).to_wide());
        }
        Ok(singles)
    }
}

impl<W: Computed> ChainOp<W> {
    fn compute<'v>(&self, out: &mut [W], operand: impl Fn(&Source) -> Operand<'v, W>) {
        match (&self.strip.run, self.operands.as_slice()) {
            (Run::Map(map), [x, ..]) => match operand(x) {
                Operand::Many(x) => map(out, x),
                // Only where the value is single, too.
                Operand::One(x) => map(out, &[x]),
            },
            (Run::Zip(zip, _), [x, y]) => zip(out, operand(x), operand(y)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
