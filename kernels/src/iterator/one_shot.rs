//! One-shot iterators, over a dataset that a function makes. The function runs once per kernel, at the first step
//! that needs the iterator.

use super::handle::{IteratorName, spec};
use super::{KIND, unset};
use crate::objects::dataset::iterator::IteratorResource;
use crate::objects::dataset::{DatasetVariant, ElementSpec, threads};
use bytes::Bytes;
use device::Device;
use device::cancel::{Cancellation, Registration};
use device::function::Function;
use device::kernel::{AsyncContext, Kernel, KernelInit, Step};
use device::rendezvous::LocalRendezvous;
use device::value::Value;
use device::{Error, Result};
use graph::{Code, ResourceHandle, Tensor};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

/// A one-shot iterator, with the function that makes the iterator's dataset.
struct OneShot {
    name: IteratorName<IteratorResource>,
    spec: ElementSpec,
    factory: Arc<dyn Function>,
    device: Arc<Device>,
    state: Mutex<OneShotState>,
}

/// The progress of the creation of a one-shot iterator.
#[derive(Default)]
enum OneShotState {
    /// No step has requested the iterator yet, or its creation failed.
    #[default]
    NotCreated,
    /// The function that makes the dataset is running.
    PendingCreation(PendingCreation),
    /// The iterator exists; the contained handle refers to it.
    Created(ResourceHandle),
}

/// The steps that wait for the iterator to be created. The creation is cancelled when all of these steps are cancelled.
#[derive(Default)]
struct PendingCreation {
    waiting: Vec<Waiter>,
    next: u64,
    cancellation: Arc<Cancellation>,
}

/// A step that waits for the iterator to be created.
struct Waiter {
    id: u64,
    ctx: AsyncContext,
    registration: Option<Registration>,
}

/// Makes the kernel of `OneShotIterator`.
pub(super) fn iterator(init: &KernelInit<'_>) -> Result<Kernel> {
    let factory = init.function("dataset_factory")?;
    if factory.return_types().len() != 1 || !factory.arg_types().is_empty() {
        device::invalid!(
            "The `dataset_factory` must take no arguments and return a single scalar of dtype DT_VARIANT."
        );
    }
    if !init.attr::<Bytes>("shared_name")?.is_empty() {
        device::invalid!("OneShotIteratorOp does not currently support the 'shared_name' attr.");
    }
    let one_shot = Arc::new(OneShot {
        name: IteratorName::of(init, KIND)?,
        spec: spec(init)?,
        factory,
        device: init.device.clone(),
        state: Mutex::default(),
    });
    Kernel::asynchronous(move |ctx| one_shot.request(ctx))
}

impl OneShot {
    /// Completes a kernel with the handle, now or when the iterator has been created; starts the creation if
    /// needed.
    fn request(self: &Arc<Self>, ctx: AsyncContext) {
        let outer = ctx.step.cancellation.clone();
        let (id, to_start) = {
            let mut state = self.state.lock();
            if let OneShotState::Created(handle) = &*state {
                let handle = handle.clone();
                drop(state);
                return complete(ctx, Ok(handle));
            }
            let is_first = !matches!(*state, OneShotState::PendingCreation(_));
            if is_first {
                *state = OneShotState::PendingCreation(PendingCreation::default());
            }
            let OneShotState::PendingCreation(pending) = &mut *state else { return };
            let id = pending.next;
            pending.next += 1;
            pending.waiting.push(Waiter { id, ctx, registration: None });
            (id, is_first.then(|| pending.cancellation.clone()))
        };
        let (weak, creation) = (Arc::downgrade(self), to_start);
        let registered = outer.register(move |reason| {
            if let Some(waiter) = weak.upgrade().and_then(|one_shot| one_shot.withdraw(id)) {
                waiter.ctx.done(Err(reason.clone().derived()));
            }
        });
        match registered {
            Ok(registration) => {
                let mut state = self.state.lock();
                let waiter = match &mut *state {
                    OneShotState::PendingCreation(pending) => {
                        pending.waiting.iter_mut().find(|waiter| waiter.id == id)
                    }
                    _ => None,
                };
                match waiter {
                    Some(waiter) => waiter.registration = Some(registration),
                    None => {
                        drop(state);
                        outer.deregister(registration);
                    }
                }
            }
            Err(reason) => {
                if let Some(waiter) = self.withdraw(id) {
                    waiter.ctx.done(Err(reason));
                }
            }
        }
        if let Some(cancellation) = creation {
            self.start(&cancellation);
        }
    }

