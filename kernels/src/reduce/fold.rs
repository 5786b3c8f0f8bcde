//! Folds axes of a tensor with an associative function in one pass over the input: in vectors, with partial results
//! that keep sums of many floats accurate, and on several threads where that pays.

use crate::numeric::simd::{Vector, vectorized};
use crate::numeric::threads::{BLOCK, Cost};
use crate::numeric::widen::block;
use crate::plan::reduce::Axis;
use graph::Element;
use rayon::prelude::*;
use smallvec::SmallVec;
use std::marker::PhantomData;

/// An associative and commutative function with its neutral element.
pub(super) trait Monoid<T> {
    const IDENTITY: T;
    fn combine(x: T, y: T) -> T;
}

/// The loops of a [`Monoid`].
#[derive(Clone, Copy, Debug)]
pub(super) struct Fold<W> {
    pub(super) identity: W,
    /// Folds each row of `len` elements into one result.
    rows: fn(&mut [W], &[W], usize),
    /// Combines two slices element by element.
    merge: fn(&mut [W], &[W]),
}

impl<W: Element> Fold<W> {
    pub(super) fn of<O: Monoid<W>>() -> Fold<W> {
        Fold {
            identity: O::IDENTITY,
            rows: |results, x, len| vectorized(Rows::<W, O> { results, x, len, op: PhantomData }),
            merge: |results, x| vectorized(Merge::<W, O> { results, x, op: PhantomData }),
        }
    }
}

