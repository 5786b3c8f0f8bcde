//! A chain of element-wise ops as one pass over memory: a strip of elements goes through all of them while it is in the
//! first cache, so that only operands and the result cross memory. Each op rounds as it does by itself: the bits are
//! the same.
//!
//! Operands are whole (one element for each of the result's), single (one for all), or spread (repeated along some axes).
//! A value between ops is whole or single. Where shapes fit in no such way the ops run one by one, each as its own
//! kernel: so do those whose shapes do not fit at all, and the error is that of the op.

use super::chain::{Chain, ChainOp, Source};
use super::strip::{Computed, Run, Strip, strip};
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelInit};
use crate::kernels::cpu::broadcast::{Operand, Plan, of_one};
use crate::kernels::cpu::dispatch::dispatch;
use crate::kernels::cpu::threads::{Cost, chunk_size, for_chunks};
use crate::kernels::cpu::wide::{Lane, store};
use bytemuck::Zeroable;
use graph::{Shape, Tensor};
use smallvec::SmallVec;

/// Elements of a strip, at most: those of a few operands stay in the first cache.
const STRIP: usize = 1024;

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

/// How the shapes of a chain's operands and values fit the result's.
struct Fit {
    shape: Shape,
    /// Elements of a strip.
    strip: usize,
    /// Spread operands are the same in every strip.
    has_period: bool,
    inputs: SmallVec<[Place; 8]>,
    values: SmallVec<[Place; 16]>,
}

enum Place {
    Whole,
    Single,
    /// How the result's shape and this one are walked together.
    Spread(Plan),
}

impl Fit {
    /// `None` where a value between ops is neither whole nor single, or the shapes do not fit.
    fn of<F>(chain: &Chain<F>, ctx: &KernelContext<'_>) -> Option<Fit> {
        let given = chain.given(ctx)?;
        if chain.takes_as_one_shape(&given) {
            let inputs = given.iter().map(|_| Place::Whole).collect();
            let values = chain.ops.iter().map(|_| Place::Whole).collect();
            return Some(Fit { shape: given[0].clone(), strip: STRIP, has_period: false, inputs, values });
        }
        let shapes = chain.shapes(&given)?;
        let whole = shapes.last()?.clone();
        let place = |shape: &Shape| match shape {
            same if *same == whole => Some(Place::Whole),
            one if one.num_elements() == 1 => Some(Place::Single),
            _ => None,
        };
        let spread = |shape: &Shape| {
            let plan = Plan::fit(&whole, shape).ok()??;
            (*plan.shape() == whole).then_some(Place::Spread(plan))
        };
        let places = given.iter().map(|shape| place(shape).or_else(|| spread(shape)));
        let inputs = places.collect::<Option<SmallVec<[Place; 8]>>>()?;
        let values = shapes.iter().map(place).collect::<Option<_>>()?;
        let period = common_period(&inputs);
        let strip = period.map_or(STRIP, |period| STRIP / period * period);
        Some(Fit { shape: whole, strip, has_period: period.is_some(), inputs, values })
    }
}

/// After how many elements all spread operands begin anew, if there are any, and if a strip is as long.
fn common_period(inputs: &[Place]) -> Option<usize> {
    let mut periods = inputs.iter().filter_map(|place| match place {
        Place::Spread(plan) => Some(plan.period()),
        Place::Whole | Place::Single => None,
    });
    let first = periods.next()?.filter(|period| (1..=STRIP).contains(period))?;
    periods.all(|other| other == Some(first)).then_some(first)
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
        ctx.set_output(0, of_one(T::of_wide(*value), &fit.shape)?);
        return Ok(());
    }
    // The result may take the place of an operand: each strip of that is read before it is written.
    let is_free = |i: &usize| {
        matches!(fit.inputs[*i], Place::Whole) && inputs[*i].as_ref().is_some_and(Tensor::is_unique)
    };
    let in_place = (0..chain.ops.inputs).find(is_free);
    let mut out = match in_place.and_then(|i| inputs[i].take()) {
        Some(operand) => operand,
        None => ctx.allocate(T::DTYPE, fit.shape.clone())?,
    };
    let elements = inputs.iter().map(|input| input.as_ref().map(Tensor::values::<T>).transpose());
    let elements = elements.collect::<graph::Result<SmallVec<[Option<&[T]>; 8]>>>()?;
    let is_read_last =
        |i: usize| chain.ops.ops.last().is_some_and(|op| op.operands.contains(&Source::Input(i)));
    let in_place = in_place.filter(|i| T::NATIVE && !is_read_last(*i));
    let pass = Pass { chain, fit, singles: &singles, elements, in_place };
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
                op.compute(&mut out, |source| Operand::One(value(source)));
            }
            singles.values.push(T::of_wide(out[0]).to_wide());
        }
        Ok(singles)
    }
}

