//! `EditDistance`: the number of insertions, deletions and replacements that turn one sequence into another.

use super::sparse::Coo;
use crate::numeric::dispatch::{ANY, dispatch};
use device::Result;
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Element, Shape, Tensor};
use std::cmp::Ordering;
use std::ops::Range;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("EditDistance", &[("T", ANY)], |init| {
        kernel(init, dispatch!(any, init.input_type(1), T => Ok(distance_of_numbers::<T> as Distance))?)
    }),
    KernelDef::of("EditDistance", &[("T", &[DType::String])], |init| kernel(init, distance_of_strings)),
];

/// A function that returns the Levenshtein distance between a range of each tensor's elements.
type Distance = fn([&Tensor; 2], [Range<usize>; 2]) -> Result<usize>;

fn kernel(init: &KernelInit<'_>, distance: Distance) -> Result<Kernel> {
    let normalize = init.attr::<bool>("normalize")?;
    Kernel::sync(move |ctx| distances(ctx, normalize, distance))
}

fn distance_of_numbers<T: Element>([a, b]: [&Tensor; 2], [from, to]: [Range<usize>; 2]) -> Result<usize> {
    Ok(distance(&a.values::<T>()?[from], &b.values::<T>()?[to]))
}

fn distance_of_strings([a, b]: [&Tensor; 2], [from, to]: [Range<usize>; 2]) -> Result<usize> {
    Ok(distance(&a.as_strings()?[from], &b.as_strings()?[to]))
}

/// Outputs the edit distance of each pair of sequences that have the same index in both sparse tensors.
fn distances(ctx: &mut KernelContext<'_>, normalize: bool, distance: Distance) -> Result<()> {
    let (hypothesis, truth) = (Coo::of(ctx, 0)?, Coo::of(ctx, 3)?);
    if hypothesis.rank() != truth.rank() || truth.rank() == 0 {
        invalid!(
            "Expected hypothesis_shape and truth_shape to have equal numbers of elements, at least 1, but got {} and {}",
            hypothesis.rank(),
            truth.rank()
        );
    }
    let sizes = hypothesis.shape.iter().zip(&truth.shape).map(|(&a, &b)| a.max(b));
    let shape = Shape::from_i64(&sizes.take(truth.rank() - 1).collect::<Vec<_>>())?;
    let mut out = Tensor::zeros(DType::Float, shape.clone())?;
    let (hypotheses, truths) = (sequences(&hypothesis), sequences(&truth));
    let distances = out.values_mut::<f32>()?;
    let (mut i, mut j) = (0, 0);
    while i < hypotheses.len() || j < truths.len() {
        let order = match (hypotheses.get(i), truths.get(j)) {
            (Some(a), Some(b)) => a.0.cmp(b.0),
            (Some(_), None) => Ordering::Less,
            _ => Ordering::Greater,
        };
        let (mut from, mut to) = (0..0, 0..0);
        let mut at: &[i64] = &[];
        if order.is_le() {
            at = hypotheses[i].0;
            from = hypotheses[i].1.clone();
            i += 1;
        }
        if order.is_ge() {
            at = truths[j].0;
            to = truths[j].1.clone();
            j += 1;
        }
        let slot = at
            .iter()
            .zip(shape.iter())
            .try_fold(0, |slot, (&k, &d)| usize::try_from(k).ok().filter(|&k| k < d).map(|k| slot * d + k));
        let Some(slot) = slot else {
            invalid!("index {at:?} of a sequence is outside of the shape {shape}");
        };
        ctx.check_cancelled()?;
        let length = to.len() as f32;
        let distance = distance([hypothesis.values, truth.values], [from, to])? as f32;
        // If the truth is empty and the hypothesis is not, the normalised distance is infinite.
        distances[slot] = if normalize && distance > 0.0 { distance / length } else { distance };
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the sequences of a sparse tensor: ranges of values whose indices agree except in the last axis, each with
/// the common part of the index.
fn sequences<'a>(coo: &Coo<'a>) -> Vec<(&'a [i64], Range<usize>)> {
    let mut all: Vec<(&[i64], Range<usize>)> = Vec::new();
    for (i, index) in coo.rows().enumerate() {
        let of = &index[..index.len() - 1];
        match all.last_mut() {
            Some((last, run)) if *last == of => run.end = i + 1,
            _ => all.push((of, i..i + 1)),
        }
    }
    all
}

/// Returns the Levenshtein distance, computed row by row of its table.
fn distance<T: PartialEq>(a: &[T], b: &[T]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(diagonal + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
