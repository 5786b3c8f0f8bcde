//! What is computed of one row of logits, in place.

use super::exp::{Exp, vectorised};

/// Sums and maxima are kept side by side in as many lanes, so that the compiler can use vectors.
const LANES: usize = 16;

vectorised! {
    /// `exp(x - max) / sum`
    fn softmax<W: Exp>(row: &mut [W]) = softmax_body
}

vectorised! {
    /// `x - max - ln(sum)`
    fn log_softmax<W: Exp>(row: &mut [W]) = log_softmax_body
}

vectorised! {
    /// Makes of logits the gradient of their loss against `labels`, and sets the loss.
    fn dense<W: Exp>(row: &mut [W], labels: &[W], loss: &mut W) = dense_body
}

vectorised! {
    /// As [`dense`], of labels that are 1 at one index and 0 elsewhere.
    fn sparse<W: Exp>(row: &mut [W], label: usize, loss: &mut W) = sparse_body
}

#[inline(always)]
fn softmax_body<W: Exp>(row: &mut [W]) {
    let max = max(row);
    let scale = W::one() / exp_and_sum(row, max);
    row.iter_mut().for_each(|v| *v *= scale);
}

#[inline(always)]
fn log_softmax_body<W: Exp>(row: &mut [W]) {
    let max = max(row);
    let log = exp_sum(row, max).ln();
    row.iter_mut().for_each(|v| *v = *v - max - log);
}

#[inline(always)]
fn dense_body<W: Exp>(row: &mut [W], labels: &[W], loss: &mut W) {
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
    let mut total: W = lanes.into_iter().sum();
    for (&v, &p) in value_rest.iter().zip(part_rest) {
        total += p * (log - (v - max));
    }
    *loss = total;
    let scale = W::one() / exp_and_sum(row, max);
    row.iter_mut().zip(labels).for_each(|(v, &label)| *v = *v * scale - label);
}

#[inline(always)]
fn sparse_body<W: Exp>(row: &mut [W], label: usize, loss: &mut W) {
    let max = max(row);
    let shifted = row[label] - max;
    let sum = exp_and_sum(row, max);
    *loss = sum.ln() - shifted;
    let scale = W::one() / sum;
    row.iter_mut().for_each(|v| *v *= scale);
    row[label] -= W::one();
}

/// The largest element that is not NaN, negative infinity if there is none.
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

/// Replaces each element by `exp(x - max)`, and gives the sum.
#[inline(always)]
fn exp_and_sum<W: Exp>(row: &mut [W], max: W) -> W {
    let mut lanes = [W::zero(); LANES];
    let (whole, rest) = row.as_chunks_mut::<LANES>();
    for values in whole {
        for i in 0..LANES {
            values[i] = (values[i] - max).fast_exp();
            lanes[i] += values[i];
        }
    }
    let mut sum: W = lanes.into_iter().sum();
    for v in rest {
        *v = (*v - max).fast_exp();
        sum += *v;
    }
    sum
}

/// The sum of `exp(x - max)`.
#[inline(always)]
fn exp_sum<W: Exp>(row: &[W], max: W) -> W {
    let mut lanes = [W::zero(); LANES];
    let (whole, rest) = row.as_chunks::<LANES>();
    for values in whole {
        for i in 0..LANES {
            lanes[i] += (values[i] - max).fast_exp();
        }
    }
    lanes.into_iter().sum::<W>() + rest.iter().map(|&v| (v - max).fast_exp()).sum::<W>()
}