/// One pass over the result's elements.
struct Pass<'a, T: Lane<Wide: 'static>> {
    chain: &'a StripChain<T::Wide>,
    fit: &'a Fit,
    singles: &'a Singles<T::Wide>,
    /// Of each operand; none of the one whose memory the result has.
    elements: SmallVec<[Option<&'a [T]>; 8]>,
    /// The operand that is read where the result will be: by none of those who write there.
    in_place: Option<usize>,
}

impl<T: Lane<Wide: Computed>> Pass<'_, T> {
    /// The result's elements from `start` on, which is a multiple of a strip.
    fn run(&self, start: usize, part: &mut [T]) {
        let len = part.len().min(self.fit.strip);
        let strip = |_| vec![T::Wide::zeroed(); len];
        let mut registers: Vec<Vec<T::Wide>> = (0..self.chain.most_registers).map(strip).collect();
        let mut loaded: SmallVec<[Vec<T::Wide>; 8]> = (0..self.chain.ops.inputs)
            .map(|i| if self.is_loaded(i) { strip(i) } else { Vec::new() })
            .collect();
        let mut narrow = vec![T::zeroed(); if T::NATIVE { 0 } else { len }];
        for (n, out) in part.chunks_mut(self.fit.strip).enumerate() {
            let at = start + n * self.fit.strip;
            for (i, strip) in loaded.iter_mut().enumerate().filter(|(_, strip)| !strip.is_empty()) {
                let is_there = n > 0 && self.fit.has_period && matches!(self.fit.inputs[i], Place::Spread(_));
                if !is_there {
                    self.load(i, at, &mut strip[..out.len()], out);
                }
            }
            self.strip(at, out, &mut registers, &loaded, &mut narrow);
        }
    }

    /// Whether an operand's strips are copied before they are used.
    fn is_loaded(&self, i: usize) -> bool {
        match self.fit.inputs[i] {
            Place::Whole => !T::NATIVE || (self.elements[i].is_none() && self.in_place != Some(i)),
            Place::Single => false,
            Place::Spread(_) => true,
        }
    }

    fn load(&self, i: usize, at: usize, strip: &mut [T::Wide], out: &[T]) {
        match (&self.fit.inputs[i], self.elements[i]) {
            (_, None) => T::widen(out, strip),
            (Place::Spread(plan), Some(elements)) => {
                let repeats = plan.repeats()[1];
                plan.walk(at, strip.len(), |done, len, [_, from]| {
                    let run = &mut strip[done..done + len];
                    match repeats {
                        true => run.fill(elements[from].to_wide()),
                        false => T::widen(&elements[from..from + len], run),
                    }
                });
            }
            (_, Some(elements)) => T::widen(&elements[at..at + strip.len()], strip),
        }
    }

    fn strip(
        &self,
        at: usize,
        out: &mut [T],
        registers: &mut [Vec<T::Wide>],
        loaded: &[Vec<T::Wide>],
        narrow: &mut [T],
    ) {
        let len = out.len();
        for (n, op) in self.chain.ops.ops.iter().enumerate() {
            if matches!(self.fit.values[n], Place::Single) {
                continue;
            }
            // Nobody reads it now.
            let mut to = std::mem::take(&mut registers[self.chain.registers[n]]);
            if n + 1 == self.chain.ops.ops.len() {
                let strips = Strips { registers, loaded, result: &[] };
                store(out, &mut to, |out| op.compute(out, |source| self.operand(source, at, len, &strips)));
            } else {
                let strips = Strips { registers, loaded, result: out };
                op.compute(&mut to[..len], |source| self.operand(source, at, len, &strips));
                if !T::NATIVE {
                    T::narrow(&to[..len], &mut narrow[..len]);
                    T::widen(&narrow[..len], &mut to[..len]);
                }
            }
            registers[self.chain.registers[n]] = to;
        }
    }

    fn operand<'v>(
        &'v self,
        source: &Source,
        at: usize,
        len: usize,
        strips: &Strips<'v, T>,
    ) -> Operand<'v, T::Wide> {
        match *source {
            Source::Input(i) if matches!(self.fit.inputs[i], Place::Single) => {
                Operand::One(self.singles.inputs[i])
            }
            Source::Value(n) if matches!(self.fit.values[n], Place::Single) => {
                Operand::One(self.singles.values[n])
            }
            Source::Value(n) => Operand::Many(&strips.registers[self.chain.registers[n]][..len]),
            Source::Input(i) if !strips.loaded[i].is_empty() => Operand::Many(&strips.loaded[i][..len]),
            Source::Input(i) => Operand::Many(bytemuck::cast_slice(match self.elements[i] {
                Some(elements) => &elements[at..at + len],
                None => strips.result,
            })),
        }
    }
}

/// Where the strips of a pass are.
struct Strips<'v, T: Lane> {
    registers: &'v [Vec<T::Wide>],
    loaded: &'v [Vec<T::Wide>],
    /// The strip of the result, while it holds that of an operand.
    result: &'v [T],
}

impl<W: Computed> ChainOp<Strip<W>> {
    fn compute<'v>(&self, out: &mut [W], operand: impl Fn(&Source) -> Operand<'v, W>) {
        match (&self.function.run, self.operands.as_slice()) {
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