    /// Removes and returns the waiter with number `id`, whose registration or step was cancelled. Cancels the creation
    /// if no step waits.
    fn withdraw(&self, id: u64) -> Option<Waiter> {
        let mut state = self.state.lock();
        let OneShotState::PendingCreation(pending) = &mut *state else { return None };
        let at = pending.waiting.iter().position(|waiter| waiter.id == id)?;
        let waiter = pending.waiting.remove(at);
        let abandoned = pending.waiting.is_empty().then(|| pending.cancellation.clone());
        drop(state);
        if let Some(cancellation) = abandoned {
            cancellation.cancel(Error::new(Code::Cancelled, "no step waits for the iterator any more"));
        }
        Some(waiter)
    }

    /// Calls the function that makes the dataset, in a separate step.
    fn start(self: &Arc<Self>, cancellation: &Arc<Cancellation>) {
        // The function has a step of its own, because several steps may wait for the iterator.
        let step = Step::new(0, Arc::new(LocalRendezvous::new()), cancellation.clone());
        // The function returns on a compute thread, which must not be blocked by the creation of iterators.
        let this = self.clone();
        let done = move |result: Result<SmallVec<[Value; 4]>>| {
            let one_shot = this.clone();
            let started = threads::spawn(move || {
                one_shot.finish(result.and_then(|outputs| one_shot.make(&outputs)));
            });
            if let Err(error) = started {
                this.finish(Err(error));
            }
        };
        self.factory.call(&Arc::new(step), SmallVec::new(), Box::new(done));
    }

    /// Creates the iterator over the dataset that the function returned.
    fn make(&self, outputs: &[Value]) -> Result<ResourceHandle> {
        let [Value::Host(dataset)] = outputs else {
            return Err(Error::internal("the factory of a dataset returned no tensor"));
        };
        let dataset = DatasetVariant::of(dataset)?;
        let (iterator, handle) = self.name.iterator(&self.device, &self.spec, || unset(&self.spec))?;
        iterator.set(&dataset)?;
        Ok(handle)
    }

    /// Completes all waiting kernels with the handle or the error; after an error, the next request creates the
    /// iterator again.
    fn finish(self: &Arc<Self>, result: Result<ResourceHandle>) {
        let waiting = {
            let mut state = self.state.lock();
            if let OneShotState::PendingCreation(pending) = &mut *state
                && result.is_err()
                && pending.cancellation.is_cancelled()
                && !pending.waiting.is_empty()
            {
                // The creation was cancelled because all waiting steps had withdrawn. Other steps have begun to wait
                // since, so the creation starts again.
                pending.cancellation = Arc::default();
                let cancellation = pending.cancellation.clone();
                drop(state);
                return self.start(&cancellation);
            }
            let next = match &result {
                Ok(handle) => OneShotState::Created(handle.clone()),
                Err(_) => OneShotState::NotCreated,
            };
            match std::mem::replace(&mut *state, next) {
                OneShotState::PendingCreation(pending) => pending.waiting,
                _ => Vec::new(),
            }
        };
        for waiter in waiting {
            if let Some(registration) = waiter.registration {
                waiter.ctx.step.cancellation.deregister(registration);
            }
            complete(waiter.ctx, result.clone());
        }
    }
}

/// Completes a kernel with the handle or an error.
fn complete(ctx: AsyncContext, result: Result<ResourceHandle>) {
    ctx.done(result.map(|handle| smallvec![Tensor::resource(handle).into()]));
}
