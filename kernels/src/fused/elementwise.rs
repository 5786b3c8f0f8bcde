//! Chains of element-wise ops as one pass over memory: a strip of elements goes through all ops while it is in the
//! first-level cache, so that only operands and the result are read from and written to memory. Each op rounds its
//! result like its unfused kernel, so the bits are the same.
//!
//! An operand is whole (one element per element of the result), single (one element for all elements of the result) or
//! spread (repeated along some axes). An intermediate value is whole or single. If the shapes do not fit this scheme or
//! are invalid, the ops run one by one with their own kernels, which also report the errors.

mod fit;
mod pass;

use self::fit::{ChainLayout, OperandLayout};
use self::pass::StripPass;
use super::strip::{ChainElement, StripOp, strip_op};
use crate::numeric::broadcast::Operand;
use crate::numeric::dispatch::dispatch;
use crate::numeric::non_temporal;
use crate::numeric::threads::{Cost, chunk_size, for_chunks};
use crate::numeric::widen::Lane;
use crate::plan::fused::chain::{Chain, ChainOp, Source};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::Tensor;
use smallvec::SmallVec;

/// Makes the kernel of `_FusedElementwise`.
pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    dispatch!(float, init.input_type(0), T => {
        let chain = StripChain::<<T as Lane>::Wide>::new(init)?;
        Kernel::sync(move |ctx| match ChainLayout::of(&chain.ops, ctx) {
            Some(layout) => run_in_strips::<T>(ctx, &chain, &layout),
            None => chain.ops.run_unfused(ctx),
        })
    })
}

/// A chain of element-wise ops that is computed strip by strip: all ops run on one strip of adjacent elements before
/// the next strip is computed.
struct StripChain<W: 'static> {
    ops: Chain<StripOp<W>>,
    /// For each op, the index of the buffer for the op's results in the current strip.
    buffers: Vec<usize>,
    /// The number of buffers: the maximum number of ops whose results for a strip are needed at the same time.
    buffer_count: usize,
    cost: Cost,
}

impl<W: ChainElement> StripChain<W> {
    fn new(init: &KernelInit<'_>) -> Result<StripChain<W>> {
        let chain = Chain::new(init, |op| strip_op::<W>(op).map(|op| (op.form(), op)))?;
        let (buffers, buffer_count) = assign_buffers(&chain.ops);
        let is_expensive =
            chain.ops.len() > 3 || chain.ops.iter().any(|op| op.function.cost == Cost::Expensive);
        let cost = if is_expensive { Cost::Expensive } else { Cost::Cheap };
        Ok(StripChain { ops: chain, buffers, buffer_count, cost })
    }
}

/// Assigns each op a buffer that contains neither an operand of the op nor a value that a later op uses. Returns the
/// buffer index of each op, and the number of buffers.
fn assign_buffers<F>(ops: &[ChainOp<F>]) -> (Vec<usize>, usize) {
    let uses = last_uses_of(ops);
    let mut last_uses: Vec<Option<usize>> = Vec::new();
    let mut buffers = Vec::with_capacity(ops.len());
    for (at, last_use) in uses.into_iter().enumerate() {
        let free = last_uses.iter().position(|last| last.is_none_or(|last| last < at));
        let buffer = free.unwrap_or_else(|| {
            last_uses.push(None);
            last_uses.len() - 1
        });
        last_uses[buffer] = last_use;
        buffers.push(buffer);
    }
    (buffers, last_uses.len())
}

/// Returns, for each op, the index of the last op that uses its value; `None` if no op does.
fn last_uses_of<F>(ops: &[ChainOp<F>]) -> Vec<Option<usize>> {
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

/// Computes the chain strip by strip, and sets output 0 to its result.
fn run_in_strips<T: Lane<Wide: ChainElement>>(
    ctx: &mut KernelContext<'_>,
    chain: &StripChain<T::Wide>,
    layout: &ChainLayout,
) -> Result<()> {
    let mut inputs = SmallVec::<[Option<Tensor>; 8]>::new();
    for i in 0..chain.ops.inputs {
        inputs.push(Some(ctx.take_input(i)?));
    }
    let singles = SingleValues::of::<T>(&chain.ops, layout, &inputs)?;
    if let (1, Some(value)) = (layout.shape.num_elements(), singles.values.last()) {
        match layout.shape.rank() {
            0 => ctx.set_scalar(0, T::of_wide(*value)),
            _ => ctx.set_output(0, Tensor::full(T::of_wide(*value), layout.shape.clone())?),
        }
        return Ok(());
    }
    // The result may overwrite a whole operand that has no other reader, because each strip is read before it is
    // written.
    let is_free = |i: &usize| {
        matches!(layout.inputs[*i], OperandLayout::Whole)
            && inputs[*i].as_ref().is_some_and(Tensor::is_unique)
    };
    let in_place = (0..chain.ops.inputs).find(is_free);
    let bypasses_cache =
        in_place.is_none() && non_temporal::should_bypass_caches::<T>(layout.shape.num_elements());
    let mut out = match in_place.and_then(|i| inputs[i].take()) {
        Some(operand) => operand,
        None => ctx.allocate(T::DTYPE, layout.shape.clone())?,
    };
    let elements = inputs.iter().map(|input| input.as_ref().map(Tensor::values::<T>).transpose());
    let elements = elements.collect::<graph::Result<SmallVec<[Option<&[T]>; 8]>>>()?;
    let pass = StripPass::<T>::new(chain, layout, &singles, &elements, bypasses_cache);
    let chunk = chunk_size(layout.shape.num_elements(), chain.cost).next_multiple_of(layout.strip);
    for_chunks(out.values_mut::<T>()?, chunk, |start, part| pass.run(start, part));
    ctx.set_output(0, out);
    Ok(())
}

/// The values of those operands and ops that have one element for all elements of the result; 0 for all other operands
/// and ops.
struct SingleValues<W> {
    inputs: SmallVec<[W; 8]>,
    values: SmallVec<[W; 16]>,
}

impl<W: ChainElement> SingleValues<W> {
    /// Computes the single-element values. If the result has one element, every operand and op has such a value.
    fn of<T: Lane<Wide = W>>(
        chain: &Chain<StripOp<W>>,
        layout: &ChainLayout,
        tensors: &[Option<Tensor>],
    ) -> Result<SingleValues<W>> {
        let all = layout.shape.num_elements() == 1;
        let is_single = |place: &OperandLayout| all || matches!(place, OperandLayout::Single);
        let mut singles = SingleValues { inputs: SmallVec::new(), values: SmallVec::new() };
        for (place, tensor) in layout.inputs.iter().zip(tensors) {
            singles.inputs.push(match tensor {
                Some(tensor) if is_single(place) => tensor.item::<T>()?.to_wide(),
                _ => W::zeroed(),
            });
        }
        for (op, place) in chain.ops.iter().zip(&layout.values) {
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
