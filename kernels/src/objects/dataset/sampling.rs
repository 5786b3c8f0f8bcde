//! Datasets that choose among elements at random or by weights.

use super::shuffle::{Seeds, exchange_words};
use super::state::{ExchangedState, StateExchange};
use super::transform::{concatenate, dataset, from_state, take};
use super::{Cardinality, Dataset, DatasetIterator, INFINITE, UNKNOWN};
use crate::numeric::philox::PhiloxWords;
use device::Result;
use std::sync::Arc;

/// The state of an iterator over a random sample.
struct SampleState {
    input: Box<dyn DatasetIterator>,
    numbers: PhiloxWords,
}

impl ExchangedState for SampleState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        exchange_words(exchange, &mut self.numbers)?;
        self.input.exchange(exchange)
    }
}

/// Returns the dataset of the input's elements, each kept with probability `rate`. Each iterator draws the same numbers.
pub(crate) fn sample(input: Arc<Dataset>, rate: f32, seeds: Seeds) -> Result<Arc<Dataset>> {
    let (inner, seeds) = (input.clone(), seeds.or_random());
    dataset("Sampling", input.spec.clone(), UNKNOWN, &[&input], move |ctx| {
        let state = SampleState { input: inner.iterator(ctx)?, numbers: PhiloxWords::new(seeds.stream()) };
        from_state("Sampling", state, move |state, pull| {
            loop {
                pull.check()?;
                let Some(element) = state.input.next(pull)? else { return Ok(None) };
                // The 23 low bits are the fraction of a number in [1, 2).
                let number = f32::from_bits(state.numbers.next() & 0x7f_ffff | 0x3f80_0000) - 1.0;
                if number < rate {
                    return Ok(Some(element));
                }
            }
        })
    })
}

/// Returns the dataset of the first elements of each input, one input after the other. The numbers of elements are
/// proportional to `weights`; the input whose cardinality times its weight is smallest limits them.
///
/// # Errors
/// `InvalidArgument` unless the inputs have known, sufficient cardinalities, equal dtypes and positive weights.
pub(crate) fn weighted_flat_map(inputs: Vec<Arc<Dataset>>, weights: &[f64]) -> Result<Arc<Dataset>> {
    if inputs.len() != weights.len() {
        device::invalid!(
            "`input_datasets` and `weights` of the WeightedFlatMap must have the same size. Got {} datasets and {} \
             weights.",
            inputs.len(),
            weights.len()
        );
    }
    for (i, (input, weight)) in inputs.iter().zip(weights).enumerate() {
        if weight.is_nan() || *weight <= 0.0 {
            device::invalid!("`weights` must be greater than 0.0. Input {i} has a weight of {weight}");
        }
        if input.spec.dtypes != inputs[0].spec.dtypes {
            device::invalid!(
                "All inputs to WeightedFlatMap must have the same output types. Input {i} has output types: {:?}. \
                 Expected: {:?}.",
                input.spec.dtypes,
                inputs[0].spec.dtypes
            );
        }
        let kind = match input.cardinality {
            INFINITE => "INFINITE",
            UNKNOWN => "UNKNOWN",
            _ => continue,
        };
        device::invalid!("Cardinalities of the inputs must be known. Input {i} has {kind} cardinality.");
    }
    let counts = shares(&inputs.iter().map(|input| input.cardinality).collect::<Vec<_>>(), weights);
    let mut parts = Vec::new();
    for (i, (input, count)) in inputs.iter().zip(&counts).enumerate() {
        if *count > input.cardinality {
            device::invalid!(
                "Input {i} needs to have at least {count} elements. It only has {} elements.",
                input.cardinality
            );
        }
        parts.push(take(input.clone(), *count)?);
    }
    let mut parts = parts.into_iter();
    let Some(first) = parts.next() else { device::invalid!("there is no dataset to choose from") };
    let whole = parts.try_fold(first, concatenate)?;
    let (spec, cardinality, inner) = (whole.spec.clone(), whole.cardinality, whole.clone());
    dataset("WeightedFlatMap", spec, cardinality, &[&whole], move |ctx| inner.iterator(ctx))
}

/// Returns the number of elements to take from each input. The order of the operations is TensorFlow's, because the
/// results are rounded down.
fn shares(cardinalities: &[Cardinality], weights: &[f64]) -> Vec<Cardinality> {
    let weighted = cardinalities.iter().zip(weights).map(|(count, weight)| *count as f64 * weight);
    let Some((least, scarce)) = weighted.enumerate().min_by(|a, b| a.1.total_cmp(&b.1)) else {
        return Vec::new();
    };
    let heaviest = weights.iter().copied().fold(0.0, f64::max);
    weights.iter().map(|weight| (scarce / heaviest * weight / weights[least]) as Cardinality).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the shares with those that TensorFlow 2.21 takes.
    #[test]
    fn shares_are_those_of_tensorflow() {
        assert_eq!(shares(&[10, 20], &[0.3, 0.7]), [4, 9]);
        assert_eq!(shares(&[10, 20, 30], &[0.2, 0.3, 0.5]), [4, 5, 10]);
        assert_eq!(shares(&[100, 100, 100], &[0.5, 0.3, 0.2]), [100, 60, 40]);
        assert_eq!(shares(&[10, 20], &[3.0, 1.0]), [20, 6]);
        assert_eq!(shares(&[10, 20], &[0.7, 0.3])[0], 19);
    }
}
