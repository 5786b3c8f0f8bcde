//! The data that iterators get when they are made (their pipeline and their position in it) and in each pull (the
//! cancellation).

use super::function::ElementFunction;
use super::state::{ExternalStatePolicy, StateExchange};
use super::stats::StatsScope;
use bytes::Bytes;
use device::Result;
use device::cancel::Cancellation;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::{Arc, Weak};

/// The state shared by all iterators under one root iterator: function instances, whose kernels keep state between
/// elements, and through [`PerPipeline`] the state that datasets keep between epochs. It is dropped with the root
/// iterator.
#[derive(Debug, Default)]
pub(crate) struct Pipeline {
    functions: Mutex<FxHashMap<usize, FunctionEntry>>,
    shared: Mutex<SharedStates>,
}

/// The states of a pipeline that outlive an iterator: seed generators and caches. They are saved beside the iterators,
/// because the iterator that used a state may have ended.
#[derive(Default)]
struct SharedStates {
    /// The states by place, a text of the prefix and path of the dataset that owns the state; dropped states are
    /// removed from time to time.
    kept: FxHashMap<String, Weak<SharedState>>,
    /// The number of entries in `kept` at which dropped states are removed.
    limit: usize,
    /// The saved states, by place, of datasets that have not been iterated since the restore.
    saved: FxHashMap<String, Bytes>,
    /// True while the iterators are restored; saved states are then kept, because they are set a second time at the
    /// end.
    is_restoring: bool,
}

/// A state that outlives an iterator.
pub(crate) type SharedState = dyn SharedExchange;

/// A shared value that a [`StateExchange`] saves and restores.
pub(crate) trait SharedExchange: Send + Sync {
    /// Like [`exchange`](super::state::ExchangedState::exchange), for a value that is shared.
    fn exchange_shared(&self, exchange: &mut StateExchange<'_>) -> Result<()>;
}

impl fmt::Debug for SharedStates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedStates({} kept, {} saved)", self.kept.len(), self.saved.len())
    }
}

/// A function and its instance in a pipeline. The entry keeps the function alive, because its address is the map's key
/// and must not be reused by another function.
type FunctionEntry = (Arc<dyn ElementFunction>, Arc<dyn ElementFunction>);

impl Pipeline {
    /// Returns this pipeline's instance of `function`.
    pub(crate) fn instance(&self, function: &Arc<dyn ElementFunction>) -> Result<Arc<dyn ElementFunction>> {
        let address = Arc::as_ptr(function).cast::<()>() as usize;
        if let Some((_, instance)) = self.functions.lock().get(&address) {
            return Ok(instance.clone());
        }
        // The instance is created without the lock, because creating it may take long and other iterators of the
        // pipeline need the lock. If two threads create an instance, both use the instance that was stored first.
        let made = function.instance()?;
        let mut functions = self.functions.lock();
        Ok(functions.entry(address).or_insert_with(|| (function.clone(), made)).1.clone())
    }

    /// Makes `state` part of the pipeline's saved state. If a state was saved at the same place and has not been set
    /// yet, sets it.
    ///
    /// # Errors
    /// `InvalidArgument` if the saved state is of another dataset.
    pub(crate) fn share(&self, ctx: &IteratorContext, state: Arc<SharedState>) -> Result<()> {
        let place = format!("{}{:?}", ctx.prefix(), ctx.path());
        let saved = {
            let mut shared = self.shared.lock();
            let known = shared.kept.get(&place).is_some_and(|kept| is_same(kept, &state));
            if known {
                return Ok(());
            }
            if shared.kept.len() >= shared.limit {
                shared.kept.retain(|_, kept| kept.strong_count() > 0);
                shared.limit = (shared.kept.len() * 2).max(16);
            }
            shared.kept.insert(place.clone(), Arc::downgrade(&state));
            if shared.is_restoring { shared.saved.get(&place).cloned() } else { shared.saved.remove(&place) }
        };
        match saved {
            Some(bytes) => restore_shared(&*state, bytes, &Pull::default()),
            None => Ok(()),
        }
    }

    /// Returns the saved form of all shared states, with their places, in the order of the places.
    ///
    /// # Errors
    /// The errors of [`SharedExchange::exchange_shared`].
    pub(super) fn saved_states(&self, pull: &Pull) -> Result<Vec<(Bytes, Bytes)>> {
        let (kept, saved) = {
            let shared = self.shared.lock();
            let kept = shared.kept.iter().filter_map(|(place, kept)| Some((place.clone(), kept.upgrade()?)));
            (kept.collect::<Vec<_>>(), shared.saved.clone())
        };
        let mut all = saved;
        for (place, state) in kept {
            let mut exchange = StateExchange::save(pull, ExternalStatePolicy::Ignore);
            state.exchange_shared(&mut exchange)?;
            all.insert(place, exchange.finish()?);
        }
        let mut all: Vec<(Bytes, Bytes)> =
            all.into_iter().map(|(place, bytes)| (Bytes::from(place), bytes)).collect();
        all.sort();
        Ok(all)
    }

    /// Takes saved states, which are set when their datasets are iterated and again in [`Pipeline::end_restore`].
    pub(super) fn begin_restore(&self, saved: Vec<(Bytes, Bytes)>) {
        let place = |bytes: Bytes| String::from_utf8_lossy(&bytes).into_owned();
        let mut shared = self.shared.lock();
        shared.saved = saved.into_iter().map(|(at, bytes)| (place(at), bytes)).collect();
        shared.is_restoring = true;
    }

