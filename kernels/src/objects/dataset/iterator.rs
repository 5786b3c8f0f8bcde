//! Iterator resources. A request for an element waits without occupying a thread, and is answered by a callback.

use super::model::{PipelineNode, Produced, model};
use super::state::{self, ExternalStatePolicy};
use super::stats::size_of;
use super::{Dataset, DatasetIterator, Element, ElementSpec, IteratorContext, Pull, message, threads};
use bytes::Bytes;
use device::cancel::{Cancellation, Registration};
use device::resource::Resource;
use device::{Error, Result};
use graph::Code;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The callback of a request, called once with the next element, or with `None` at the end.
pub(crate) type Delivery = Box<dyn FnOnce(Result<Option<Element>>) + Send>;

/// The callback of a request, called once with the saved state or the model.
pub(crate) type StateDelivery = Box<dyn FnOnce(Result<Bytes>) + Send>;

/// An iterator that sessions share by name. Requests are served one at a time, in the order of their arrival.
pub(crate) struct IteratorResource {
    /// The spec that every dataset of the iterator must satisfy.
    pub(crate) spec: ElementSpec,
    state: Mutex<IteratorState>,
}

#[derive(Default)]
struct IteratorState {
    current: CurrentIterator,
    /// The dataset of the current iterator.
    dataset: Option<Arc<Dataset>>,
    /// Number of calls of [`IteratorResource::set`]. The serving thread compares it before and after a pull, to drop
    /// the iterator if another one has replaced it.
    generation: u64,
    /// Requests that have not been served.
    waiting: VecDeque<Request>,
    next_request: u64,
    /// True while a thread serves requests.
    is_served: bool,
}

#[derive(Default)]
enum CurrentIterator {
    #[default]
    Uninitialized,
    /// The iterator, while no thread uses it.
    Idle(RootIterator),
    /// The serving thread has taken the iterator.
    InUse,
}

/// An iterator over a dataset, and the context of its pipeline.
struct RootIterator {
    iterator: Box<dyn DatasetIterator>,
    ctx: IteratorContext,
    /// The tree of the dataset.
    tree: Arc<PipelineNode>,
    /// The options of the dataset, a serialized `Options` message.
    options: Bytes,
    produced: Produced,
}

impl RootIterator {
    fn new(dataset: &Dataset, iterator: Box<dyn DatasetIterator>, ctx: IteratorContext) -> RootIterator {
        let (tree, options) = (dataset.tree.clone(), dataset.options.clone());
        RootIterator { iterator, ctx, tree, options, produced: Produced::default() }
    }

    fn next(&mut self, pull: &Pull) -> Result<Option<Element>> {
        let element = self.iterator.next(pull)?;
        if let Some(element) = &element {
            self.produced.elements += 1;
            self.produced.bytes += element.iter().map(size_of).sum::<usize>() as i64;
        }
        Ok(element)
    }

    /// Returns the `ModelProto` message of the pipeline.
    ///
    /// # Errors
    /// `NotFound` if the options of the dataset switch the model off.
    fn model(&self) -> Result<Bytes> {
        if message::is_tuned(&self.options) == Some(false) {
            let message = "Cannot find this iterator's analytical model. Did you disable autotune for the dataset used \
                           to create this iterator?";
            return Err(Error::new(Code::NotFound, message));
        }
        Ok(model(&self.tree, self.produced).into())
    }
}

struct Request {
    id: u64,
    cancellation: Arc<Cancellation>,
    registration: Option<Registration>,
    wanted: Wanted,
}

/// The result that a request waits for.
enum Wanted {
    Element(Delivery),
    State(ExternalStatePolicy, StateDelivery),
    Model(StateDelivery),
}

impl Resource for IteratorResource {
    const KIND: &'static str = "N10tensorflow4data16IteratorResourceE";
}

impl IteratorResource {
    /// Returns an uninitialised iterator for datasets of `spec`.
    pub(crate) fn new(spec: ElementSpec) -> IteratorResource {
        IteratorResource { spec, state: Mutex::default() }
    }

