//! The CTC loss, the negative log-probability of labels summed over all alignments, and its gradient.

use super::{Scores, log_softmax, log_sum};
use crate::numeric::scalar::Real;
use crate::numeric::threads::for_parts;
use crate::sparse::check_sorted;
use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Code, Element, Shape, Tensor};

/// The attributes of `CTCLoss`.
#[derive(Clone, Copy)]
pub(super) struct LossOptions {
    /// Set if consecutive equal labels are collapsed into one before the loss is computed.
    collapsed: bool,
    /// Set if repeated labels in an alignment count as one label unless a blank separates them.
    merged: bool,
    /// Set if sequences with more labels than time steps get the loss 0 instead of an error.
    skip_longer: bool,
}

impl LossOptions {
    /// Reads the attributes of `CTCLoss`.
    pub(super) fn of(init: &KernelInit<'_>) -> Result<LossOptions> {
        Ok(LossOptions {
            collapsed: init.attr("preprocess_collapse_repeated")?,
            merged: init.attr("ctc_merge_repeated")?,
            skip_longer: init.attr("ignore_longer_outputs_than_inputs")?,
        })
    }
}

/// Returns the labels of each sequence, given as a sparse matrix.
fn labels(ctx: &KernelContext<'_>, batch: usize) -> Result<Vec<Vec<usize>>> {
    let (indices, values) = (ctx.input(1)?, ctx.input(2)?);
    let &[count, 2] = indices.shape().dims() else {
        device::invalid!("labels_indices is not a matrix of 2 columns, got shape {}", indices.shape());
    };
    if values.shape().dims() != [count] {
        device::invalid!("labels_values has shape {}, labels_indices {}", values.shape(), indices.shape());
    }
    let mut out = vec![Vec::new(); batch];
    let indices = indices.values::<i64>()?;
    // The matrix's width is not an input, so the width is computed from the greatest column index.
    let columns =
        indices.iter().skip(1).step_by(2).fold(0, |most, &column| column.saturating_add(1).max(most));
    check_sorted(indices.chunks_exact(2), &[batch as i64, columns])
        .map_err(|e| Error::invalid(format!("label SparseTensor is not valid: {e}")))?;
    let (indices, _) = indices.as_chunks::<2>();
    for (&[sequence, _], &label) in indices.iter().zip(values.values::<i32>()?) {
        let row = usize::try_from(sequence).ok().and_then(|b| out.get_mut(b));
        let Some(sequence_labels) = row else {
            device::invalid!("labels batch index must be between 0 and {batch} but saw: {sequence}");
        };
        let Ok(label) = usize::try_from(label) else {
            device::invalid!("All labels must be nonnegative integers, batch: {sequence} labels: {label}");
        };
        sequence_labels.push(label);
    }
    Ok(out)
}

impl LossOptions {
    /// Returns the labels that the loss uses, without the null labels at the end.
    fn prepare_labels(&self, labels: &[usize], blank: usize, length: usize, b: usize) -> Result<Vec<usize>> {
        if labels.is_empty() {
            device::invalid!("Labels length is zero in batch {b}");
        }
        let mut out = Vec::with_capacity(labels.len());
        let mut ended = false;
        for (i, &label) in labels.iter().enumerate() {
            if self.collapsed && i > 0 && labels[i - 1] == label {
                continue;
            }
            if label >= blank {
                ended = true;
            } else if ended {
                device::invalid!(
                    "Saw a non-null label (index >= num_classes - 1) following a null label, batch: {b} \
                     num_classes: {} labels: {labels:?}",
                    blank + 1
                );
            } else {
                out.push(label);
            }
        }
        if !self.skip_longer && out.len() > length {
            device::invalid!(
                "Not enough time for target transition sequence (required: {}, available: {length}){b}You can turn \
                 this error into a warning by using the flag ignore_longer_outputs_than_inputs",
                out.len()
            );
        }
        Ok(out)
    }

    /// Returns whether an alignment may go from `other` to `label`, skipping the blank between them.
    fn may_skip(&self, label: usize, other: usize, blank: usize) -> bool {
        label != blank && !(self.merged && label == other)
    }

    /// Returns whether an alignment may stay at a label for another time step.
    fn may_stay(&self, label: usize, blank: usize) -> bool {
        self.merged || label == blank
    }

    /// Returns the loss of one sequence and its gradient, indexed by time step; the gradient is `None` if no alignment
    /// is possible.
    fn sequence_loss<T: Real>(
        &self,
        log_probabilities: &[Vec<T>],
        labels: &[usize],
        blank: usize,
    ) -> (T, Option<Vec<Vec<T>>>) {
        let (time, zero) = (log_probabilities.len(), T::neg_infinity());
        // The path has a blank before, between and after the labels.
        let path: Vec<usize> = labels.iter().flat_map(|&l| [blank, l]).chain([blank]).collect();
        let states = path.len();
        let mut forward = vec![vec![zero; states]; time];
        for u in 0..states.min(2) {
            forward[0][u] = log_probabilities[0][path[u]];
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
                forward[t][u] = sum + log_probabilities[t][path[u]];
            }
        }
        let mut backward = vec![vec![zero; states]; time];
        backward[time - 1][states.saturating_sub(2)..].fill(T::zero());
        for t in (0..time - 1).rev() {
            for u in 0..states {
                let after = |v: usize| backward[t + 1][v] + log_probabilities[t + 1][path[v]];
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
        let gradient_at = |t: usize| {
            let mut sums = vec![zero; log_probabilities[t].len()];
            for u in 0..states {
                sums[path[u]] = log_sum(sums[path[u]], forward[t][u] + backward[t][u]);
            }
            log_probabilities[t].iter().zip(sums).map(|(c, s)| c.exp() - (s - total).exp()).collect()
        };
        (-total, Some((0..time).map(gradient_at).collect()))
    }
}

/// `CTCLoss`: outputs the loss of each sequence and the gradient of the scores.
pub(super) fn loss<T: Element + Real>(ctx: &mut KernelContext<'_>, options: LossOptions) -> Result<()> {
    let scores = Scores::<T>::of(ctx, 3, Code::InvalidArgument)?;
    if let Some(b) = ctx.input(3)?.values::<i32>()?.iter().position(|&length| length < 0) {
        device::invalid!("seq_len({b}) < 0");
    }
    let blank = scores.classes - 1;
    let labels = labels(ctx, scores.batch)?;
    let prepared =
        labels.iter().enumerate().map(|(b, l)| options.prepare_labels(l, blank, scores.lengths[b], b));
    let prepared: Vec<Vec<usize>> = prepared.collect::<Result<_>>()?;
    let mut parts: Vec<(T, Option<Vec<Vec<T>>>)> = prepared.iter().map(|_| (T::zero(), None)).collect();
    for_parts(&mut parts, 1, true, |b, part| {
        let length = scores.lengths[b];
        if length > 0 && prepared[b].len() <= length {
            let log_probabilities: Vec<Vec<T>> = (0..length).map(|t| log_softmax(scores.at(t, b))).collect();
            part[0] = options.sequence_loss(&log_probabilities, &prepared[b], blank);
        }
    });
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
