//! A collective over several GPUs of the process: each GPU's kernel joins, and the reduction is enqueued when
//! all have joined.

use super::collective_barrier::{Arrival, CollectiveBarrier, CollectiveSignature, Participant};
use super::driver::{AllReduce, AllReducePart, Reduction};
use super::gpu_engine::{Engine, block};
use super::result_memory::ResultMemory;
use super::streams::Stream;
use device::cancel::Cancellation;
use device::resource::Resource;
use device::{DeviceTensor, Transfer};
use device::{Error, Result};
use parking_lot::Mutex;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The barrier of the kernels of one collective within a step.
#[derive(Default)]
pub(crate) struct Collective {
    barrier: Mutex<CollectiveBarrier<CollectiveInput>>,
    /// Set once the barrier is registered to fail when the step is cancelled.
    watch: OnceLock<()>,
}

/// One GPU's input to a collective.
pub(crate) struct CollectiveInput {
    pub(crate) engine: Arc<Engine>,
    pub(crate) tensor: DeviceTensor,
    /// Called with the result, on the thread of the kernel that joins last.
    pub(crate) done: Transfer<DeviceTensor>,
}

impl Resource for Collective {
    const KIND: &'static str = "Collective";
}

impl Collective {
    /// Adds one GPU's input. The reduction is enqueued when all participants have joined.
    pub(crate) fn join(
        self: &Arc<Self>,
        step: &Cancellation,
        signature: CollectiveSignature,
        participant: Participant<CollectiveInput>,
    ) {
        self.watch(step);
        let reduction = signature.reduction;
        let arrival = self.barrier.lock().arrive(signature, participant);
        match arrival {
            Arrival::Waits => {}
            Arrival::Failed(error, participants) => fail(participants, &error),
            Arrival::Complete(participants) => finish(reduction, participants),
        }
    }

    /// Makes the barrier fail when the step is cancelled; if the step has ended already, the barrier fails at
    /// once. Called before any participant waits.
    fn watch(self: &Arc<Self>, step: &Cancellation) {
        self.watch.get_or_init(|| {
            let collective = Arc::downgrade(self);
            let end = move |reason: &Error| {
                let Some(collective) = collective.upgrade() else { return };
                let waiting = collective.barrier.lock().fail(reason.clone());
                fail(waiting, &reason.clone().derived());
            };
            if let Err(reason) = step.register(end) {
                self.barrier.lock().fail(reason);
            }
        });
    }
}

impl fmt::Debug for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collective({:?})", self.barrier.lock())
    }
}

impl fmt::Debug for CollectiveInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CollectiveInput({:?})", self.tensor)
    }
}

/// Completes the kernel of each participant with the error.
fn fail(participants: Vec<Participant<CollectiveInput>>, error: &Error) {
    for participant in participants {
        (participant.input.done)(Err(error.clone()));
    }
}

/// Enqueues the reduction and completes the kernel of each participant with the reduced tensor.
fn finish(reduction: Reduction, participants: Vec<Participant<CollectiveInput>>) {
    match all_reduce(reduction, &participants) {
        Ok(results) => {
            for (participant, result) in participants.into_iter().zip(results) {
                (participant.input.done)(Ok(result));
            }
        }
        Err(error) => fail(participants, &error),
    }
}

/// Enqueues the reduction of the participants' tensors, of one dtype and shape, on the collective stream of
/// each GPU.
fn all_reduce(
    reduction: Reduction,
    participants: &[Participant<CollectiveInput>],
) -> Result<Vec<DeviceTensor>> {
    let Some(first) = participants.first() else { return Ok(Vec::new()) };
    let (dtype, count) = (first.input.tensor.dtype, first.input.tensor.shape.num_elements());
    // The result for a single participant, or for tensors without elements, is the input.
    if participants.len() == 1 || count == 0 {
        return Ok(participants.iter().map(|participant| participant.input.tensor.clone()).collect());
    }
    let mut results: Vec<ResultMemory> = Vec::with_capacity(participants.len());
    let mut parts: Vec<AllReducePart<'_>> = Vec::with_capacity(participants.len());
    for participant in participants {
        let CollectiveInput { engine, tensor, .. } = &participant.input;
        let result = ResultMemory::new(engine, tensor, &participant.node)?;
        parts.push(AllReducePart {
            driver: &**engine.driver(),
            from: block(tensor)?.read_on(Stream::Collective)?,
            to: result.address(),
            stream: engine.streams().id(Stream::Collective),
        });
        results.push(result);
    }
    first.input.engine.driver().all_reduce(&AllReduce { reduction, dtype, count }, &parts)?;
    let finished = results.into_iter().map(|result| result.into_tensor().map(|(tensor, _)| tensor));
    finished.collect()
}
