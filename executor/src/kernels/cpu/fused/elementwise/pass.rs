//! One pass over the result's elements, strip by strip. Where each op finds its operands is settled before the
//! first.

use super::super::strip::{Computed, Run};
use super::fit::{Fit, Place};
use super::{Singles, Source, StripChain};
use crate::kernels::cpu::broadcast::{Operand, Plan};
use crate::kernels::cpu::cache::LINE;
use crate::kernels::cpu::stream;
use crate::kernels::cpu::wide::Lane;
use bytemuck::Zeroable;
use smallvec::SmallVec;

/// A chain with its operands.
pub(super) struct Pass<'a, T: Lane<Wide: 'static>> {
    steps: Vec<Step<'a, T::Wide>>,
    loads: SmallVec<[Load<'a, T>; 2]>,
    /// The operands that are read as the result is written.
    along: SmallVec<[&'a [T]; 4]>,
    strip: usize,
    registers: usize,
    /// Whether the result is written past the caches.
    streams: bool,
}

/// One op on every strip.
struct Step<'a, W: 'static> {
    run: &'a Run<W>,
    /// Both are the same where the op takes one.
    operands: [Found<'a, W>; 2],
    /// The register that the value is written to.
    to: usize,
}

/// Where an op finds an operand.
#[derive(Clone, Copy)]
enum Found<'a, W> {
    Single(W),
    Register(usize),
    /// At the result's positions.
    Whole(&'a [W]),
    /// Again and again; in the register for a strip that passes its end.
    Cycle(&'a [W], usize),
    /// Where the result will be.
    Result,
}

/// An operand that is copied to a register before a strip is computed.
struct Load<'a, T> {
    from: Given<'a, T>,
    to: usize,
    /// The first strip's copy serves all strips.
    once: bool,
}

enum Given<'a, T> {
    Result,
    Whole(&'a [T]),
    /// For strips that pass its end.
    Cycle(&'a Plan, &'a [T]),
    Spread(&'a Plan, &'a [T]),
}

/// The memory of a thread for one pass.
struct Memory<'m, T: Lane> {
    registers: SmallVec<[&'m mut [T::Wide]; 8]>,
    /// A value as elements of the result.
    narrow: Vec<T>,
}

impl<'a, T: Lane<Wide: Computed>> Pass<'a, T> {
    /// `elements` are each operand's: none of the one whose memory the result has.
    pub(super) fn new(
        chain: &'a StripChain<T::Wide>,
        fit: &'a Fit,
        singles: &Singles<T::Wide>,
        elements: &[Option<&'a [T]>],
        streams: bool,
    ) -> Pass<'a, T> {
        let mut pass = Pass {
            steps: Vec::with_capacity(chain.ops.ops.len()),
            loads: SmallVec::new(),
            along: SmallVec::new(),
            strip: fit.strip,
            registers: chain.most_registers,
            streams,
        };
        let mut inputs = SmallVec::<[Found<'a, T::Wide>; 8]>::new();
        for (i, (place, elements)) in fit.inputs.iter().zip(elements).enumerate() {
            inputs.push(match (place, *elements) {
                (Place::Single, _) => Found::Single(singles.inputs[i]),
                (Place::Whole, Some(elements)) => pass.whole(elements),
                (Place::Spread(plan), Some(elements)) => pass.spread(plan, elements, fit.has_period),
                // Who writes there must not read there.
                (_, None) if T::NATIVE && !is_read_last(chain, i) => Found::Result,
                (_, None) => pass.loaded(Given::Result, false),
            });
        }
        for (n, op) in chain.ops.ops.iter().enumerate() {
            let found = |source: &Source| match *source {
                Source::Input(i) => inputs[i],
                Source::Value(before) => match fit.values[before] {
                    Place::Single => Found::Single(singles.values[before]),
                    _ => Found::Register(chain.registers[before]),
                },
            };
            if let (false, [x, ..]) = (matches!(fit.values[n], Place::Single), op.operands.as_slice()) {
                let operands = [x, op.operands.last().unwrap_or(x)].map(found);
                pass.steps.push(Step { run: &op.function.run, operands, to: chain.registers[n] });
            }
        }
        pass
    }

    fn whole(&mut self, elements: &'a [T]) -> Found<'a, T::Wide> {
        self.along.push(elements);
        match T::NATIVE {
            true => Found::Whole(bytemuck::cast_slice(elements)),
            false => self.loaded(Given::Whole(elements), false),
        }
    }

    fn spread(&mut self, plan: &'a Plan, elements: &'a [T], has_period: bool) -> Found<'a, T::Wide> {
        if T::NATIVE && !has_period && plan.period().is_some() {
            let to = self.load(Given::Cycle(plan, elements), false);
            return Found::Cycle(bytemuck::cast_slice(elements), to);
        }
        self.loaded(Given::Spread(plan, elements), has_period)
    }

    fn loaded(&mut self, from: Given<'a, T>, once: bool) -> Found<'a, T::Wide> {
        Found::Register(self.load(from, once))
    }

    /// The register that the operand is copied to.
    fn load(&mut self, from: Given<'a, T>, once: bool) -> usize {
        let to = self.registers;
        self.registers += 1;
        self.loads.push(Load { from, to, once });
        to
    }

    /// The result's elements from `start` on, which is a multiple of a strip.
    pub(super) fn run(&self, start: usize, part: &mut [T]) {
        let len = part.len().min(self.strip);
        // Registers begin where a line does: no vector is in two.
        let line = LINE / size_of::<T::Wide>();
        let each = len.next_multiple_of(line).max(line);
        let mut all = vec![T::Wide::zeroed(); self.registers * each + line];
        let from = all.as_ptr().align_offset(LINE).min(line);
        let registers = all[from..].chunks_exact_mut(each).collect();
        let mut memory = Memory { registers, narrow: vec![T::zeroed(); if T::NATIVE { 0 } else { len }] };
        for (n, out) in part.chunks_mut(self.strip).enumerate() {
            let at = start + n * self.strip;
            for load in self.loads.iter().filter(|load| n == 0 || !load.once) {
                load.run(at, out, &mut memory.registers[load.to][..out.len()]);
            }
            self.strip(at, out, &mut memory);
        }
        if self.streams {
            stream::settle();
        }
    }

    /// Every op of the chain, on one strip.
    fn strip(&self, at: usize, out: &mut [T], memory: &mut Memory<'_, T>) {
        let Some((last, before)) = self.steps.split_last() else { return };
        let len = out.len();
        let share = len.div_ceil(self.steps.len());
        for (n, step) in before.iter().enumerate() {
            self.ask(at + len + n * share, share);
            let Memory { registers, narrow } = memory;
            let to = std::mem::take(&mut registers[step.to]);
            let value = &mut to[..len];
            step.run(at, value, registers, if T::NATIVE { bytemuck::cast_slice(out) } else { &[] });
            if !T::NATIVE {
                T::narrow(value, &mut narrow[..len]);
                T::widen(&narrow[..len], value);
            }
            registers[step.to] = to;
        }
        self.ask(at + len + before.len() * share, share);
        self.last(last, at, out, memory);
    }

    /// The last op, on one strip.
    fn last(&self, step: &Step<'_, T::Wide>, at: usize, out: &mut [T], memory: &mut Memory<'_, T>) {
        let Memory { registers, narrow } = memory;
        if T::NATIVE && !self.streams {
            return step.run(at, bytemuck::cast_slice_mut(out), registers, &[]);
        }
        let to = std::mem::take(&mut registers[step.to]);
        let value = &mut to[..out.len()];
        step.run(at, value, registers, &[]);
        match (T::NATIVE, self.streams) {
            (true, _) => stream::copy(bytemuck::cast_slice(value), out),
            (false, false) => T::narrow(value, out),
            (false, true) => {
                let narrow = &mut narrow[..out.len()];
                T::narrow(value, narrow);
                stream::copy(narrow, out);
            }
        }
        registers[step.to] = to;
    }

    /// Asks for these elements of all operands that are read along: a share of the next strip with each op, as
    /// memory takes only so many requests at a time.
    fn ask(&self, from: usize, len: usize) {
        for elements in &self.along {
            stream::ask(elements.get(from..from + len).unwrap_or_default());
        }
    }
}

impl<W: Computed> Step<'_, W> {
    /// On a strip that is at `at`, of which `result` is the result as it is now.
    #[inline]
    fn run(&self, at: usize, to: &mut [W], registers: &[&mut [W]], result: &[W]) {
        let len = to.len();
        self.run.compute(to, |n| match self.operands[n] {
            Found::Single(value) => Operand::One(value),
            Found::Register(register) => Operand::Many(&registers[register][..len]),
            Found::Whole(elements) => Operand::Many(&elements[at..at + len]),
            Found::Cycle(cycle, register) => {
                Operand::Many(in_cycle(cycle, at, len).unwrap_or_else(|| &registers[register][..len]))
            }
            Found::Result => Operand::Many(result),
        });
    }
}

impl<T: Lane> Load<'_, T> {
    fn run(&self, at: usize, out: &[T], to: &mut [T::Wide]) {
        match self.from {
            Given::Result => T::widen(out, to),
            Given::Whole(elements) => T::widen(&elements[at..at + out.len()], to),
            Given::Cycle(_, elements) if in_cycle(elements, at, out.len()).is_some() => {}
            Given::Cycle(plan, elements) | Given::Spread(plan, elements) => {
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

/// Whether the last op reads this operand.
fn is_read_last<W>(chain: &StripChain<W>, i: usize) -> bool {
    chain.ops.ops.last().is_some_and(|op| op.operands.contains(&Source::Input(i)))
}

/// The elements from `at` on of what repeats, if they are one run.
fn in_cycle<T>(cycle: &[T], at: usize, len: usize) -> Option<&[T]> {
    let from = at % cycle.len();
    cycle.get(from..from + len)
}
