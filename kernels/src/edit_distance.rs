//! `EditDistance`: the number of insertions, deletions and replacements that turn one sequence into another.

use super::sparse::Coo;
use crate::numeric::dispatch::{ANY, dispatch};
use device::Result;
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::{DType, Shape, Tensor};
use std::cmp::Ordering;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("EditDistance", &[("T", ANY)], |init| {
        let normalize = init.attr::<bool>("normalize")?;
        dispatch!(any, init.input_type(1), T => {
            Kernel::sync(move |ctx| distances(ctx, normalize, |values| Ok(values.values::<T>()?)))
        })
    }),
    KernelDef::of("EditDistance", &[("T", &[DType::String])], |init: &KernelInit<'_>| {
        let normalize = init.attr::<bool>("normalize")?;
        Kernel::sync(move |ctx| distances(ctx, normalize, |values| Ok(values.as_strings()?)))
    }),
];

/// Outputs the distance of each pair of sequences at the same position of both sparse tensors.
fn distances<T: PartialEq>(
    ctx: &mut KernelContext<'_>,
    normalize: bool,
    view: impl Fn(&Tensor) -> Result<&[T]>,
) -> Result<()> {
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
    let (hypothesis_values, truth_values) = (view(hypothesis.values)?, view(truth.values)?);
    let distances = out.values_mut::<f32>()?;
    let (mut i, mut j) = (0, 0);
    while i < hypotheses.len() || j < truths.len() {
        let order = match (hypotheses.get(i), truths.get(j)) {
            (Some(a), Some(b)) => a.0.cmp(b.0),
            (Some(_), None) => Ordering::Less,
            _ => Ordering::Greater,
        };
        let mut from_values: &[T] = &[];
        let mut to_values: &[T] = &[];
        let mut at: &[i64] = &[];
        if order.is_le() {
            at = hypotheses[i].0;
            from_values = &hypothesis_values[hypotheses[i].1.clone()];
            i += 1;
        }
        if order.is_ge() {
            at = truths[j].0;
            to_values = &truth_values[truths[j].1.clone()];
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
        let distance = distance(from_values, to_values) as f32;
        // If the truth is empty and the hypothesis is not, the normalised distance is infinite.
        distances[slot] =
            if normalize && distance > 0.0 { distance / to_values.len() as f32 } else { distance };
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the ranges of values that share all indices except the last, with the shared indices.
fn sequences<'a>(coo: &Coo<'a>) -> Vec<(&'a [i64], std::ops::Range<usize>)> {
    let mut all: Vec<(&[i64], std::ops::Range<usize>)> = Vec::new();
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
