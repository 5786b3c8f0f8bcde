//! Iterators over what a function makes, once: at the first step that needs them, in a session that keeps the
//! kernel.

use super::handle::{Name, spec};
use super::{KIND, unset};
use crate::cancel::{Cancellation, Registration};
use crate::dataset::iterator::IteratorResource;
use crate::dataset::{DatasetVariant, ElementSpec, threads};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::function::Function;
use crate::kernel::{AsyncContext, Kernel, KernelInit, Step};
use crate::rendezvous::LocalRendezvous;
use crate::value::Value;
use graph::{Code, ResourceHandle, Tensor};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::sync::Arc;

struct OneShot {
    name: Name<IteratorResource>,
    spec: ElementSpec,
    factory: Arc<dyn Function>,
    device: Arc<Device>,
    state: Mutex<State>,
}

#[derive(Default)]
enum State {
    /// Nobody has asked yet, or making it has failed for who did.
    #[default]
    Unmade,
    Making(Making),
    Made(ResourceHandle),
}

/// Who waits while the iterator is made. Without anybody left the making is cancelled.
#[derive(Default)]
struct Making {
    waiting: Vec<Waiter>,
    next: u64,
    cancellation: Arc<Cancellation>,
}

struct Waiter {
    id: u64,
    ctx: AsyncContext,
    registration: Option<Registration>,
}

pub(super) fn iterator(init: &KernelInit<'_>) -> Result<Kernel> {
    let factory = init.function("dataset_factory")?;
    if factory.return_types().len() != 1 || !factory.arg_types().is_empty() {
        crate::invalid!(
            "The `dataset_factory` must take no arguments and return a single scalar of dtype DT_VARIANT."
        );
    }
    let one_shot = Arc::new(OneShot {
        name: Name::of(init, KIND)?,
        spec: spec(init)?,
        factory,
        device: init.device.clone(),
        state: Mutex::default(),
    });
    Kernel::asynchronous(move |ctx| one_shot.give(ctx))
}

impl OneShot {
    fn give(self: &Arc<Self>, ctx: AsyncContext) {
        let outer = ctx.step.cancellation.clone();
        let (id, to_start) = {
            let mut state = self.state.lock();
            if let State::Made(handle) = &*state {
                let handle = handle.clone();
                drop(state);
                return answer(ctx, Ok(handle));
            }
            let is_first = !matches!(*state, State::Making(_));
            if is_first {
                *state = State::Making(Making::default());
            }
            let State::Making(making) = &mut *state else { return };
            let id = making.next;
            making.next += 1;
            making.waiting.push(Waiter { id, ctx, registration: None });
            (id, is_first.then(|| making.cancellation.clone()))
        };
        let (waits, making) = (Arc::downgrade(self), to_start);
        let registered = outer.register(move |reason| {
            if let Some(waiter) = waits.upgrade().and_then(|one_shot| one_shot.withdraw(id)) {
                waiter.ctx.done(Err(reason.clone().derived()));
            }
        });
        match registered {
            Ok(registration) => {
                let mut state = self.state.lock();
                let waiter = match &mut *state {
                    State::Making(making) => making.waiting.iter_mut().find(|waiter| waiter.id == id),
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
        if let Some(cancellation) = making {
            self.start(&cancellation);
        }
    }

    fn withdraw(&self, id: u64) -> Option<Waiter> {
        let mut state = self.state.lock();
        let State::Making(making) = &mut *state else { return None };
        let at = making.waiting.iter().position(|waiter| waiter.id == id)?;
        let waiter = making.waiting.remove(at);
        let abandoned = making.waiting.is_empty().then(|| making.cancellation.clone());
        drop(state);
        if let Some(cancellation) = abandoned {
            cancellation.cancel(Error::new(Code::Cancelled, "nobody waits for the iterator any more"));
        }
        Some(waiter)
    }

    fn start(self: &Arc<Self>, cancellation: &Arc<Cancellation>) {
        // Of no step: who waits may be of several.
        let step = Step::new(0, Arc::new(LocalRendezvous::new()), cancellation.clone());
        // The function returns on a compute thread, which the making of iterators does not hold.
        let landed = self.clone();
        let done = move |result: Result<SmallVec<[Value; 4]>>| {
            let one_shot = landed.clone();
            let started = threads::spawn(move || {
                one_shot.end(result.and_then(|outputs| one_shot.make(&outputs)));
            });
            if let Err(error) = started {
                landed.end(Err(error));
            }
        };
        self.factory.call(&Arc::new(step), SmallVec::new(), Box::new(done));
    }

    fn make(&self, outputs: &[Value]) -> Result<ResourceHandle> {
        let [Value::Host(dataset)] = outputs else {
            return Err(Error::internal("the factory of a dataset returned no tensor"));
        };
        let dataset = DatasetVariant::of(dataset)?;
        let (iterator, handle) = self.name.iterator(&self.device, &self.spec, || unset(&self.spec))?;
        iterator.set(&dataset)?;
        Ok(handle)
    }

    /// Answers all who wait. A failure is theirs, and the next to ask tries again.
    fn end(self: &Arc<Self>, result: Result<ResourceHandle>) {
        let waiting = {
            let mut state = self.state.lock();
            if let State::Making(making) = &mut *state
                && result.is_err()
                && making.cancellation.is_cancelled()
                && !making.waiting.is_empty()
            {
                // They came after the last one before them had left.
                making.cancellation = Arc::default();
                let cancellation = making.cancellation.clone();
                drop(state);
                return self.start(&cancellation);
            }
            let next = match &result {
                Ok(handle) => State::Made(handle.clone()),
                Err(_) => State::Unmade,
            };
            match std::mem::replace(&mut *state, next) {
                State::Making(making) => making.waiting,
                _ => Vec::new(),
            }
        };
        for waiter in waiting {
            if let Some(registration) = waiter.registration {
                waiter.ctx.step.cancellation.deregister(registration);
            }
            answer(waiter.ctx, result.clone());
        }
    }
}

fn answer(ctx: AsyncContext, result: Result<ResourceHandle>) {
    ctx.done(result.map(|handle| smallvec![Tensor::resource(handle).into()]));
}
