//! What several GPUs of the process compute together, each with a kernel that waits for the others'.

use super::driver::{Address, AllReduce, Part, Reduction};
use super::engine::{Engine, block};
use super::meeting::{Arrival, Meeting, Member, Terms};
use super::memory::Block;
use super::streams::Stream;
use device::cancel::Cancellation;
use device::resource::Resource;
use device::{DeviceTensor, Transfer};
use device::{Error, Result};
use parking_lot::Mutex;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// Where the kernels of one collective meet in a step.
#[derive(Default)]
pub(crate) struct Collective {
    meeting: Mutex<Meeting<Share>>,
    /// The step's end is the meeting's.
    watch: OnceLock<()>,
}

/// What one GPU brings.
pub(crate) struct Share {
    pub(crate) engine: Arc<Engine>,
    pub(crate) tensor: DeviceTensor,
    /// Called with the result, on the thread of whoever comes last.
    pub(crate) done: Transfer<DeviceTensor>,
}

impl Resource for Collective {
    const KIND: &'static str = "Collective";
}

impl Collective {
    /// Brings one GPU's share. What the collective gives is enqueued when all have come.
    pub(crate) fn join(self: &Arc<Self>, step: &Cancellation, terms: Terms, member: Member<Share>) {
        self.watch(step);
        let reduction = terms.reduction;
        let arrival = self.meeting.lock().arrive(terms, member);
        match arrival {
            Arrival::Waits => {}
            Arrival::Failed(error, members) => fail(members, &error),
            Arrival::Complete(members) => finish(reduction, members),
        }
    }

    /// Before anybody waits: who comes to a step that has ended finds the meeting failed.
    fn watch(self: &Arc<Self>, step: &Cancellation) {
        self.watch.get_or_init(|| {
            let meeting = Arc::downgrade(self);
            let end = move |reason: &Error| {
                let Some(collective) = meeting.upgrade() else { return };
                let waiting = collective.meeting.lock().fail(reason.clone());
                fail(waiting, &reason.clone().derived());
            };
            if let Err(reason) = step.register(end) {
                self.meeting.lock().fail(reason);
            }
        });
    }
}

impl fmt::Debug for Collective {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Collective({:?})", self.meeting.lock())
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Share({:?})", self.tensor)
    }
}

fn fail(members: Vec<Member<Share>>, error: &Error) {
    for member in members {
        (member.part.done)(Err(error.clone()));
    }
}

fn finish(reduction: Reduction, members: Vec<Member<Share>>) {
    match all_reduce(reduction, &members) {
        Ok(results) => {
            for (member, result) in members.into_iter().zip(results) {
                (member.part.done)(Ok(result));
            }
        }
        Err(error) => fail(members, &error),
    }
}

/// Enqueues the reduction of the members' tensors, of one type and shape, on each of their GPUs, beside the kernels there.
fn all_reduce(reduction: Reduction, members: &[Member<Share>]) -> Result<Vec<DeviceTensor>> {
    let Some(first) = members.first() else { return Ok(Vec::new()) };
    let (dtype, count) = (first.part.tensor.dtype, first.part.tensor.shape.num_elements());
    // What is of nobody else, or has no elements, is what it was.
    if members.len() == 1 || count == 0 {
        return Ok(members.iter().map(|member| member.part.tensor.clone()).collect());
    }
    let mut results: Vec<Taken<'_>> = Vec::with_capacity(members.len());
    let mut parts: Vec<Part<'_>> = Vec::with_capacity(members.len());
    for member in members {
        let engine = &member.part.engine;
        let result = Taken::new(member)?;
        parts.push(Part {
            driver: &**engine.driver(),
            from: block(&member.part.tensor)?.read_on(Stream::Collective)?,
            to: result.address,
            stream: engine.streams().id(Stream::Collective),
        });
        results.push(result);
    }
    first.part.engine.driver().all_reduce(&AllReduce { reduction, dtype, count }, &parts)?;
    results.into_iter().map(Taken::filled).collect()
}

/// Memory for one GPU's result; given back if nothing comes of it.
struct Taken<'a> {
    member: &'a Member<Share>,
    address: Address,
    is_kept: bool,
}

impl<'a> Taken<'a> {
    fn new(member: &'a Member<Share>) -> Result<Taken<'a>> {
        let Share { engine, tensor, .. } = &member.part;
        let DeviceTensor { dtype, shape, memory } = tensor;
        let what = || format!("tensor with shape{shape} and type {dtype} for {}", member.node);
        let stream = engine.streams().id(Stream::Collective);
        let address = engine.pool().allocate(memory.len(), stream, &member.node, what)?;
        Ok(Taken { member, address, is_kept: false })
    }

    /// The result, and until when its GPU's share is read.
    fn filled(mut self) -> Result<DeviceTensor> {
        let Share { engine, tensor, .. } = &self.member.part;
        let mark = engine.streams().mark(Stream::Collective)?;
        block(tensor)?.read_until(mark.clone());
        let len = tensor.memory.len();
        self.is_kept = true;
        let block = Block::filled(engine.clone(), self.address, len, Stream::Collective, mark);
        Ok(DeviceTensor { memory: Arc::new(block), ..tensor.clone() })
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            let engine = &self.member.part.engine;
            engine.pool().free(self.address, engine.streams().id(Stream::Collective));
        }
    }
}
