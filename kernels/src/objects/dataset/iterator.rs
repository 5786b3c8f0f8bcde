//! Iterator resources. A request for an element waits without occupying a thread, and is answered by a callback.

use super::{Dataset, DatasetIterator, Element, ElementSpec, IteratorContext, Pull, threads};
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

/// An iterator that sessions share by name. Requests are served one at a time, in the order of their arrival.
pub(crate) struct IteratorResource {
    /// The spec that every dataset of the iterator must satisfy.
    pub(crate) spec: ElementSpec,
    state: Mutex<IteratorState>,
}

#[derive(Default)]
struct IteratorState {
    current: CurrentIterator,
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
    Idle(Box<dyn DatasetIterator>),
    /// The serving thread has taken the iterator.
    InUse,
}

struct Request {
    id: u64,
    cancellation: Arc<Cancellation>,
    registration: Option<Registration>,
    deliver: Delivery,
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
    pub(crate) fn set(&self, dataset: &Dataset) -> Result<()> {
        self.spec.check(&dataset.spec)?;
        let iterator = dataset.iterator(&IteratorContext::root(dataset.deterministic))?;
        let old = {
            let mut state = self.state.lock();
            state.generation += 1;
            std::mem::replace(&mut state.current, CurrentIterator::Idle(iterator))
        };
        // The old iterator is dropped after the lock is released, because dropping an iterator may take long.
        drop(old);
        Ok(())
    }

    /// Requests the next element. Cancelling `cancellation` withdraws the request.
    pub(crate) fn get_next(self: &Arc<Self>, cancellation: &Arc<Cancellation>, deliver: Delivery) {
        let (id, must_serve) = {
            let mut state = self.state.lock();
            let id = state.next_request;
            state.next_request += 1;
            let cancellation = cancellation.clone();
            state.waiting.push_back(Request { id, cancellation, registration: None, deliver });
            (id, !std::mem::replace(&mut state.is_served, true))
        };
        let withdrawn = Arc::downgrade(self);
        let registered = cancellation.register(move |reason| {
            if let Some(request) = withdrawn.upgrade().and_then(|iterator| iterator.withdraw(id)) {
                (request.deliver)(Err(reason.clone().derived()));
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
                    (request.deliver)(Err(reason));
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
                    request.answer(Err(error.clone()));
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
                request.answer(Err(uninitialized()));
                continue;
            };
            let pull = Pull { cancellation: request.cancellation.clone() };
            let pulled = catch_unwind(AssertUnwindSafe(|| iterator.next(&pull)));
            let pulled = pulled.unwrap_or_else(|_| Err(Error::internal("an iterator panicked")));
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
            request.answer(pulled);
        }
    }
}

impl Request {
    fn answer(self, result: Result<Option<Element>>) {
        if let Some(registration) = self.registration {
            self.cancellation.deregister(registration);
        }
        (self.deliver)(result);
    }
}

fn uninitialized() -> Error {
    Error::new(
        Code::FailedPrecondition,
        "GetNext() failed because the iterator has not been initialized. Ensure that you have run the initializer \
         operation for this iterator before getting the next element.",
    )
}

impl fmt::Debug for IteratorResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "IteratorResource({:?})", self.spec.dtypes)
    }
}
