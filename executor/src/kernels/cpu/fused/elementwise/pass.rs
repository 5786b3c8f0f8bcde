//! One pass over the result's elements, strip by strip. Where each op finds its operands is settled before the first.

use super::super::strip::{Computed, Run};
use super::fit::{Fit, Place};
use super::{Singles, Source, StripChain};
use crate::kernels::cpu::broadcast::{Operand, Plan};
use crate::kernels::cpu::stream;
use crate::kernels::cpu::wide::Lane;
use bytemuck::{Pod, Zeroable};
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
    /// The second is any where the op takes one.
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
    from: Origin<'a, T>,
    to: usize,
    /// The first strip's copy serves all strips.
    once: bool,
}

enum Origin<'a, T> {
    Result,
    Whole(&'a [T]),
    /// For strips that pass its end.
    Cycle(&'a Plan, &'a [T]),
    Spread(&'a Plan, &'a [T]),
}

/// The memory of a thread for one pass.
struct Memory<'m, T> {
    registers: SmallVec<[&'m mut [Line]; 8]>,
    /// A value as elements of the result.
    narrow: Vec<T>,
}

/// Part of a register, which begins where a line of the cache does: no vector of one is in two of the other.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u8; 64]);

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
        let reads_last = |i| chain.ops.ops.last().is_some_and(|op| op.operands.contains(&Source::Input(i)));
        let inputs: SmallVec<[Found<'a, T::Wide>; 8]> = { fit.inputs.iter().zip(elements).enumerate() }
            .map(|(i, (place, elements))| match (place, *elements) {
                (Place::Single, _) => Found::Single(singles.inputs[i]),
                // Who writes there must not read there.
                (_, None) if T::NATIVE && !reads_last(i) => Found::Result,
                (_, None) => pass.loaded(Origin::Result, false),
                (Place::Whole, Some(elements)) => pass.whole(elements),
                (Place::Spread(plan), Some(elements)) => pass.spread(plan, elements, fit.has_period),
            })
            .collect();
        for (n, op) in chain.ops.ops.iter().enumerate() {
            let found = |source: &Source| match *source {
                Source::Input(i) => inputs[i],
                Source::Value(before) if matches!(fit.values[before], Place::Single) => {
                    Found::Single(singles.values[before])
                }
                Source::Value(before) => Found::Register(chain.registers[before]),
            };
            if !matches!(fit.values[n], Place::Single) {
                let operands = [op.operands.first(), op.operands.last()];
                let operands = operands.map(|source| source.map_or(Found::Result, found));
                pass.steps.push(Step { run: &op.function.run, operands, to: chain.registers[n] });
            }
        }
        pass
    }

    fn whole(&mut self, elements: &'a [T]) -> Found<'a, T::Wide> {
        self.along.push(elements);
        match T::NATIVE {
            true => Found::Whole(bytemuck::cast_slice(elements)),
            false => self.loaded(Origin::Whole(elements), false),
        }
    }

    fn spread(&mut self, plan: &'a Plan, elements: &'a [T], has_period: bool) -> Found<'a, T::Wide> {
        if T::NATIVE && !has_period && plan.period().is_some() {
            let to = self.load(Origin::Cycle(plan, elements), false);
            return Found::Cycle(bytemuck::cast_slice(elements), to);
        }
        self.loaded(Origin::Spread(plan, elements), has_period)
    }

    fn loaded(&mut self, from: Origin<'a, T>, once: bool) -> Found<'a, T::Wide> {
        Found::Register(self.load(from, once))
    }

    /// The register that the operand is copied to.
    fn load(&mut self, from: Origin<'a, T>, once: bool) -> usize {
        let to = self.registers;
        self.registers += 1;
        self.loads.push(Load { from, to, once });
        to
    }

    /// The result's elements from `start` on, which is a multiple of a strip.
    pub(super) fn run(&self, start: usize, part: &mut [T]) {
        let len = part.len().min(self.strip);
        let lines = (len * size_of::<T::Wide>()).div_ceil(size_of::<Line>()).max(1);
        let mut all = vec![Line::zeroed(); lines * self.registers];
        let narrow = vec![T::zeroed(); if T::NATIVE { 0 } else { len }];
        let mut memory = Memory { registers: all.chunks_exact_mut(lines).collect(), narrow };
        for (n, out) in part.chunks_mut(self.strip).enumerate() {
            let at = start + n * self.strip;
            for load in self.loads.iter().filter(|load| n == 0 || !load.once) {
                load.run(at, out, memory.registers[load.to]);
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
        let Memory { registers, narrow } = memory;
        let len = out.len();
        let share = len.div_ceil(self.steps.len());
        for (n, step) in before.iter().enumerate() {
            self.ask(at + len + n * share, share);
            let to = std::mem::take(&mut registers[step.to]);
            let value = elements_mut(to, len);
            step.run(at, value, registers, if T::NATIVE { bytemuck::cast_slice(out) } else { &[] });
            if !T::NATIVE {
                T::narrow(value, &mut narrow[..len]);
                T::widen(&narrow[..len], value);
            }
            registers[step.to] = to;
        }
        self.ask(at + len + before.len() * share, share);
        if T::NATIVE && !self.streams {
            return last.run(at, bytemuck::cast_slice_mut(out), registers, &[]);
        }
        let to = std::mem::take(&mut registers[last.to]);
        let value = elements_mut(to, len);
        last.run(at, value, registers, &[]);
        match (T::NATIVE, self.streams) {
            (true, _) => stream::copy(bytemuck::cast_slice(value), out),
            (false, true) => {
                T::narrow(value, &mut narrow[..len]);
                stream::copy(&narrow[..len], out);
            }
            (false, false) => T::narrow(value, out),
        }
        registers[last.to] = to;
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
    fn run(&self, at: usize, to: &mut [W], registers: &[&mut [Line]], result: &[W]) {
        let len = to.len();
        self.run.compute(to, |n| match self.operands[n] {
            Found::Single(value) => Operand::One(value),
            Found::Register(register) => Operand::Many(elements(registers[register], len)),
            Found::Whole(elements) => Operand::Many(&elements[at..at + len]),
            Found::Cycle(cycle, register) => {
                Operand::Many(in_cycle(cycle, at, len).unwrap_or_else(|| elements(registers[register], len)))
            }
            Found::Result => Operand::Many(result),
        });
    }
}

impl<T: Lane> Load<'_, T> {
    fn run(&self, at: usize, out: &[T], to: &mut [Line]) {
        let to: &mut [T::Wide] = elements_mut(to, out.len());
        match self.from {
            Origin::Result => T::widen(out, to),
            Origin::Whole(elements) => T::widen(&elements[at..at + out.len()], to),
            Origin::Cycle(_, elements) if in_cycle(elements, at, out.len()).is_some() => {}
            Origin::Cycle(plan, elements) | Origin::Spread(plan, elements) => {
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

/// The elements from `at` on of what repeats, if they are one run.
fn in_cycle<T>(cycle: &[T], at: usize, len: usize) -> Option<&[T]> {
    let from = at % cycle.len();
    cycle.get(from..from + len)
}

fn elements<W: Pod>(register: &[Line], len: usize) -> &[W] {
    &bytemuck::cast_slice(register)[..len]
}

fn elements_mut<W: Pod>(register: &mut [Line], len: usize) -> &mut [W] {
    &mut bytemuck::cast_slice_mut(register)[..len]
}
