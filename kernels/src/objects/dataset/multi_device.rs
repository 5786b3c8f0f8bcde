//! The multi-device iterator: deals the elements of one dataset to several devices (shards) in round-robin order.

use super::prefetch_iterator::{BufferLimit, Monitor, PrefetchIterator};
use super::{Dataset, DatasetIterator, Element, ElementSpec, IteratorContext, Pull};
use device::resource::Resource;
use device::{Error, Result};
use graph::Code;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

/// An iterator resource, shared by name between sessions, that deals elements to several shards.
pub(crate) struct MultiDeviceIterator {
    /// The spec that every dataset of the iterator must satisfy.
    pub(crate) spec: ElementSpec,
    shards: usize,
    current: Mutex<CurrentDataset>,
}

/// The dataset that the iterator was last initialised with.
#[derive(Default)]
struct CurrentDataset {
    /// Number of initialisations, by which a request for the current dataset differs from requests for earlier
    /// datasets.
    incarnation: i64,
    deal: Option<Arc<Monitor<DealState>>>,
}

/// Elements dealt to the shards, and the iterator over the elements not yet dealt.
struct DealState {
    /// For each shard, the elements that have been dealt to it but not taken; an error is stored at the position where
    /// it occurred.
    untaken: Vec<VecDeque<Result<Element>>>,
    /// Maximum number of dealt but not taken elements per shard.
    max: usize,
    /// The shard that gets the next dealt element.
    next: usize,
    /// The iterator over the elements not yet dealt; `None` while a thread pulls an element from the iterator.
    rest: Option<Box<dyn DatasetIterator>>,
    /// Set when the dataset has ended or was replaced.
    is_over: bool,
}

impl Resource for MultiDeviceIterator {
    const KIND: &'static str = "N10tensorflow4data12_GLOBAL__N_119MultiDeviceIteratorE";
}

impl fmt::Debug for MultiDeviceIterator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MultiDeviceIterator({:?} for {})", self.spec.dtypes, self.shards)
    }
}

impl MultiDeviceIterator {
    /// Returns an uninitialised iterator for `shards` shards.
    pub(crate) fn new(spec: ElementSpec, shards: usize) -> MultiDeviceIterator {
        MultiDeviceIterator { spec, shards, current: Mutex::default() }
    }

    /// Starts to deal the elements of `dataset`, with at most `max` untaken elements per shard. Returns the incarnation
    /// id, which later requests for elements of `dataset` must pass.
    ///
    /// # Errors
    /// `InvalidArgument` if the dataset's elements are of other dtypes or shapes.
    pub(crate) fn set(&self, dataset: &Dataset, max: i64) -> Result<i64> {
        self.spec.check(&dataset.spec)?;
        let max = usize::try_from(max).unwrap_or(0).max(1);
        let elements = dataset.iterator(&IteratorContext::root(dataset.deterministic))?;
        let rest = PrefetchIterator::new(elements, BufferLimit::Fixed(self.shards.saturating_mul(max)));
        let untaken = (0..self.shards).map(|_| VecDeque::new()).collect();
        let deal = DealState { untaken, max, next: 0, rest: Some(Box::new(rest)), is_over: false };
        let mut current = self.current.lock();
        current.incarnation += 1;
        let (old, incarnation) = (current.deal.replace(Monitor::new(deal)), current.incarnation);
        drop(current);
        // Threads that wait for an element of the replaced dataset get its end, `None`.
        if let Some(old) = old {
            old.change(|deal| deal.is_over = true);
        }
        Ok(incarnation)
    }

    /// Waits for a shard's next element; returns `None` after the shard's last element. Elements of other shards that
    /// come earlier in the dataset are pulled and dealt during the wait.
    ///
    /// # Errors
    /// `InvalidArgument` for a shard that does not exist, or for the incarnation id of a replaced dataset.
    pub(crate) fn next(&self, shard: i32, incarnation: i64, pull: &Pull) -> Result<Option<Element>> {
        let shard = match usize::try_from(shard) {
            Ok(known) if known < self.shards => known,
            _ => device::invalid!("shard_num must be in [0, {}), got {shard}", self.shards),
        };
        let deal = self.deal(incarnation)?;
        loop {
            let mut rest = match deal.wait(&pull.cancellation, |deal| deal.next_action(shard))? {
                NextAction::Return(element) => return element.map(Some),
                NextAction::End => return Ok(None),
                NextAction::PullNext(rest) => rest,
            };
            let pulled = rest.next(pull);
            let is_cancelled = pull.check();
            deal.change(|deal| {
                deal.rest = Some(rest);
                // The error of a cancelled pull is not dealt to a shard, because the pull ended before it took an
                // element.
                if is_cancelled.is_ok() || pulled.is_ok() {
                    deal.deal(pulled);
                }
            });
            is_cancelled?;
        }
    }

