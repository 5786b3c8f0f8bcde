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
use super::chain::{Chain, ChainOp, Source};
use super::strip::{Computed, Strip, strip};
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelInit};
use crate::kernels::cpu::broadcast::Operand;
use crate::kernels::cpu::dispatch::dispatch;
use crate::kernels::cpu::stream;
use crate::kernels::cpu::threads::{Cost, chunk_size, for_chunks};
use crate::kernels::cpu::wide::Lane;
use graph::Tensor;
use smallvec::SmallVec;

pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    dispatch!(float, init.input_type(0), T => {
        let chain = StripChain::<<T as Lane>::Wide>::new(init)?;
        Kernel::sync(move |ctx| match Fit::of(&chain.ops, ctx) {
            Some(fit) => in_strips::<T>(ctx, &chain, &fit),
            None => chain.ops.one_by_one(ctx),
        })
    })
}

/// A chain in strips.
struct StripChain<W: 'static> {
    ops: Chain<Strip<W>>,
    /// Where each op's strips are.
    registers: Vec<usize>,
    /// Strips of values that are still to be read, at most.
    most_registers: usize,
    cost: Cost,
}

impl<W: Computed> StripChain<W> {
    fn new(init: &KernelInit<'_>) -> Result<StripChain<W>> {
        let chain = Chain::new(init, |op| strip::<W>(op).map(|strip| (strip.form(), strip)))?;
        let (registers, most_registers) = assign_registers(&chain.ops);
        let is_dear = chain.ops.len() > 3 || chain.ops.iter().any(|op| op.function.cost == Cost::Dear);
        let cost = if is_dear { Cost::Dear } else { Cost::Cheap };
        Ok(StripChain { ops: chain, registers, most_registers, cost })
    }
}

/// Gives each op's strip a register that nobody has still to read, and that is none of its own operands'; says how
/// many there are.
fn assign_registers<F>(ops: &[ChainOp<F>]) -> (Vec<usize>, usize) {
    let last_readers = last_readers(ops);
    let mut readers: Vec<Option<usize>> = Vec::new();
    let mut registers = Vec::with_capacity(ops.len());
    for (at, last_reader) in last_readers.into_iter().enumerate() {
        let free = readers.iter().position(|last| last.is_none_or(|last| last < at));
        let register = free.unwrap_or_else(|| {
            readers.push(None);
            readers.len() - 1
        });
        readers[register] = last_reader;
        registers.push(register);
    }
    (registers, readers.len())
}

/// Who reads each op's value last, if anybody does.
fn last_readers<F>(ops: &[ChainOp<F>]) -> Vec<Option<usize>> {
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

fn in_strips<T: Lane<Wide: Computed>>(
    ctx: &mut KernelContext<'_>,
    chain: &StripChain<T::Wide>,
    fit: &Fit,
) -> Result<()> {
    let mut inputs = SmallVec::<[Option<Tensor>; 8]>::new();
    for i in 0..chain.ops.inputs {
        inputs.push(Some(ctx.take_input(i)?));
    }
    let singles = Singles::of::<T>(&chain.ops, fit, &inputs)?;
    if let (1, Some(value)) = (fit.shape.num_elements(), singles.values.last()) {
        match fit.shape.rank() {
            0 => ctx.set_scalar(0, T::of_wide(*value)),
            _ => ctx.set_output(0, Tensor::full(T::of_wide(*value), fit.shape.clone())?),
        }
        return Ok(());
    }
    // The result may take the place of an operand: each strip of that is read before it is written.
    let is_free = |i: &usize| {
        matches!(fit.inputs[*i], Place::Whole) && inputs[*i].as_ref().is_some_and(Tensor::is_unique)
    };
    let in_place = (0..chain.ops.inputs).find(is_free);
    let streams = in_place.is_none() && stream::is_worth_it::<T>(fit.shape.num_elements());
    let mut out = match in_place.and_then(|i| inputs[i].take()) {
        Some(operand) => operand,
        None => ctx.allocate(T::DTYPE, fit.shape.clone())?,
    };
    let elements = inputs.iter().map(|input| input.as_ref().map(Tensor::values::<T>).transpose());
    let elements = elements.collect::<graph::Result<SmallVec<[Option<&[T]>; 8]>>>()?;
    let pass = Pass::<T>::new(chain, fit, &singles, &elements, streams);
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
    fn of<T: Lane<Wide = W>>(
        chain: &Chain<Strip<W>>,
        fit: &Fit,
        given: &[Option<Tensor>],
    ) -> Result<Singles<W>> {
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
                op.function.run.compute(&mut out, |n| Operand::One(value(&op.operands[n])));
            }
            singles.values.push(T::of_wide(out[0]).to_wide());
        }
        Ok(singles)
    }
}

#[cfg(test)]
mod tests;
