//! Kernels of mutexes shared by steps: a lock is a variant tensor, and the mutex is released when the last copy of
//! the lock is dropped.

use crate::objects::fair_lock::{FairLock, FairLockGuard};
use device::Result;
use device::handle::{HandleInput, ObjectName, Owner};
use device::kernel::{AsyncContext, Kernel, KernelDef, KernelInit};
use device::resource::Resource;
use device::value::Value;
use graph::{Tensor, VariantObject};
use smallvec::smallvec;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MutexV2", &[], |init: &KernelInit<'_>| {
        Owner::new(init, ObjectName::of(init, true)?)
            .kernel(|_, _| Ok(Mutex(FairLock::new(()))), |_, _| Ok(()))
    }),
    KernelDef::of("MutexLock", &[], lock),
    KernelDef::of("ConsumeMutexLock", &[], |_| {
        Kernel::sync(|ctx| {
            let lock = ctx.take_input(0)?;
            match lock.as_variants()? {
                [lock] => lock.expect::<LockVariant>("a lock").map(|_| ())?,
                many => device::invalid!("expected one lock, got {}", many.len()),
            }
            Ok(())
        })
    }),
];

#[derive(Debug)]
struct Mutex(FairLock<()>);

impl Resource for Mutex {
    const KIND: &'static str = "Mutex";
}

/// A lock on a mutex, stored in a variant; dropping the last copy releases the mutex.
#[derive(Debug)]
struct LockVariant {
    _turn: FairLockGuard<()>,
}

impl VariantObject for LockVariant {
    fn type_name(&self) -> &'static str {
        "tensorflow::Mutex::SharedLockReleaser"
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
            Ok(mutex) => mutex.0.lock(&step.cancellation, |turn| {
                done(turn.map(|turn| smallvec![Value::Host(Tensor::variant(LockVariant { _turn: turn }))]));
            }),
        }
    })
}
