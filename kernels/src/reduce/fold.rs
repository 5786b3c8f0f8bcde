//! Folds axes of a tensor with an associative function in one pass over the input: in vectors, with partial results
//! that keep sums of many floats accurate, and on several threads where that pays.

use crate::numeric::simd::{Vector, vectorized};
use crate::numeric::threads::{BLOCK, Cost};
use crate::plan::reduce::Axis;
use bytemuck::{cast_slice, cast_slice_mut};
use graph::Element;
use rayon::prelude::*;
use smallvec::SmallVec;
use std::marker::PhantomData;

/// An associative and commutative function with its neutral element.
pub(super) trait Monoid<T> {
    const IDENTITY: T;
    fn combine(x: T, y: T) -> T;
}

/// The loops of a [`Monoid`] over elements of one type. Elements are passed as bytes, so that the code around the loops
/// is compiled once, not once per element type.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold {
    /// The size of an element in bytes.
    element: usize,
    /// The size of a result in bytes.
    result: usize,
    /// Fills results with the identity.
    pub(super) fill: fn(&mut [u8]),
    /// Folds each row into one result; the last argument is the number of elements per row.
    rows: fn(&mut [u8], &[u8], usize),
    /// Combines two slices element by element.
    merge: fn(&mut [u8], &[u8]),
    /// Converts elements to the type that the fold computes in.
    load: Option<Load>,
}

/// A function that converts elements, passed as bytes, to another type.
pub(super) type Load = fn(&[u8], &mut [u8]);

impl Fold {
    /// Returns the loops of `O` over elements of type `A`; `load` converts them if they are not of type `W`.
    pub(super) fn of<A: Element, W: Element, O: Monoid<W>>(load: Option<Load>) -> Fold {
        Fold {
            element: size_of::<A>(),
            result: size_of::<W>(),
            fill: |results| cast_slice_mut::<u8, W>(results).fill(O::IDENTITY),
            rows: |results, x, len| {
                let (results, x) = (cast_slice_mut(results), cast_slice(x));
                vectorized(Rows::<W, O> { results, x, len, op: PhantomData });
            },
            merge: |results, x| {
                let (results, x) = (cast_slice_mut(results), cast_slice(x));
                vectorized(Merge::<W, O> { results, x, op: PhantomData });
            },
            load,
        }
    }

    /// Returns memory for `count` results, all set to the identity.
    fn identities(&self, count: usize) -> Aligned {
        let mut results = Aligned::new(count * self.result);
        (self.fill)(results.bytes());
        results
    }

    /// Returns memory for `count` converted elements, at most [`BLOCK`]; none if elements are not converted.
    fn buffer(&self, count: usize) -> Aligned {
        Aligned::new(self.load.map_or(0, |_| count.min(BLOCK) * self.result))
    }

    /// Returns the elements in the type that the fold computes in; `buffer` holds them if they have to be converted.
    fn loaded<'a>(&self, x: &'a [u8], buffer: &'a mut Aligned) -> &'a [u8] {
        let Some(load) = self.load else { return x };
        let buffer = &mut buffer.bytes()[..x.len() / self.element * self.result];
        load(x, buffer);
        buffer
    }
}

/// Zeroed memory that is aligned for elements of every type.
struct Aligned {
    words: Vec<u128>,
    len: usize,
}

impl Aligned {
    fn new(len: usize) -> Aligned {
        Aligned { words: vec![0; len.div_ceil(size_of::<u128>())], len }
    }

    fn bytes(&mut self) -> &mut [u8] {
        &mut cast_slice_mut(&mut self.words)[..self.len]
    }
}

struct Rows<'a, W, O> {
    results: &'a mut [W],
    x: &'a [W],
    len: usize,
    op: PhantomData<O>,
}

/// Elements of a row that are folded side by side: four vectors of eight.
const LANES: usize = 32;

