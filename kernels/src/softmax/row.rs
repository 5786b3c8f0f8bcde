//! Softmax and losses of one row of logits, in place.

use super::super::unary::polynomial::exp_of;
use crate::numeric::scalar::Real;
use crate::numeric::simd::{Vector, vectorized_wide};

/// A floating-point type with an exponential function.
pub(super) trait Exp: Real {
    /// Returns `exp(self)`, computed like in the math kernels.
    fn exponential(self) -> Self;
}

impl Exp for f32 {
    #[inline(always)]
    fn exponential(self) -> f32 {
        exp_of(self)
    }
}

impl Exp for f64 {
    #[inline(always)]
    fn exponential(self) -> f64 {
        self.exp()
    }
}

/// The number of partial sums or maxima that are computed side by side, so that the compiler can use vectors.
const LANES: usize = 16;

/// Replaces each logit `x` by `exp(x - max) / sum`; `max` is the largest logit, `sum` the sum of all `exp(x - max)`.
pub(super) fn softmax<W: Exp>(row: &mut [W]) {
    vectorized_wide(Softmax(row));
}

/// Replaces each logit `x` by `x - max - ln(sum)`; `max` is the largest logit, `sum` the sum of all `exp(x - max)`.
pub(super) fn log_softmax<W: Exp>(row: &mut [W]) {
    vectorized_wide(LogSoftmax(row));
}

/// Replaces logits by the gradient of their loss against `labels`, and returns the loss.
pub(super) fn dense<W: Exp>(row: &mut [W], labels: &[W]) -> W {
    vectorized_wide(DenseLoss { row, labels })
}

/// Does the same as [`dense`] for labels that are 1 at index `label` and 0 elsewhere.
pub(super) fn sparse<W: Exp>(row: &mut [W], label: usize) -> W {
    vectorized_wide(SparseLoss { row, label })
}

struct Softmax<'a, W>(&'a mut [W]);

impl<W: Exp> Vector for Softmax<'_, W> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let row = self.0;
        let max = max(row);
        let scale = W::one() / exp_and_sum(row, max);
        row.iter_mut().for_each(|v| *v *= scale);
    }
}

struct LogSoftmax<'a, W>(&'a mut [W]);

impl<W: Exp> Vector for LogSoftmax<'_, W> {
    type Output = ();
    #[inline(always)]
    fn run(self) {
        let row = self.0;
        let max = max(row);
        let log = exp_sum(row, max).ln();
        row.iter_mut().for_each(|v| *v = *v - max - log);
    }
}

struct DenseLoss<'a, W> {
    row: &'a mut [W],
    labels: &'a [W],
}

impl<W: Exp> Vector for DenseLoss<'_, W> {
    type Output = W;
    #[inline(always)]
    fn run(self) -> W {
        let DenseLoss { row, labels } = self;
        let max = max(row);
        let log = exp_sum(row, max).ln();
        let mut lanes = [W::zero(); LANES];
        let (values, value_rest) = row.as_chunks::<LANES>();
        let (parts, part_rest) = labels.as_chunks::<LANES>();
        for (values, parts) in values.iter().zip(parts) {
            for i in 0..LANES {
                lanes[i] += parts[i] * (log - (values[i] - max));
            }
        }
        let mut loss: W = lanes.into_iter().sum();
        for (&v, &p) in value_rest.iter().zip(part_rest) {
            loss += p * (log - (v - max));
        }
        let scale = W::one() / exp_and_sum(row, max);
        row.iter_mut().zip(labels).for_each(|(v, &label)| *v = *v * scale - label);
        loss
    }
}

struct SparseLoss<'a, W> {
    row: &'a mut [W],
    label: usize,
}

impl<W: Exp> Vector for SparseLoss<'_, W> {
    type Output = W;
    #[inline(always)]
    fn run(self) -> W {
        let SparseLoss { row, label } = self;
        let max = max(row);
        let shifted = row[label] - max;
        let sum = exp_and_sum(row, max);
        let scale = W::one() / sum;
        row.iter_mut().for_each(|v| *v *= scale);
        row[label] -= W::one();
        sum.ln() - shifted
    }
}

/// Returns the largest element that is not NaN; negative infinity if there is none.
#[inline(always)]
fn max<W: Exp>(row: &[W]) -> W {
    let larger = |a: W, b: W| if b > a { b } else { a };
    let mut lanes = [W::neg_infinity(); LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for values in whole {
        for i in 0..LANES {
            lanes[i] = larger(lanes[i], values[i]);
        }
    }
    rest.iter().copied().fold(lanes.into_iter().fold(W::neg_infinity(), larger), larger)
}

/// Replaces each element `x` by `exp(x - max)`, and returns the sum of the results.
#[inline(always)]
fn exp_and_sum<W: Exp>(row: &mut [W], max: W) -> W {
    let mut lanes = [W::zero(); LANES];
    let (whole, rest) = row.as_chunks_mut::<LANES>();
    for values in whole {
        for i in 0..LANES {
            values[i] = (values[i] - max).exponential();
            lanes[i] += values[i];
        }
    }
    let mut sum: W = lanes.into_iter().sum();
    for v in rest {
        *v = (*v - max).exponential();
        sum += *v;
    }
    sum
}

/// Returns the sum of `exp(x - max)` over the row.
#[inline(always)]
fn exp_sum<W: Exp>(row: &[W], max: W) -> W {
    let mut lanes = [W::zero(); LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for values in whole {
        for i in 0..LANES {
            lanes[i] += (values[i] - max).exponential();
        }
    }
    lanes.into_iter().sum::<W>() + rest.iter().map(|&v| (v - max).exponential()).sum::<W>()
}