    /// Sets the saved states of the datasets that are iterated now.
    ///
    /// # Errors
    /// `InvalidArgument` if a saved state is of another dataset.
    pub(super) fn end_restore(&self, pull: &Pull) -> Result<()> {
        let found: Vec<(Arc<SharedState>, Bytes)> = {
            let mut shared = self.shared.lock();
            shared.is_restoring = false;
            let SharedStates { kept, saved, .. } = &mut *shared;
            let found = kept.iter().filter_map(|(place, kept)| {
                let kept = kept.upgrade()?;
                Some((kept, saved.remove(place)?))
            });
            found.collect()
        };
        found.into_iter().try_for_each(|(state, bytes)| restore_shared(&*state, bytes, pull))
    }
}

/// Returns whether two pointers are to one state.
fn is_same(kept: &Weak<SharedState>, state: &Arc<SharedState>) -> bool {
    std::ptr::addr_eq(kept.as_ptr(), Arc::as_ptr(state))
}

/// Sets a shared state to its saved form.
fn restore_shared(state: &SharedState, bytes: Bytes, pull: &Pull) -> Result<()> {
    let mut exchange = StateExchange::restore(pull, bytes)?;
    state.exchange_shared(&mut exchange)?;
    exchange.finish().map(|_| ())
}

/// A separate value of a dataset for each pipeline in which the dataset is iterated.
pub(crate) struct PerPipeline<T>(Mutex<Vec<(Weak<Pipeline>, Arc<T>)>>);

impl<T> Default for PerPipeline<T> {
    fn default() -> PerPipeline<T> {
        PerPipeline(Mutex::default())
    }
}

impl<T> PerPipeline<T> {
    /// Returns the pipeline's value, created by `make` at the first call. Values of dropped pipelines are removed.
    pub(crate) fn get(&self, pipeline: &Arc<Pipeline>, make: impl FnOnce() -> T) -> Arc<T> {
        let mut entries = self.0.lock();
        if let Some((_, found)) =
            entries.iter().find(|(of, _)| std::ptr::eq(of.as_ptr(), Arc::as_ptr(pipeline)))
        {
            return found.clone();
        }
        entries.retain(|(of, _)| of.strong_count() > 0);
        let made = Arc::new(make());
        entries.push((Arc::downgrade(pipeline), made.clone()));
        made
    }
}

impl<T> fmt::Debug for PerPipeline<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PerPipeline({})", self.0.lock().len())
    }
}

/// The path from the root of the pipeline to a dataset: the input index taken at each dataset that has several
/// inputs.
pub(crate) type DatasetPath = Arc<[usize]>;

/// The context in which an iterator is made: its pipeline and the chain of iterators that contain it.
#[derive(Clone, Debug)]
pub(crate) struct IteratorContext {
    pipeline: Arc<Pipeline>,
    /// Names of the containing iterators, joined by `::`, for messages.
    prefix: String,
    /// For each containing dataset with several inputs, the index of the input in which the iterator is, outermost
    /// first.
    path: DatasetPath,
    /// True inside a dataset that a function returned for an element; `path` does not distinguish the datasets that one
    /// function returned.
    is_in_element: bool,
    /// Number of iterators that contain the iterator.
    depth: usize,
    /// True if parallel transformations keep the order of elements; a dataset may override the value.
    pub(crate) deterministic: bool,
    /// The aggregator in which the datasets record statistics; `None` if they record none.
    stats: Option<Arc<StatsScope>>,
}

impl IteratorContext {
    /// Returns the context of a root iterator in a new pipeline.
    pub(crate) fn root(deterministic: Option<bool>) -> IteratorContext {
        IteratorContext {
            pipeline: Arc::default(),
            prefix: "Iterator::Root".to_owned(),
            path: Arc::default(),
            is_in_element: false,
            depth: 0,
            deterministic: deterministic.unwrap_or(true),
            stats: None,
        }
    }

    /// Returns the context in which datasets record statistics in `stats`.
    pub(crate) fn recording(&self, stats: Arc<StatsScope>) -> IteratorContext {
        IteratorContext { stats: Some(stats), ..self.clone() }
    }

    /// Returns the aggregator in which the datasets record statistics.
    pub(crate) fn stats(&self) -> Option<&Arc<StatsScope>> {
        self.stats.as_ref()
    }

    /// Returns the context of the inputs of an iterator over a dataset named `name`.
    pub(crate) fn within(&self, name: &str) -> IteratorContext {
        IteratorContext { prefix: format!("{}::{name}", self.prefix), depth: self.depth + 1, ..self.clone() }
    }

    /// Returns the context of input `i` of a dataset with several inputs.
    pub(crate) fn input(&self, i: usize) -> IteratorContext {
        if self.is_in_element {
            return self.clone();
        }
        IteratorContext { path: self.path.iter().copied().chain([i]).collect(), ..self.clone() }
    }

    /// Returns the context of the dataset that a function returned for an element; `at` names the element in messages,
    /// for example by its index.
    pub(crate) fn element(&self, at: impl fmt::Display) -> IteratorContext {
        IteratorContext { is_in_element: true, ..self.within(&format!("[{at}]")) }
    }

    /// Returns the path from the root of the pipeline to the dataset.
    pub(crate) fn path(&self) -> &DatasetPath {
        &self.path
    }

    /// Returns the pipeline to which the iterator belongs.
    pub(crate) fn pipeline(&self) -> &Arc<Pipeline> {
        &self.pipeline
    }

    /// Returns the names of the containing iterators for messages.
    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the number of iterators that contain the iterator.
    pub(crate) fn depth(&self) -> usize {
        self.depth
    }
}

/// A request for the next element of an iterator, which `cancellation` can end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pull {
    pub(crate) cancellation: Arc<Cancellation>,
}

impl Pull {
    /// Returns the reason of the cancellation as an error if the pull is cancelled. Iterators that consume many input
    /// elements per returned element call `check` before each input element.
    pub(crate) fn check(&self) -> Result<()> {
        self.cancellation.check()
    }
}
