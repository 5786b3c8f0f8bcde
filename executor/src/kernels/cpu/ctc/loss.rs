//! The negative log-probability of labels, summed over all alignments, and its gradient.

use super::{Scores, log_softmax, log_sum};
use crate::error::{Error, Result};
use crate::kernel::{KernelContext, KernelInit};
use crate::kernels::cpu::scalar::Real;
use crate::kernels::cpu::sparse::check_sorted;
use graph::{Code, Element, Shape, Tensor};
use rayon::prelude::*;

/// The attributes.
#[derive(Clone, Copy)]
pub(super) struct Rules {
    collapsed: bool,
    merged: bool,
    skip_longer: bool,
}

impl Rules {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Rules> {
        Ok(Rules {
            collapsed: init.attr("preprocess_collapse_repeated")?,
            merged: init.attr("ctc_merge_repeated")?,
            skip_longer: init.attr("ignore_longer_outputs_than_inputs")?,
        })
    }
}

/// The labels of each sequence, of a sparse matrix.
fn labels(ctx: &KernelContext<'_>, batch: usize) -> Result<Vec<Vec<usize>>> {
    let (places, values) = (ctx.input(1)?, ctx.input(2)?);
    let &[count, 2] = places.shape().dims() else {
        crate::invalid!("labels_indices is not a matrix of 2 columns, got shape {}", places.shape());
    };
    if values.shape().dims() != [count] {
        crate::invalid!("labels_values has shape {}, labels_indices {}", values.shape(), places.shape());
    }
    let mut out = vec![Vec::new(); batch];
    let places = places.values::<i64>()?;
    // The width of the matrix is no input: the last column that is named is its last.
    let columns =
        places.iter().skip(1).step_by(2).fold(0, |most, &column| column.saturating_add(1).max(most));
    check_sorted(places.chunks_exact(2), &[batch as i64, columns])
        .map_err(|e| Error::invalid(format!("label SparseTensor is not valid: {e}")))?;
    let (places, _) = places.as_chunks::<2>();
    for (&[sequence, _], &label) in places.iter().zip(values.values::<i32>()?) {
        let known = usize::try_from(sequence).ok().and_then(|b| out.get_mut(b));
        let Some(of_sequence) = known else {
            crate::invalid!("labels batch index must be between 0 and {batch} but saw: {sequence}");
        };
        let Ok(label) = usize::try_from(label) else {
            crate::invalid!("All labels must be nonnegative integers, batch: {sequence} labels: {label}");
        };
        of_sequence.push(label);
    }
    Ok(out)
}

impl Rules {
    /// The labels that count, without the null labels at the end.
    fn prepared(&self, given: &[usize], blank: usize, length: usize, b: usize) -> Result<Vec<usize>> {
        if given.is_empty() {
            crate::invalid!("Labels length is zero in batch {b}");
        }
        let mut out = Vec::with_capacity(given.len());
        let mut ended = false;
        for (i, &label) in given.iter().enumerate() {
            if self.collapsed && i > 0 && given[i - 1] == label {
                continue;
            }
            if label >= blank {
                ended = true;
            } else if ended {
                crate::invalid!(
                    "Saw a non-null label (index >= num_classes - 1) following a null label, batch: {b} \
                     num_classes: {} labels: {given:?}",
                    blank + 1
                );
            } else {
                out.push(label);
            }
        }
        if !self.skip_longer && out.len() > length {
            crate::invalid!(
                "Not enough time for target transition sequence (required: {}, available: {length}){b}You can turn \
                 this error into a warning by using the flag ignore_longer_outputs_than_inputs",
                out.len()
            );
        }
        Ok(out)
    }

    /// Whether an alignment may go on with `label` after what is two before it, without the blank between.
    fn may_skip(&self, label: usize, other: usize, blank: usize) -> bool {
        label != blank && !(self.merged && label == other)
    }

    /// Whether an alignment may stay at a label.
    fn may_stay(&self, label: usize, blank: usize) -> bool {
        self.merged || label == blank
    }