    /// Starts to iterate over `dataset` from its first element.
    ///
    /// # Errors
    /// `InvalidArgument` if the dataset's elements are of other dtypes or shapes.
    pub(crate) fn set(&self, dataset: &Arc<Dataset>) -> Result<()> {
        self.spec.check(&dataset.spec)?;
        let ctx = IteratorContext::root(dataset.deterministic);
        let iterator = dataset.iterator(&ctx)?;
        self.replace(dataset, RootIterator::new(dataset, iterator, ctx));
        Ok(())
    }

    /// Replaces the iterator.
    fn replace(&self, dataset: &Arc<Dataset>, iterator: RootIterator) {
        let old = {
            let mut state = self.state.lock();
            state.generation += 1;
            let dataset = state.dataset.replace(dataset.clone());
            (std::mem::replace(&mut state.current, CurrentIterator::Idle(iterator)), dataset)
        };
        // The old iterator is dropped after the lock is released, because dropping an iterator may take long.
        drop(old);
    }

    /// Replaces the iterator by one over the same dataset, at the position of the saved state. The iterator is
    /// unchanged after an error.
    ///
    /// # Errors
    /// `FailedPrecondition` if the iterator has no dataset; `InvalidArgument` if the state is damaged or of another
    /// dataset; the errors of opening files again.
    pub(crate) fn restore(&self, saved: Bytes, pull: &Pull) -> Result<()> {
        let Some(dataset) = self.state.lock().dataset.clone() else {
            return Err(uninitialized("Restore()", "restoring it"));
        };
        let ctx = IteratorContext::root(dataset.deterministic);
        let iterator = state::restore(saved, &ctx, || dataset.iterator(&ctx), pull)?;
        self.replace(&dataset, RootIterator::new(&dataset, iterator, ctx));
        Ok(())
    }

    /// Requests the state of the iterator. Cancelling `cancellation` withdraws the request.
    pub(crate) fn save(
        self: &Arc<Self>,
        policy: ExternalStatePolicy,
        cancellation: &Arc<Cancellation>,
        deliver: StateDelivery,
    ) {
        self.request(cancellation, Wanted::State(policy, deliver));
    }

    /// Requests the `ModelProto` message of the pipeline. Cancelling `cancellation` withdraws the request.
    pub(crate) fn model(self: &Arc<Self>, cancellation: &Arc<Cancellation>, deliver: StateDelivery) {
        self.request(cancellation, Wanted::Model(deliver));
    }

    /// Requests the next element. Cancelling `cancellation` withdraws the request.
    pub(crate) fn get_next(self: &Arc<Self>, cancellation: &Arc<Cancellation>, deliver: Delivery) {
        self.request(cancellation, Wanted::Element(deliver));
    }

    /// Puts a request into the queue, and starts a thread that serves the queue unless there is one.
    fn request(self: &Arc<Self>, cancellation: &Arc<Cancellation>, wanted: Wanted) {
        let (id, must_serve) = {
            let mut state = self.state.lock();
            let id = state.next_request;
            state.next_request += 1;
            let cancellation = cancellation.clone();
            state.waiting.push_back(Request { id, cancellation, registration: None, wanted });
            (id, !std::mem::replace(&mut state.is_served, true))
        };
        let withdrawn = Arc::downgrade(self);
        let registered = cancellation.register(move |reason| {
            if let Some(request) = withdrawn.upgrade().and_then(|iterator| iterator.withdraw(id)) {
                request.wanted.fail(reason.clone().derived());
            }
        });
        match registered {
            Ok(registration) => {
                let mut state = self.state.lock();
                match state.waiting.iter_mut().find(|request| request.id == id) {
                    Some(request) => request.registration = Some(registration),
                    // The serving thread has already taken the request out of the queue.
                    None => {
                        drop(state);
                        cancellation.deregister(registration);
                    }
                }
            }
            Err(reason) => {
                if let Some(request) = self.withdraw(id) {
                    request.wanted.fail(reason);
                }
            }
        }
        if must_serve {
            let served = self.clone();
            if let Err(error) = threads::spawn(move || served.serve()) {
                let refused = {
                    let mut state = self.state.lock();
                    state.is_served = false;
                    std::mem::take(&mut state.waiting)
                };
                for request in refused {
                    request.refuse(error.clone());
                }
            }
        }
    }

