//! Global shuffling: the elements are read by index, in the order of a permutation of all indices.

use super::shuffle::{SeedGenerator, SeedSource};
use super::state::{ExchangedState, StateExchange};
use super::transform::{batch_preserving, from_state};
use super::{Dataset, Element, Pull, RandomAccess};
use crate::numeric::index_permutation::IndexPermutation;
use device::{Error, Result};
use graph::Code;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of rounds of the permutations.
const ROUNDS: usize = 8;

/// The permutations of shuffled datasets whose elements another shuffled dataset reads by index, by the number of the
/// dataset.
pub(crate) type Orders = Mutex<FxHashMap<u64, Arc<IndexPermutation>>>;

/// Returns the dataset of the input's elements in an order that is new for each iterator, or the same for all.
///
/// # Errors
/// `FailedPrecondition` if the input's elements cannot be read by index; `InvalidArgument` unless their number is known
/// and positive.
pub(crate) fn global_shuffle(input: Arc<Dataset>, seeds: SeedSource) -> Result<Arc<Dataset>> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    if let Some(reason) = &input.order_error {
        let message = format!(
            "`global_shuffle` requires all upstream transformations be compatible with random access. Got: {reason}"
        );
        return Err(Error::new(Code::FailedPrecondition, message));
    }
    if input.cardinality <= 0 {
        device::invalid!(
            "`global_shuffle` requires the input dataset to have a non-empty finite cardinality. Got cardinality {} \
             for dataset {input:?}",
            input.cardinality
        );
    }
    let greatest = input.cardinality as u64 - 1;
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let (inner, whole, seeds) = (input.clone(), input.clone(), Arc::new(seeds));
    let own = seeds.clone();
    let made =
        batch_preserving("GlobalShuffle", input.spec.clone(), input.cardinality, &[&input], move |ctx| {
            let access =
                RandomAccess { ctx: ctx.clone(), pull: Pull::default(), orders: Some(Orders::default()) };
            let state = ShuffledState { next: 0, greatest, key: drawn(&*own.of(ctx)?), order: None, access };
            let input = inner.clone();
            from_state("GlobalShuffle", state, move |state, pull| state.next(&input, pull))
        });
    Ok(made?.with_random_access(move |i, access| {
        let Some(orders) = &access.orders else {
            return Err(Error::unimplemented("Random access is not implemented for GlobalShuffleDataset"));
        };
        let known = orders.lock().get(&number).cloned();
        let order = match known {
            Some(order) => order,
            None => {
                let key = drawn(&*seeds.of(&access.ctx)?);
                let made = Arc::new(IndexPermutation::new(key, greatest, ROUNDS));
                orders.lock().entry(number).or_insert(made).clone()
            }
        };
        whole.element_at(place_of(&order, i, greatest) as i64, access)
    }))
}

/// Returns the key of an order, from two pairs of seeds.
fn drawn(seeds: &SeedGenerator) -> [u32; 3] {
    let (first, second) = (seeds.next(), seeds.next());
    [first.0, first.1, second.0].map(|word| word as u32)
}

/// Returns the index of the input's element for an output. A single element has only one place, outside of which the
/// cipher would search.
fn place_of(order: &IndexPermutation, index: u64, greatest: u64) -> u64 {
    if greatest == 0 { 0 } else { order.place_of(index) }
}

/// The state of an iterator over a globally shuffled dataset.
struct ShuffledState {
    /// Number of elements returned so far.
    next: u64,
    greatest: u64,
    key: [u32; 3],
    /// The permutation of the key; `None` before the first pull.
    order: Option<IndexPermutation>,
    access: RandomAccess,
}

impl ShuffledState {
    fn next(&mut self, input: &Arc<Dataset>, pull: &Pull) -> Result<Option<Element>> {
        if self.next > self.greatest {
            return Ok(None);
        }
        let order = self.order.get_or_insert_with(|| IndexPermutation::new(self.key, self.greatest, ROUNDS));
        let at = place_of(order, self.next, self.greatest);
        self.next += 1;
        self.access.pull = pull.clone();
        input.element_at(at as i64, &self.access).map(Some)
    }
}

impl ExchangedState for ShuffledState {
    fn exchange(&mut self, exchange: &mut StateExchange<'_>) -> Result<()> {
        let is_nested = self.access.orders.as_ref().is_some_and(|orders| !orders.lock().is_empty());
        if is_nested {
            return Err(exchange.unsupported("GlobalShuffle"));
        }
        exchange.value(&mut self.next)?;
        for word in &mut self.key {
            let mut wide = u64::from(*word);
            exchange.value(&mut wide)?;
            *word = wide as u32;
        }
        self.order = None;
        Ok(())
    }
}
