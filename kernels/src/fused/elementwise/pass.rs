//! One pass over the result's elements, strip by strip. The location of every operand is decided before the first
//! strip.

use super::super::strip::{ChainElement, StripFunction};
use super::fit::{ChainLayout, OperandLayout};
use super::{SingleValues, Source, StripChain};
use crate::numeric::broadcast::{Operand, Plan};
use crate::numeric::cpu_cache::LINE;
use crate::numeric::non_temporal;
use crate::numeric::widen::Lane;
use bytemuck::Zeroable;
use smallvec::SmallVec;

/// A chain bound to its operands.
pub(super) struct StripPass<'a, T: Lane<Wide: 'static>> {
    steps: Vec<StripStep<'a, T::Wide>>,
    loads: SmallVec<[Load<'a, T>; 2]>,
    /// The operands with one element per element of the result, whose next strip is prefetched.
    prefetched: SmallVec<[&'a [T]; 4]>,
    strip: usize,
    buffers: usize,
    /// True if the result is written with non-temporal stores, which bypass the caches.
    bypasses_cache: bool,
}

/// An op, applied to every strip.
struct StripStep<'a, W: 'static> {
    run: &'a StripFunction<W>,
    /// The operands of the op; equal if the op has one operand.
    operands: [OperandLocation<'a, W>; 2],
    /// The index of the buffer to which the op's value is written.
    to: usize,
}

/// The location of an operand of an op.
#[derive(Clone, Copy)]
enum OperandLocation<'a, W> {
    /// The one element that the operand has for all elements of the result.
    Single(W),
    /// The index of the buffer that holds the operand's strip.
    Buffer(usize),
    /// One element per element of the result.
    Whole(&'a [W]),
    /// One period of a repeating operand, and the index of the buffer for strips that cross the end of the period.
    Cycle(&'a [W], usize),
    /// The memory of the result, which holds the operand's elements until they are overwritten.
    Result,
}

/// An operand that is copied to a buffer before a strip is computed.
struct Load<'a, T> {
    /// The operand whose elements are copied.
    from: LoadSource<'a, T>,
    /// The index of the buffer to which the elements are copied.
    to: usize,
    /// True if the operand is copied once, because its elements are the same in every strip.
    once: bool,
}

/// The elements of a copied operand.
enum LoadSource<'a, T> {
    /// The operand whose memory the result reuses.
    Result,
    /// An operand with one element per element of the result.
    Whole(&'a [T]),
    /// A repeating operand, copied only for strips that cross the end of a repetition.
    Cycle(&'a Plan, &'a [T]),
    /// A repeating operand, copied for every strip.
    Spread(&'a Plan, &'a [T]),
}

/// The buffers of a thread for one pass.
struct PassMemory<'m, T: Lane> {
    buffers: SmallVec<[&'m mut [T::Wide]; 8]>,
    /// Memory for a strip narrowed to the result's element type; empty if the computation has the same type.
    narrow: Vec<T>,
}

impl<'a, T: Lane<Wide: ChainElement>> StripPass<'a, T> {
    /// Binds a chain to its operands. `elements` has the elements of each operand, or `None` for the operand whose
    /// memory the result reuses.
    pub(super) fn new(
        chain: &'a StripChain<T::Wide>,
        layout: &'a ChainLayout,
        singles: &SingleValues<T::Wide>,
        elements: &[Option<&'a [T]>],
        bypasses_cache: bool,
    ) -> StripPass<'a, T> {
        let mut pass = StripPass {
            steps: Vec::with_capacity(chain.ops.ops.len()),
            loads: SmallVec::new(),
            prefetched: SmallVec::new(),
            strip: layout.strip,
            buffers: chain.buffer_count,
            bypasses_cache,
        };
        let mut inputs = SmallVec::<[OperandLocation<'a, T::Wide>; 8]>::new();
        for (i, (place, elements)) in layout.inputs.iter().zip(elements).enumerate() {
            inputs.push(match (place, *elements) {
                (OperandLayout::Single, _) => OperandLocation::Single(singles.inputs[i]),
                (OperandLayout::Whole, Some(elements)) => pass.whole(elements),
                (OperandLayout::Spread(plan), Some(elements)) => {
                    pass.spread(plan, elements, layout.has_period)
                }
                // The last op overwrites the result's memory, so an operand that the last op reads is copied to a
                // buffer.
                (_, None) if T::NATIVE && !is_read_last(chain, i) => OperandLocation::Result,
                (_, None) => pass.loaded(LoadSource::Result, false),
            });
        }
        for (n, op) in chain.ops.ops.iter().enumerate() {
            let locate = |source: &Source| match *source {
                Source::Input(i) => inputs[i],
                Source::Value(before) => match layout.values[before] {
                    OperandLayout::Single => OperandLocation::Single(singles.values[before]),
                    _ => OperandLocation::Buffer(chain.buffers[before]),
                },
            };
            if let (false, [x, ..]) =
                (matches!(layout.values[n], OperandLayout::Single), op.operands.as_slice())
            {
                let operands = [x, op.operands.last().unwrap_or(x)].map(locate);
                pass.steps.push(StripStep { run: &op.function.run, operands, to: chain.buffers[n] });
            }
        }
        pass
    }

    fn whole(&mut self, elements: &'a [T]) -> OperandLocation<'a, T::Wide> {
        self.prefetched.push(elements);
        match T::NATIVE {
            true => OperandLocation::Whole(bytemuck::cast_slice(elements)),
            false => self.loaded(LoadSource::Whole(elements), false),
        }
    }

    fn spread(
        &mut self,
        plan: &'a Plan,
        elements: &'a [T],
        has_period: bool,
    ) -> OperandLocation<'a, T::Wide> {
        if T::NATIVE && !has_period && plan.period().is_some() {
            let to = self.load(LoadSource::Cycle(plan, elements), false);
            return OperandLocation::Cycle(bytemuck::cast_slice(elements), to);
        }
        self.loaded(LoadSource::Spread(plan, elements), has_period)
    }

    fn loaded(&mut self, from: LoadSource<'a, T>, once: bool) -> OperandLocation<'a, T::Wide> {
        OperandLocation::Buffer(self.load(from, once))
    }

    /// Adds a copy of an operand to a new buffer, and returns the index of the buffer.
    fn load(&mut self, from: LoadSource<'a, T>, once: bool) -> usize {
        let to = self.buffers;
        self.buffers += 1;
        self.loads.push(Load { from, to, once });
        to
    }

    /// Computes `part`, the elements of the result from index `start` on; `start` is a multiple of the strip length.
    pub(super) fn run(&self, start: usize, part: &mut [T]) {
        let len = part.len().min(self.strip);
        // Buffers begin at a cache line, so that no vector crosses two lines.
        let line = LINE / size_of::<T::Wide>();
        let each = len.next_multiple_of(line).max(line);
        let mut all = vec![T::Wide::zeroed(); self.buffers * each + line];
        let from = all.as_ptr().align_offset(LINE).min(line);
        let buffers = all[from..].chunks_exact_mut(each).collect();
        let mut memory = PassMemory { buffers, narrow: vec![T::zeroed(); if T::NATIVE { 0 } else { len }] };
        for (n, out) in part.chunks_mut(self.strip).enumerate() {
            let at = start + n * self.strip;
            for load in self.loads.iter().filter(|load| n == 0 || !load.once) {
                load.run(at, out, &mut memory.buffers[load.to][..out.len()]);
            }
            self.strip(at, out, &mut memory);
        }
        if self.bypasses_cache {
            non_temporal::store_fence();
        }
    }

    /// Runs every op of the chain on one strip.
    fn strip(&self, at: usize, out: &mut [T], memory: &mut PassMemory<'_, T>) {
        let Some((last, before)) = self.steps.split_last() else { return };
        let len = out.len();
        let share = len.div_ceil(self.steps.len());
        for (n, step) in before.iter().enumerate() {
            self.prefetch(at + len + n * share, share);
            let PassMemory { buffers, narrow } = memory;
            let to = std::mem::take(&mut buffers[step.to]);
            let value = &mut to[..len];
            step.run(at, value, buffers, if T::NATIVE { bytemuck::cast_slice(out) } else { &[] });
            if !T::NATIVE {
                T::narrow(value, &mut narrow[..len]);
                T::widen(&narrow[..len], value);
            }
            buffers[step.to] = to;
        }
        self.prefetch(at + len + before.len() * share, share);
        self.last(last, at, out, memory);
    }

    /// Runs the last op on one strip, writing to the result.
    fn last(&self, step: &StripStep<'_, T::Wide>, at: usize, out: &mut [T], memory: &mut PassMemory<'_, T>) {
        let PassMemory { buffers, narrow } = memory;
        if T::NATIVE && !self.bypasses_cache {
            return step.run(at, bytemuck::cast_slice_mut(out), buffers, &[]);
        }
        let to = std::mem::take(&mut buffers[step.to]);
        let value = &mut to[..out.len()];
        step.run(at, value, buffers, &[]);
        match (T::NATIVE, self.bypasses_cache) {
            (true, _) => non_temporal::copy(bytemuck::cast_slice(value), out),
            (false, false) => T::narrow(value, out),
            (false, true) => {
                let narrow = &mut narrow[..out.len()];
                T::narrow(value, narrow);
                non_temporal::copy(narrow, out);
            }
        }
        buffers[step.to] = to;
    }

    /// Prefetches `len` elements from index `from` on of each operand in `prefetched`. Each op prefetches a share of
    /// the next strip, because memory accepts only a limited number of requests at a time.
    fn prefetch(&self, from: usize, len: usize) {
        for elements in &self.prefetched {
            non_temporal::prefetch(elements.get(from..from + len).unwrap_or_default());
        }
    }
}

impl<W: ChainElement> StripStep<'_, W> {
    /// Runs the op on the strip that starts at element `at`; `result` is the strip of the result's memory before it is
    /// overwritten.
    #[inline]
    fn run(&self, at: usize, to: &mut [W], buffers: &[&mut [W]], result: &[W]) {
        let len = to.len();
        self.run.compute(to, |n| match self.operands[n] {
            OperandLocation::Single(value) => Operand::One(value),
            OperandLocation::Buffer(buffer) => Operand::Many(&buffers[buffer][..len]),
            OperandLocation::Whole(elements) => Operand::Many(&elements[at..at + len]),
            OperandLocation::Cycle(cycle, buffer) => {
                Operand::Many(in_cycle(cycle, at, len).unwrap_or_else(|| &buffers[buffer][..len]))
            }
            OperandLocation::Result => Operand::Many(result),
        });
    }
}

impl<T: Lane> Load<'_, T> {
    fn run(&self, at: usize, out: &[T], to: &mut [T::Wide]) {
        match self.from {
            LoadSource::Result => T::widen(out, to),
            LoadSource::Whole(elements) => T::widen(&elements[at..at + out.len()], to),
            LoadSource::Cycle(_, elements) if in_cycle(elements, at, out.len()).is_some() => {}
            LoadSource::Cycle(plan, elements) | LoadSource::Spread(plan, elements) => {
                let repeats = plan.repeats()[1];
                plan.walk(at, to.len(), |done, len, [_, from]| {
                    let run = &mut to[done..done + len];
                    match repeats {
                        true => run.fill(elements[from].to_wide()),
                        false => T::widen(&elements[from..from + len], run),
                    }
                });
            }
        }
    }
}

/// Returns whether the last op reads operand `i`.
fn is_read_last<W>(chain: &StripChain<W>, i: usize) -> bool {
    chain.ops.ops.last().is_some_and(|op| op.operands.contains(&Source::Input(i)))
}

/// Returns `len` elements of a repeating operand from index `at` on; `None` if they cross the end of its period.
fn in_cycle<T>(cycle: &[T], at: usize, len: usize) -> Option<&[T]> {
    let from = at % cycle.len();
    cycle.get(from..from + len)
}
