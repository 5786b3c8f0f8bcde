//! Kernels of mutexes between steps: a lock is a variant, which ends with its last holder.

use crate::cancel::Cancellation;
use crate::error::Result;
use crate::handle::{HandleInput, ObjectName, Owner};
use crate::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use crate::resource::Resource;
use crate::value::Value;
use crate::waiting::{Attempt, Tried, Waiting};
use graph::{Tensor, VariantObject};
use smallvec::smallvec;
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MutexV2", &[], |init: &KernelInit<'_>| {
        Owner::new(init, ObjectName::of(init, true)?).kernel(|_, _| Ok(Mutex::new()), |_, _| Ok(()))
    }),
    KernelDef::of("MutexLock", &[], lock),
    KernelDef::of("ConsumeMutexLock", &[], |_| {
        Kernel::sync(|ctx| {
            let lock = ctx.take_input(0)?;
            match lock.as_variants()? {
                [lock] => lock.expect::<Held>("a lock").map(|_| ())?,
                many => crate::invalid!("expected one lock, got {}", many.len()),
            }
            Ok(())
        })
    }),
];

#[derive(Debug)]
struct Mutex {
    is_held: Arc<Waiting<bool, ()>>,
}

impl Resource for Mutex {
    const KIND: &'static str = "Mutex";
}

impl Mutex {
    fn new() -> Mutex {
        Mutex { is_held: Arc::new(Waiting::new(false, 1)) }
    }

    fn lock(&self, step: &Arc<Cancellation>, done: impl FnOnce(Result<Held>) + Send + 'static) {
        let of = self.is_held.clone();
        let held = move |result: Result<()>| done(result.map(|()| Held { of }));
        self.is_held.attempt(0, step, Lock, Box::new(held));
    }
}

/// Waits until nobody holds the lock.
struct Lock;

impl Attempt<bool, ()> for Lock {
    fn advance(&mut self, is_held: &mut bool) -> Tried<()> {
        if std::mem::replace(is_held, true) { Tried::Waits } else { Tried::Over(Ok(())) }
    }
}

/// The lock itself: whoever drops the last of it frees it.
#[derive(Debug)]
struct Held {
    of: Arc<Waiting<bool, ()>>,
}

impl VariantObject for Held {
    fn type_name(&self) -> &'static str {
        "tensorflow::Mutex::SharedLockReleaser"
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.of.with(|is_held| *is_held = false);
    }
}

fn lock(_: &KernelInit<'_>) -> Result<Kernel> {
    let handle = HandleInput::<Mutex>::default();
    Kernel::asynchronous(move |ctx| {
        let value = ctx.inputs.first().cloned().unwrap_or_default();
        let found = handle.get(&ctx.device, &value);
        let AsyncContext { step, done, .. } = ctx;
        match found {
            Err(error) => done(Err(error)),
            Ok(mutex) => mutex.lock(&step.cancellation, |held| {
                done(held.map(|held| smallvec![Value::Host(Tensor::variant(held))]));
            }),
        }
    })
}