impl<W: Copy, O: Monoid<W>> Vector for Rows<'_, W, O> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (result, row) in self.results.iter_mut().zip(self.x.chunks_exact(self.len)) {
            if row.len() < LANES {
                *result = row.iter().fold(*result, |r, &v| O::combine(r, v));
                continue;
            }
            let mut lanes = [O::IDENTITY; LANES];
            let mut chunks = row.chunks_exact(LANES);
            for chunk in &mut chunks {
                for (lane, &v) in lanes.iter_mut().zip(chunk) {
                    *lane = O::combine(*lane, v);
                }
            }
            // The last elements are padded to a whole chunk, and only their lanes change: a loop of up to 31 elements
            // would be unrolled into a function of 40 KiB.
            let mut last = [O::IDENTITY; LANES];
            let rest = chunks.remainder();
            last[..rest.len()].copy_from_slice(rest);
            for (i, (lane, v)) in lanes.iter_mut().zip(last).enumerate() {
                let combined = O::combine(*lane, v);
                *lane = if i < rest.len() { combined } else { *lane };
            }
            let mut width = LANES;
            while width > 1 {
                width /= 2;
                let (low, high) = lanes.split_at_mut(width);
                for (l, &h) in low.iter_mut().zip(&high[..width]) {
                    *l = O::combine(*l, h);
                }
            }
            *result = O::combine(*result, lanes[0]);
        }
    }
}

struct Merge<'a, W, O> {
    results: &'a mut [W],
    x: &'a [W],
    op: PhantomData<O>,
}

impl<W: Copy, O: Monoid<W>> Vector for Merge<'_, W, O> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        for (r, &v) in self.results.iter_mut().zip(self.x) {
            *r = O::combine(*r, v);
        }
    }
}

/// Folds `x` into `results`, which hold the identity or earlier results.
pub(super) fn reduce(x: &[u8], axes: &[Axis], results: &mut [u8], fold: &Fold) {
    if x.is_empty() || results.is_empty() {
        return;
    }
    let threads = rayon::current_num_threads();
    let Some((first, rest)) = axes.split_first() else {
        return serial(x, axes, results, fold);
    };
    let (elements, result_count) = (x.len() / fold.element, results.len() / fold.result);
    if threads == 1 || elements <= Cost::Cheap.threshold() {
        return serial(x, axes, results, fold);
    }
    let (step, part) = (elements / first.size * fold.element, result_count / first.size * fold.result);
    let with_first = |len: usize| {
        let mut axes = SmallVec::<[Axis; 4]>::from_slice(axes);
        axes[0].size = len / step;
        axes
    };
    let per_thread = first.size.div_ceil(threads);
    if first.reduced && first.size >= threads && result_count <= elements / 8 {
        let mut partial: Vec<Aligned> = x
            .par_chunks(per_thread * step)
            .map(|x| {
                let mut partial = fold.identities(result_count);
                serial(x, &with_first(x.len()), partial.bytes(), fold);
                partial
            })
            .collect();
        partial.iter_mut().for_each(|p| (fold.merge)(results, p.bytes()));
    } else if !first.reduced && first.size >= threads {
        x.par_chunks(per_thread * step)
            .zip(results.par_chunks_mut(per_thread * part))
            .for_each(|(x, results)| serial(x, &with_first(x.len()), results, fold));
    } else if !first.reduced {
        // There are fewer rows than threads: all threads work on each row in turn.
        for (x, results) in x.chunks(step).zip(results.chunks_mut(part)) {
            reduce(x, rest, results, fold);
        }
    } else {
        serial(x, axes, results, fold);
    }
}