    /// The loss of one sequence, and its gradient by time; `None` where no alignment is possible.
    fn of_sequence<T: Real>(
        &self,
        chances: &[Vec<T>],
        labels: &[usize],
        blank: usize,
    ) -> (T, Option<Vec<Vec<T>>>) {
        let (time, zero) = (chances.len(), T::neg_infinity());
        // A blank before, between and after the labels.
        let path: Vec<usize> = labels.iter().flat_map(|&l| [blank, l]).chain([blank]).collect();
        let states = path.len();
        let mut forward = vec![vec![zero; states]; time];
        for u in 0..states.min(2) {
            forward[0][u] = chances[0][path[u]];
        }
        for t in 1..time {
            for u in 0..states {
                let before = &forward[t - 1];
                let mut sum = if self.may_stay(path[u], blank) { before[u] } else { zero };
                if u > 0 {
                    sum = log_sum(sum, before[u - 1]);
                }
                if u > 1 && self.may_skip(path[u], path[u - 2], blank) {
                    sum = log_sum(sum, before[u - 2]);
                }
                forward[t][u] = sum + chances[t][path[u]];
            }
        }
        let mut backward = vec![vec![zero; states]; time];
        backward[time - 1][states.saturating_sub(2)..].fill(T::zero());
        for t in (0..time - 1).rev() {
            for u in 0..states {
                let after = |v: usize| backward[t + 1][v] + chances[t + 1][path[v]];
                let mut sum = if self.may_stay(path[u], blank) { after(u) } else { zero };
                if u + 1 < states {
                    sum = log_sum(sum, after(u + 1));
                }
                if u + 2 < states && self.may_skip(path[u], path[u + 2], blank) {
                    sum = log_sum(sum, after(u + 2));
                }
                backward[t][u] = sum;
            }
        }
        let total = (0..states).fold(zero, |sum, u| log_sum(sum, forward[0][u] + backward[0][u]));
        if total == zero {
            return (T::infinity(), None);
        }
        let slope = |t: usize| {
            let mut seen = vec![zero; chances[t].len()];
            for u in 0..states {
                seen[path[u]] = log_sum(seen[path[u]], forward[t][u] + backward[t][u]);
            }
            chances[t].iter().zip(seen).map(|(c, s)| c.exp() - (s - total).exp()).collect()
        };
        (-total, Some((0..time).map(slope).collect()))
    }
}

pub(super) fn loss<T: Element + Real>(ctx: &mut KernelContext<'_>, rules: Rules) -> Result<()> {
    let scores = Scores::<T>::of(ctx, 3, Code::InvalidArgument)?;
    if let Some(b) = ctx.input(3)?.values::<i32>()?.iter().position(|&length| length < 0) {
        crate::invalid!("seq_len({b}) < 0");
    }
    let blank = scores.classes - 1;
    let given = labels(ctx, scores.batch)?;
    let prepared = given.iter().enumerate().map(|(b, l)| rules.prepared(l, blank, scores.lengths[b], b));
    let prepared: Vec<Vec<usize>> = prepared.collect::<Result<_>>()?;
    let parts: Vec<(T, Option<Vec<Vec<T>>>)> = (0..scores.batch)
        .into_par_iter()
        .map(|b| {
            let length = scores.lengths[b];
            if length == 0 || prepared[b].len() > length {
                return (T::zero(), None);
            }
            let chances: Vec<Vec<T>> = (0..length).map(|t| log_softmax(scores.at(t, b))).collect();
            rules.of_sequence(&chances, &prepared[b], blank)
        })
        .collect();
    let mut gradient = Tensor::zeros(T::DTYPE, Shape::new(&[scores.time, scores.batch, scores.classes])?)?;
    let slopes = gradient.values_mut::<T>()?;
    for (b, (_, part)) in parts.iter().enumerate() {
        for (t, row) in part.iter().flatten().enumerate() {
            slopes[(t * scores.batch + b) * scores.classes..][..scores.classes].copy_from_slice(row);
        }
    }
    let losses: Vec<T> = parts.into_iter().map(|p| p.0).collect();
    let batch = Shape::new(&[losses.len()])?;
    ctx.set_output(0, Tensor::from_slice(&losses, batch)?);
    ctx.set_output(1, gradient);
    Ok(())
}
