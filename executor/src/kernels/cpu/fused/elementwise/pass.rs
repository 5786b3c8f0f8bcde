//! One pass over the result's elements, strip by strip.

use super::super::strip::Computed;
use super::fit::{Fit, Place};
use super::{Singles, Source, StripChain};
use crate::kernels::cpu::broadcast::Operand;
use crate::kernels::cpu::stream;
use crate::kernels::cpu::wide::{Lane, store};
use bytemuck::Zeroable;
use smallvec::SmallVec;

/// What a pass reads, and how.
pub(super) struct Pass<'a, T: Lane<Wide: 'static>> {
    pub(super) chain: &'a StripChain<T::Wide>,
    pub(super) fit: &'a Fit,
    pub(super) singles: &'a Singles<T::Wide>,
    /// Of each operand; none of the one whose memory the result has.
    pub(super) elements: SmallVec<[Option<&'a [T]>; 8]>,
    /// The operand that is read where the result will be: by none of those who write there.
    pub(super) in_place: Option<usize>,
    /// Whether the result is written past the caches.
    pub(super) streams: bool,
}

/// The memory of a thread for one pass.
struct Strips<T: Lane> {
    /// Values that are still to be read.
    registers: Vec<Vec<T::Wide>>,
    /// Operands that are copied before they are used; empty for the others.
    loaded: SmallVec<[Vec<T::Wide>; 8]>,
    /// A value as elements of the result.
    narrow: Vec<T>,
}

impl<T: Lane<Wide: Computed>> Pass<'_, T> {
    /// The result's elements from `start` on, which is a multiple of a strip.
    pub(super) fn run(&self, start: usize, part: &mut [T]) {
        let len = part.len().min(self.fit.strip);
        let strip = |_| vec![T::Wide::zeroed(); len];
        let loaded = |i| if self.is_loaded(i) { strip(i) } else { Vec::new() };
        let mut strips = Strips {
            registers: (0..self.chain.most_registers).map(strip).collect(),
            loaded: (0..self.chain.ops.inputs).map(loaded).collect(),
            narrow: vec![T::zeroed(); if T::NATIVE && !self.streams { 0 } else { len }],
        };
        for (n, out) in part.chunks_mut(self.fit.strip).enumerate() {
            let at = start + n * self.fit.strip;
            for (i, strip) in strips.loaded.iter_mut().enumerate().filter(|(_, strip)| !strip.is_empty()) {
                let is_there = n > 0 && self.fit.has_period && matches!(self.fit.inputs[i], Place::Spread(_));
                if !is_there && self.run_of(i, at, out.len()).is_none() {
                    self.load(i, at, &mut strip[..out.len()], out);
                }
            }
            self.strip(at, out, &mut strips);
        }
        if self.streams {
            stream::settle();
        }
    }

    /// Whether an operand's strips are copied before they are used, if not all are read where they are.
    fn is_loaded(&self, i: usize) -> bool {
        match self.fit.inputs[i] {
            Place::Whole => !T::NATIVE || (self.elements[i].is_none() && self.in_place != Some(i)),
            Place::Single => false,
            Place::Spread(_) => true,
        }
    }

    /// The operand's elements for a strip, where they are one run of the type that is computed in.
    fn run_of(&self, i: usize, at: usize, len: usize) -> Option<&[T::Wide]> {
        let elements = self.elements[i].filter(|_| T::NATIVE)?;
        let from = match &self.fit.inputs[i] {
            Place::Whole => at,
            Place::Single => return None,
            Place::Spread(plan) => {
                let period = plan.period()?;
                Some(at % period).filter(|from| from + len <= period)?
            }
        };
        Some(bytemuck::cast_slice(&elements[from..from + len]))
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

    /// Every op of the chain, on one strip.
    fn strip(&self, at: usize, out: &mut [T], strips: &mut Strips<T>) {
        let Strips { registers, loaded, narrow } = strips;
        let len = out.len();
        for (n, op) in self.chain.ops.ops.iter().enumerate() {
            if matches!(self.fit.values[n], Place::Single) {
                continue;
            }
            // Nobody reads it now.
            let mut to = std::mem::take(&mut registers[self.chain.registers[n]]);
            if n + 1 < self.chain.ops.ops.len() {
                let read = Read { registers, loaded, result: out };
                op.compute(&mut to[..len], |source| self.operand(source, at, len, &read));
                if !T::NATIVE {
                    T::narrow(&to[..len], &mut narrow[..len]);
                    T::widen(&narrow[..len], &mut to[..len]);
                }
            } else {
                let read = Read { registers, loaded, result: &[] };
                let place = if self.streams { &mut narrow[..len] } else { &mut *out };
                store(place, &mut to, |place| {
                    op.compute(place, |source| self.operand(source, at, len, &read))
                });
                if self.streams {
                    stream::copy(&narrow[..len], out);
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
        read: &Read<'v, T>,
    ) -> Operand<'v, T::Wide> {
        match *source {
            Source::Input(i) if matches!(self.fit.inputs[i], Place::Single) => {
                Operand::One(self.singles.inputs[i])
            }
            Source::Value(n) if matches!(self.fit.values[n], Place::Single) => {
                Operand::One(self.singles.values[n])
            }
            Source::Value(n) => Operand::Many(&read.registers[self.chain.registers[n]][..len]),
            Source::Input(i) => Operand::Many(match self.run_of(i, at, len) {
                Some(run) => run,
                None if !read.loaded[i].is_empty() => &read.loaded[i][..len],
                None => bytemuck::cast_slice(read.result),
            }),
        }
    }
}

/// What an op's operands may be in, while it runs.
struct Read<'v, T: Lane> {
    registers: &'v [Vec<T::Wide>],
    loaded: &'v [Vec<T::Wide>],
    /// The strip of the result, while it holds that of an operand.
    result: &'v [T],
}