/// Folds on this thread, in one pass over the input. The two innermost axes form a unit: columns to merge, or rows to
/// fold.
fn serial(x: &[u8], axes: &[Axis], results: &mut [u8], fold: &Fold) {
    let (outer, inner) = axes.split_at(axes.len().saturating_sub(2));
    let unit: usize = inner.iter().map(|a| a.size).product();
    let width: usize = inner.iter().filter(|a| !a.reduced).map(|a| a.size).product();
    let width = width * fold.result;
    let row = inner.last().filter(|a| a.reduced).map(|a| a.size);
    let mut steps = SmallVec::<[usize; 4]>::from_elem(0, outer.len());
    let mut passed = width;
    for (i, axis) in outer.iter().enumerate().rev().filter(|(_, a)| !a.reduced) {
        steps[i] = passed;
        passed *= axis.size;
    }
    let mut index = SmallVec::<[usize; 4]>::from_elem(0, outer.len());
    let mut buffer = fold.buffer(unit);
    let mut offset = 0;
    for x in x.chunks_exact(unit * fold.element) {
        let results = &mut results[offset..offset + width];
        match row {
            Some(len) => rows(x, len, results, fold, &mut buffer),
            None => columns(x, results, fold, &mut buffer),
        }
        for (i, axis) in outer.iter().enumerate().rev() {
            index[i] += 1;
            offset += steps[i];
            if index[i] < axis.size {
                break;
            }
            index[i] = 0;
            offset -= axis.size * steps[i];
        }
    }
}

/// Rows longer than this are folded in parts.
const LONG_ROW: usize = 4096;

/// Folds each row of `len` elements into one result.
fn rows(x: &[u8], len: usize, results: &mut [u8], fold: &Fold, buffer: &mut Aligned) {
    let limit = if fold.load.is_some() { BLOCK } else { LONG_ROW };
    if len > limit {
        // The partial results are folded like a row, which keeps the chain of additions short.
        let parts = len.div_ceil(limit);
        let mut partial = fold.identities(parts);
        let partial = partial.bytes();
        for (result, row) in results.chunks_mut(fold.result).zip(x.chunks_exact(len * fold.element)) {
            (fold.fill)(partial);
            for (partial, part) in partial.chunks_mut(fold.result).zip(row.chunks(limit * fold.element)) {
                (fold.rows)(partial, fold.loaded(part, buffer), part.len() / fold.element);
            }
            (fold.rows)(result, partial, parts);
        }
        return;
    }
    let together = if fold.load.is_some() { limit / len } else { results.len() / fold.result };
    let parts = results.chunks_mut(together * fold.result).zip(x.chunks(together * len * fold.element));
    for (results, x) in parts {
        (fold.rows)(results, fold.loaded(x, buffer), len);
    }
}

/// The largest number of rows that are merged without partial results.
const TALL: usize = 128;
/// The width below which several rows are merged at a time.
const WIDE: usize = 256;

/// Merges the rows of `x`, which are as wide as the results, into the results.
fn columns(x: &[u8], results: &mut [u8], fold: &Fold, buffer: &mut Aligned) {
    let (elements, width) = (x.len() / fold.element, results.len() / fold.result);
    let mut merge = |results: &mut [u8], x: &[u8]| {
        if fold.load.is_none() {
            return (fold.merge)(results, x);
        }
        for (results, x) in results.chunks_mut(BLOCK * fold.result).zip(x.chunks(BLOCK * fold.element)) {
            (fold.merge)(results, fold.loaded(x, buffer));
        }
    };
    let together = (WIDE / width).max(1);
    let count = elements / width;
    let row = width * fold.element;
    if count <= TALL && (together == 1 || count < 4) {
        x.chunks_exact(row).for_each(|row| merge(results, row));
        return;
    }
    // A partial result merges as many rows as there are partial results, which keeps the chain of additions short.
    let tall = TALL.max((count / together).isqrt());
    let mut partial = fold.identities(width * together);
    let partial = partial.bytes();
    for x in x.chunks(row * together * tall) {
        (fold.fill)(partial);
        x.chunks(row * together).for_each(|rows| merge(partial, rows));
        let mut rows = together;
        while rows > 1 {
            let half = rows / 2;
            let (low, high) = partial.split_at_mut((rows - half) * results.len());
            (fold.merge)(&mut low[..half * results.len()], &high[..half * results.len()]);
            rows -= half;
        }
        (fold.merge)(results, &partial[..results.len()]);
    }
}