/// A function that converts elements to the type that the fold computes in.
pub(super) type Load<A, W> = fn(&[A], &mut [W]);

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
            for (lane, &v) in lanes.iter_mut().zip(chunks.remainder()) {
                *lane = O::combine(*lane, v);
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
pub(super) fn reduce<A: Element, W: Element>(
    x: &[A],
    axes: &[Axis],
    results: &mut [W],
    fold: &Fold<W>,
    load: Option<Load<A, W>>,
) {
    if x.is_empty() || results.is_empty() {
        return;
    }
    let threads = rayon::current_num_threads();
    let Some((first, rest)) = axes.split_first() else {
        return columns(x, results, fold, load);
    };
    if threads == 1 || x.len() <= Cost::Cheap.threshold() {
        return serial(x, axes, results, fold, load);
    }
    let (step, part) = (x.len() / first.size, results.len() / first.size);
    let with_first = |len: usize| {
        let mut axes = SmallVec::<[Axis; 4]>::from_slice(axes);
        axes[0].size = len / step;
        axes
    };
    let per_thread = first.size.div_ceil(threads);
    if first.reduced && first.size >= threads && results.len() <= x.len() / 8 {
        let partial: Vec<Vec<W>> = x
            .par_chunks(per_thread * step)
            .map(|x| {
                let mut partial = vec![fold.identity; results.len()];
                serial(x, &with_first(x.len()), &mut partial, fold, load);
                partial
            })
            .collect();
        partial.iter().for_each(|p| (fold.merge)(results, p));
    } else if !first.reduced && first.size >= threads {
        x.par_chunks(per_thread * step)
            .zip(results.par_chunks_mut(per_thread * part))
            .for_each(|(x, results)| serial(x, &with_first(x.len()), results, fold, load));
    } else if !first.reduced {
        // There are fewer rows than threads: all threads work on each row in turn.
        for (x, results) in x.chunks(step).zip(results.chunks_mut(part)) {
            reduce(x, rest, results, fold, load);
        }
    } else {
        serial(x, axes, results, fold, load);
    }
}

/// Folds on this thread, in one pass over the input. The two innermost axes form a unit: columns to merge, or rows to
/// fold.
fn serial<A: Element, W: Element>(
    x: &[A],
    axes: &[Axis],
    results: &mut [W],
    fold: &Fold<W>,
    load: Option<Load<A, W>>,
) {
    let (outer, inner) = axes.split_at(axes.len().saturating_sub(2));
    let unit: usize = inner.iter().map(|a| a.size).product();
    let width: usize = inner.iter().filter(|a| !a.reduced).map(|a| a.size).product();
    let row = inner.last().filter(|a| a.reduced).map(|a| a.size);
    let mut steps = SmallVec::<[usize; 4]>::from_elem(0, outer.len());
    let mut passed = width;
    for (i, axis) in outer.iter().enumerate().rev().filter(|(_, a)| !a.reduced) {
        steps[i] = passed;
        passed *= axis.size;
    }
    let mut index = SmallVec::<[usize; 4]>::from_elem(0, outer.len());
    let mut offset = 0;
    for x in x.chunks_exact(unit) {
        let results = &mut results[offset..offset + width];
        match row {
            Some(len) => rows(x, len, results, fold, load),
            None => columns(x, results, fold, load),
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

fn rows<A: Element, W: Element>(
    x: &[A],
    len: usize,
    results: &mut [W],
    fold: &Fold<W>,
    load: Option<Load<A, W>>,
) {
    let limit = if load.is_some() { BLOCK } else { LONG_ROW };
    let mut buffer = block::<W>(load.map_or(0, |_| x.len()));
    if len > limit {
        // The partial results are folded like a row, which keeps the chain of additions short.
        let mut partial = vec![fold.identity; len.div_ceil(limit)];
        for (result, row) in results.chunks_mut(1).zip(x.chunks_exact(len)) {
            partial.fill(fold.identity);
            for (partial, part) in partial.chunks_mut(1).zip(row.chunks(limit)) {
                (fold.rows)(partial, loaded(part, load, &mut buffer), part.len());
            }
            (fold.rows)(result, &partial, partial.len());
        }
        return;
    }
    let together = if load.is_some() { limit / len } else { results.len() };
    for (results, x) in results.chunks_mut(together).zip(x.chunks(together * len)) {
        (fold.rows)(results, loaded(x, load, &mut buffer), len);
    }
}

/// With at most this many rows, rows are merged without partial results.
const TALL: usize = 128;
/// Rows shorter than this are merged several at a time.
const WIDE: usize = 256;

/// Merges rows as wide as the results into them.
fn columns<A: Element, W: Element>(x: &[A], results: &mut [W], fold: &Fold<W>, load: Option<Load<A, W>>) {
    let width = results.len();
    let mut buffer = block::<W>(load.map_or(0, |_| x.len()));
    let mut merge = |results: &mut [W], x: &[A]| {
        if load.is_none() {
            return (fold.merge)(results, bytemuck::cast_slice(x));
        }
        for (results, x) in results.chunks_mut(BLOCK).zip(x.chunks(BLOCK)) {
            (fold.merge)(results, loaded(x, load, &mut buffer));
        }
    };
    let together = (WIDE / width).max(1);
    let count = x.len() / width;
    if count <= TALL && (together == 1 || count < 4) {
        x.chunks_exact(width).for_each(|row| merge(results, row));
        return;
    }
    // A partial result merges as many rows as there are partial results, which keeps the chain of additions short.
    let tall = TALL.max((count / together).isqrt());
    let mut partial = vec![fold.identity; width * together];
    for x in x.chunks(width * together * tall) {
        partial.fill(fold.identity);
        x.chunks(width * together).for_each(|rows| merge(&mut partial, rows));
        let mut rows = together;
        while rows > 1 {
            let half = rows / 2;
            let (low, high) = partial.split_at_mut((rows - half) * width);
            (fold.merge)(&mut low[..half * width], &high[..half * width]);
            rows -= half;
        }
        (fold.merge)(results, &partial[..width]);
    }
}

fn loaded<'a, A: Element, W: Element>(x: &'a [A], load: Option<Load<A, W>>, buffer: &'a mut [W]) -> &'a [W] {
    let Some(load) = load else { return bytemuck::cast_slice(x) };
    let buffer = &mut buffer[..x.len()];
    load(x, buffer);
    buffer
}