    fn deal(&self, incarnation: i64) -> Result<Arc<Monitor<DealState>>> {
        let current = self.current.lock();
        let Some(deal) = &current.deal else {
            return Err(Error::new(
                Code::FailedPrecondition,
                "a MultiDeviceIterator was asked for an element before MultiDeviceIteratorInit had run",
            ));
        };
        if incarnation != current.incarnation {
            device::invalid!(
                "Invalid incarnation id. Provided: {incarnation}; Expected: {}",
                current.incarnation
            );
        }
        Ok(deal.clone())
    }
}

/// The next action of a thread that waits for a shard's element.
enum NextAction {
    /// Return the shard's next element.
    Return(Result<Element>),
    /// Report the end of the dataset.
    End,
    /// Pull an element from the given iterator and deal it to the next shard.
    PullNext(Box<dyn DatasetIterator>),
}

impl DealState {
    fn next_action(&mut self, shard: usize) -> Option<NextAction> {
        if let Some(element) = self.untaken[shard].pop_front() {
            return Some(NextAction::Return(element));
        }
        if self.is_over {
            return Some(NextAction::End);
        }
        match self.untaken[self.next].len() < self.max {
            true => self.rest.take().map(NextAction::PullNext),
            false => None,
        }
    }

    fn deal(&mut self, pulled: Result<Option<Element>>) {
        match pulled.transpose() {
            None => self.is_over = true,
            Some(element) => {
                self.untaken[self.next].push_back(element);
                self.next = (self.next + 1) % self.untaken.len();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::source::Range;
    use super::*;
    use device::cancel::Cancellation;
    use graph::DType;
    use std::thread;
    use std::time::{Duration, Instant};

    fn numbers(stop: i64) -> Result<Arc<Dataset>> {
        Range::dataset(0, stop, 1, DType::Int64)
    }

    fn two_shards() -> MultiDeviceIterator {
        MultiDeviceIterator::new(ElementSpec::scalars(&[DType::Int64]), 2)
    }

    fn next(iterator: &MultiDeviceIterator, shard: i32, incarnation: i64) -> Result<Option<i64>> {
        let element = iterator.next(shard, incarnation, &Pull::default())?;
        Ok(element.map(|element| element[0].item::<i64>()).transpose()?)
    }

    #[test]
    fn elements_are_dealt_round_robin_until_the_end() -> Result<()> {
        let iterator = two_shards();
        assert_eq!(next(&iterator, 0, 0).err().map(|e| e.code()), Some(Code::FailedPrecondition));
        assert_eq!(iterator.set(&*numbers(7)?, 2)?, 1);
        let taken: Vec<_> = (0..10).map(|i| next(&iterator, i % 2, 1)).collect::<Result<_>>()?;
        assert_eq!(taken[..7], [0, 1, 2, 3, 4, 5, 6].map(Some));
        assert_eq!(taken[7..], [None; 3]);
        // The second dataset replaces the first: requests for elements of the first dataset fail.
        assert_eq!(iterator.set(&*numbers(2)?, 2)?, 2);
        let error = next(&iterator, 0, 1).err().map(|e| e.to_string()).unwrap_or_default();
        assert!(error.contains("Invalid incarnation id. Provided: 1; Expected: 2"), "{error}");
        assert_eq!(next(&iterator, 1, 2)?, Some(1));
        assert!([-1, 2].iter().all(|&shard| next(&iterator, shard, 2).is_err()));
        Ok(())
    }

    #[test]
    fn a_shard_waits_for_the_other_shards_until_cancelled() -> Result<()> {
        let iterator = Arc::new(two_shards());
        iterator.set(&*numbers(9)?, 1)?;
        assert_eq!((next(&iterator, 0, 1)?, next(&iterator, 0, 1)?), (Some(0), Some(2)));
        let pull = Pull { cancellation: Arc::new(Cancellation::new()) };
        let (ahead, own) = (iterator.clone(), pull.clone());
        let waits = thread::spawn(move || ahead.next(0, 1, &own));
        let deadline = Instant::now() + Duration::from_millis(20);
        while Instant::now() < deadline {
            assert!(!waits.is_finished(), "an element of the other shard was passed by");
            thread::yield_now();
        }
        pull.cancellation.cancel(Error::new(Code::Cancelled, "enough"));
        let ended = waits.join().map_err(|_| Error::internal("the thread panicked"))?;
        assert_eq!(ended.err().map(|e| e.code()), Some(Code::Cancelled));
        // The cancelled request has lost no element.
        assert_eq!((next(&iterator, 1, 1)?, next(&iterator, 0, 1)?), (Some(1), Some(4)));
        Ok(())
    }
}