    /// Removes a waiting request from the queue; returns `None` if the serving thread has already taken it.
    fn withdraw(&self, id: u64) -> Option<Request> {
        let mut state = self.state.lock();
        let at = state.waiting.iter().position(|request| request.id == id)?;
        state.waiting.remove(at)
    }

    /// Runs on the serving thread: answers requests until none is left.
    fn serve(&self) {
        loop {
            let (request, iterator, generation) = {
                let mut state = self.state.lock();
                let Some(request) = state.waiting.pop_front() else {
                    state.is_served = false;
                    return;
                };
                let iterator = match std::mem::take(&mut state.current) {
                    CurrentIterator::Idle(iterator) => {
                        state.current = CurrentIterator::InUse;
                        Some(iterator)
                    }
                    other => {
                        state.current = other;
                        None
                    }
                };
                (request, iterator, state.generation)
            };
            let Some(mut iterator) = iterator else {
                let error = request.wanted.uninitialized();
                request.refuse(error);
                continue;
            };
            let answer = request.serve(&mut iterator);
            let old = {
                let mut state = self.state.lock();
                if state.generation == generation {
                    state.current = CurrentIterator::Idle(iterator);
                    None
                } else {
                    Some(iterator)
                }
            };
            drop(old);
            answer();
        }
    }
}

impl Request {
    /// Computes the result, and returns a function that delivers it.
    fn serve(self, root: &mut RootIterator) -> Box<dyn FnOnce()> {
        let pull = Pull { cancellation: self.cancellation.clone() };
        let panicked = |_| Err(Error::internal("an iterator panicked"));
        let Request { cancellation, registration, wanted, .. } = self;
        let end = move || {
            if let Some(registration) = registration {
                cancellation.deregister(registration);
            }
        };
        match wanted {
            Wanted::Element(deliver) => {
                let pulled = catch_unwind(AssertUnwindSafe(|| root.next(&pull)))
                    .unwrap_or_else(|_| Err(Error::internal("an iterator panicked")));
                Box::new(move || {
                    end();
                    deliver(pulled);
                })
            }
            Wanted::State(policy, deliver) => {
                let save = || state::save(&mut *root.iterator, &root.ctx, policy, &pull);
                let saved = catch_unwind(AssertUnwindSafe(save)).unwrap_or_else(panicked);
                Box::new(move || {
                    end();
                    deliver(saved);
                })
            }
            Wanted::Model(deliver) => {
                let model = root.model();
                Box::new(move || {
                    end();
                    deliver(model);
                })
            }
        }
    }

    /// Ends the request with an error.
    fn refuse(self, error: Error) {
        if let Some(registration) = self.registration {
            self.cancellation.deregister(registration);
        }
        self.wanted.fail(error);
    }
}

impl Wanted {
    fn fail(self, error: Error) {
        match self {
            Wanted::Element(deliver) => deliver(Err(error)),
            Wanted::State(_, deliver) | Wanted::Model(deliver) => deliver(Err(error)),
        }
    }

    /// Returns the error of a request to an iterator without a dataset.
    fn uninitialized(&self) -> Error {
        match self {
            Wanted::Element(_) => uninitialized("GetNext()", "getting the next element"),
            Wanted::State(..) => uninitialized("Save()", "saving it"),
            Wanted::Model(_) => uninitialized("GetModelProto()", "getting the model proto"),
        }
    }
}

fn uninitialized(call: &str, purpose: &str) -> Error {
    let message = format!(
        "{call} failed because the iterator has not been initialized. Ensure that you have run the initializer \
         operation for this iterator before {purpose}."
    );
    Error::new(Code::FailedPrecondition, message)
}

impl fmt::Debug for IteratorResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IteratorResource({:?})", self.spec.dtypes)
    }
}
