//! The execution of one collective on one member, a *course*: the phases of its schedule, run over the step's
//! rendezvous.

use super::buffer::BufferCalls;
use super::schedule::{ForeignKey, Phase, Schedule, Source, Then, Transfer};
use device::collective::{Operation, Reduction};
use device::rendezvous::{Rendezvous, RendezvousKey, Sent};
use device::{Error, Pool, Result, Value};
use graph::{DType, DeviceAttributes, Shape, Tensor};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Number of bytes that are combined or copied on the thread that delivers the last transfer of a phase; more are left
/// to the thread pool, so that links stay responsive.
const MAX_INLINE_BYTES: usize = 256 << 10;

/// Number of bytes that are combined before they are copied, while they are in the processor's cache.
const COPY_BLOCK: usize = 64 << 10;

/// The beginning of the edge in the rendezvous keys of elements of collectives.
pub(crate) const COLLECTIVE_EDGE: &str = "collective:";

/// A member's view of a collective: the constant properties of its course.
#[derive(Debug)]
pub(super) struct Plan {
    /// The members in the order of their ranks.
    pub(super) members: Arc<[DeviceAttributes]>,
    /// The names of the members' devices, by rank.
    pub(super) devices: Arc<[Arc<str>]>,
    pub(super) rank: usize,
    pub(super) operation: Operation,
    pub(super) dtype: DType,
    /// Number of bytes of an element.
    pub(super) width: usize,
    pub(super) output: Shape,
    /// The group's key, the instance's key, and the frame and iteration of a loop, as in TensorFlow's keys.
    pub(super) name: String,
    /// The members of TensorFlow, if there are any.
    pub(super) foreign: Option<ForeignMembers>,
    pub(super) schedule: Schedule,
}

/// The members of a group that are TensorFlow's, and the calls by which their elements are received.
#[derive(Debug)]
pub(super) struct ForeignMembers {
    /// For each rank, whether the member is TensorFlow's.
    pub(super) is_foreign: Vec<bool>,
    pub(super) buffers: BufferCalls,
}

/// A callback that receives a member's output. It is called exactly once.
type Finish = Box<dyn FnOnce(Result<Tensor>) + Send>;

/// A callback for the notice that another member's terms differ from the terms that the members have agreed on.
pub(super) type Renew = Box<dyn FnOnce() + Send>;

/// A collective in progress on one member.
pub(super) struct Course {
    plan: Plan,
    rendezvous: Arc<dyn Rendezvous>,
    pool: Arc<Pool>,
    state: Mutex<State>,
}

struct State {
    input: Option<Tensor>,
    output: Option<Tensor>,
    /// The elements that the last phase has combined, if the next phase sends them.
    combined: Option<Tensor>,
    phase: usize,
    /// The transfers of the phase, in the order of its schedule; `None` for those that have not arrived.
    received: Vec<Option<Tensor>>,
    missing: usize,
    /// The callback for the member's output; `None` once the collective has ended.
    finish: Option<Finish>,
    /// The callback for the notice of other terms; `None` if no notice is expected.
    renew: Option<Renew>,
}

impl Course {
    /// Starts a member's course; `finish` receives its output, or the error that ended it. If a member gives notice
    /// that its terms differ, the course calls `renew` instead.
    pub(super) fn start(
        plan: Plan,
        input: Option<Tensor>,
        rendezvous: Arc<dyn Rendezvous>,
        pool: Arc<Pool>,
        finish: Finish,
        renew: Option<Renew>,
    ) -> Arc<Course> {
        let state = State {
            input,
            output: None,
            combined: None,
            phase: 0,
            received: Vec::new(),
            missing: 0,
            finish: Some(finish),
            renew,
        };
        let course = Arc::new(Course { plan, rendezvous, pool, state: Mutex::new(state) });
        course.run_or_fail(Course::begin);
        course
    }

    /// Ends the collective with an error, unless it has ended.
    pub(super) fn fail(&self, error: Error) {
        let finish = self.state.lock().finish.take();
        if let Some(finish) = finish {
            finish(Err(error));
        }
    }

    /// Ends the course, unless it has ended, so that the members can repeat their agreement.
    fn renew(&self) {
        let (finish, renew) = {
            let mut state = self.state.lock();
            (state.finish.take(), state.renew.take())
        };
        match (finish, renew) {
            (Some(_finish), Some(renew)) => renew(),
            (Some(finish), None) => {
                finish(Err(Error::internal("a member has other terms than it agreed on")))
            }
            (None, _) => {}
        }
    }

    /// Returns the members whose transfers the current phase awaits.
    pub(super) fn awaited(&self) -> Vec<&DeviceAttributes> {
        let state = self.state.lock();
        let Some(phase) = self.plan.schedule.phases.get(state.phase) else { return Vec::new() };
        let missing = phase.receives.iter().zip(&state.received).filter(|(_, received)| received.is_none());
        missing.filter_map(|(transfer, _)| self.plan.members.get(transfer.peer)).collect()
    }

    fn run_or_fail(self: &Arc<Self>, step: fn(&Arc<Self>) -> Result<()>) {
        if let Err(error) = step(self) {
            self.fail(error);
        }
    }

    /// Copies the member's own elements to the output, and begins the first phase.
    fn begin(self: &Arc<Self>) -> Result<()> {
        {
            let mut state = self.state.lock();
            let mut output = Tensor::unspecified(self.plan.dtype, self.plan.output.clone())?;
            if let (Some((from, to)), Some(input)) = (&self.plan.schedule.copies, &state.input) {
                let own = &input.bytes()?[self.bytes(from)];
                let to = self.bytes(&(*to..*to + from.len()));
                output.bytes_mut()?[to].copy_from_slice(own);
            }
            state.output = Some(output);
        }
        self.begin_phase()
    }

    /// Sends the elements of the current phase, and waits for those of the other members.
    fn begin_phase(self: &Arc<Self>) -> Result<()> {
        let (number, sends) = {
            let mut state = self.state.lock();
            let Some(phase) = self.plan.schedule.phases.get(state.phase) else {
                let (finish, output) = (state.finish.take(), state.output.take());
                drop(state);
                if let (Some(finish), Some(output)) = (finish, output) {
                    finish(Ok(output));
                }
                return Ok(());
            };
            state.received = vec![None; phase.receives.len()];
            // The course itself counts as one missing transfer, so that the phase does not end before its last receive
            // is registered.
            state.missing = phase.receives.len() + 1;
            let sends = self.pieces(&state, phase)?;
            (state.phase, sends)
        };
        for (transfer, piece) in self.plan.schedule.phases[number].sends.iter().zip(sends) {
            let key = self.key(number, transfer, self.plan.rank, transfer.peer);
            self.rendezvous.send(&key, Sent { value: Value::Host(piece), is_dead: false })?;
        }
        self.rendezvous.flush();
        for (index, transfer) in self.plan.schedule.phases[number].receives.iter().enumerate() {
            let (course, expected) = (self.clone(), transfer.elements.len());
            let receive = Box::new(move |received| course.receive(index, expected, received));
            let key = self.key(number, transfer, transfer.peer, self.plan.rank);
            match &self.plan.foreign {
                Some(foreign) if foreign.is_foreign[transfer.peer] => {
                    foreign.buffers.receive(&key, self.plan.dtype, expected, receive);
                }
                _ => self.rendezvous.recv(&key, receive),
            }
        }
        self.count_down();
        Ok(())
    }

    /// Returns the tensors that a phase sends; equal ranges share one tensor.
    fn pieces(&self, state: &State, phase: &Phase) -> Result<Vec<Tensor>> {
        let sends = &phase.sends;
        let mut pieces: Vec<Tensor> = Vec::with_capacity(sends.len());
        for (i, transfer) in sends.iter().enumerate() {
            let last = pieces.last().filter(|_| sends[i - 1].elements == transfer.elements).cloned();
            let piece = match last {
                Some(piece) => piece,
                None => self.piece(state, phase.source, &transfer.elements)?,
            };
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Returns a range of the elements of a phase's source as a vector.
    fn piece(&self, state: &State, source: Source, elements: &Range<usize>) -> Result<Tensor> {
        let of = |tensor: &Option<Tensor>| {
            tensor.clone().ok_or_else(|| Error::internal("a collective sends elements that it does not have"))
        };
        match source {
            Source::Input => Ok(of(&state.input)?.elements(elements.clone())?),
            Source::Combined => of(&state.combined),
            // The elements are copied, because the member may still write other elements of its output.
            Source::Output => {
                let output = of(&state.output)?;
                let bytes = &output.bytes()?[self.bytes(elements)];
                Ok(Tensor::from_bytes(output.dtype(), Shape::new(&[elements.len()])?, bytes)?)
            }
        }
    }

    /// Stores a transfer that has arrived.
    fn receive(self: &Arc<Self>, index: usize, expected: usize, received: Result<Sent>) {
        if received.as_ref().is_ok_and(|sent| sent.is_dead) {
            return self.renew();
        }
        let checked = received.and_then(|sent| match sent {
            Sent { value: Value::Host(tensor), is_dead: false }
                if tensor.dtype() == self.plan.dtype && tensor.num_elements() == expected =>
            {
                Ok(tensor)
            }
            sent => Err(Error::internal(format!(
                "collective {}: a transfer of {expected} elements of {} was expected, not {:?}",
                self.plan.name, self.plan.dtype, sent.value
            ))),
        });
        match checked {
            Ok(tensor) => {
                if let Some(slot) = self.state.lock().received.get_mut(index) {
                    *slot = Some(tensor);
                }
                self.count_down();
            }
            Err(error) => self.fail(error),
        }
    }

    /// Counts a transfer, or the start of the phase, as done; the last one completes the phase.
    fn count_down(self: &Arc<Self>) {
        {
            let mut state = self.state.lock();
            state.missing -= 1;
            if state.missing > 0 || state.finish.is_none() {
                return;
            }
        }
        let bytes = self.plan.output.num_elements() * self.width();
        if bytes <= MAX_INLINE_BYTES {
            return self.run_or_fail(Course::complete_phase);
        }
        let course = self.clone();
        self.pool.spawn(move || course.run_or_fail(Course::complete_phase));
    }

    /// Combines or places the transfers of the phase, and begins the next.
    fn complete_phase(self: &Arc<Self>) -> Result<()> {
        {
            let mut state = self.state.lock();
            let received: Vec<Tensor> = std::mem::take(&mut state.received).into_iter().flatten().collect();
            self.apply(&mut state, &received)?;
            state.phase += 1;
        }
        self.begin_phase()
    }

    /// Combines or places the elements received in the current phase, as the phase's `then` requires.
    fn apply(&self, state: &mut State, received: &[Tensor]) -> Result<()> {
        let phases = &self.plan.schedule.phases;
        let phase = &phases[state.phase];
        let Some(output) = &mut state.output else { return Ok(()) };
        match &phase.then {
            Then::Place => {
                for (transfer, tensor) in phase.receives.iter().zip(received) {
                    output.bytes_mut()?[self.bytes(&transfer.elements)].copy_from_slice(tensor.bytes()?);
                }
            }
            Then::Combine { input: own, .. } if own.is_empty() => {}
            Then::Combine { input: own, output: to, is_final } => {
                let input = state.input.as_ref();
                let input = input.ok_or_else(|| Error::internal("a reduction without an input"))?;
                let mut terms: Vec<&[u8]> = Vec::with_capacity(received.len() + 1);
                for tensor in received {
                    terms.push(tensor.bytes()?);
                }
                let before = phase.receives.iter().filter(|t| t.peer < self.plan.rank).count();
                terms.insert(before.min(terms.len()), &input.bytes()?[self.bytes(own)]);
                let output = &mut output.bytes_mut()?[self.bytes(&(*to..*to + own.len()))];
                let is_sent = phases.get(state.phase + 1).is_some_and(|next| next.source == Source::Combined);
                match is_sent {
                    false => self.combine(&terms, *is_final, output)?,
                    true => state.combined = Some(self.combine_twice(&terms, *is_final, output)?),
                }
            }
        }
        Ok(())
    }

    fn combine(&self, terms: &[&[u8]], is_final: bool, output: &mut [u8]) -> Result<()> {
        let reduction = self.reduction()?;
        let reduction = Reduction { is_mean: reduction.is_mean && is_final, ..reduction };
        kernels::collective::combine(self.plan.dtype, reduction, self.plan.members.len(), terms, output)
    }

    /// Combines elements into the output, and returns them as a tensor too. The output itself cannot be sent, because the
    /// member still writes other elements of it.
    fn combine_twice(&self, terms: &[&[u8]], is_final: bool, output: &mut [u8]) -> Result<Tensor> {
        let shape = Shape::new(&[output.len() / self.width()])?;
        let mut combined = Tensor::unspecified(self.plan.dtype, shape)?;
        let blocks = combined.bytes_mut()?.chunks_mut(COPY_BLOCK).zip(output.chunks_mut(COPY_BLOCK));
        for (i, (combined, output)) in blocks.enumerate() {
            let range = i * COPY_BLOCK..i * COPY_BLOCK + output.len();
            let terms: Vec<&[u8]> = terms.iter().map(|term| &term[range.clone()]).collect();
            self.combine(&terms, is_final, combined)?;
            output.copy_from_slice(combined);
        }
        Ok(combined)
    }

    fn reduction(&self) -> Result<Reduction> {
        match self.plan.operation {
            Operation::Reduce(reduction) | Operation::ReduceScatter(reduction) => Ok(reduction),
            Operation::ReduceToRoot { reduction, .. } => Ok(reduction),
            _ => Err(Error::internal("only reductions combine elements")),
        }
    }

    fn width(&self) -> usize {
        self.plan.width
    }

    fn bytes(&self, elements: &Range<usize>) -> Range<usize> {
        elements.start * self.width()..elements.end * self.width()
    }

    /// Returns the rendezvous key of a transfer in a phase. A transfer to or from a member of TensorFlow has the key of
    /// TensorFlow's buffer as its text.
    fn key(&self, phase: usize, transfer: &Transfer, from: usize, to: usize) -> Arc<RendezvousKey> {
        let Plan { members, devices, name, foreign, schedule, .. } = &self.plan;
        let (source, destination) = (devices[from].clone(), devices[to].clone());
        let key = RendezvousKey::new(source, members[from].incarnation, destination, edge(name, phase));
        let is_foreign = foreign.as_ref().is_some_and(|f| f.is_foreign[from] || f.is_foreign[to]);
        let text = match schedule.phases[phase].foreign_key {
            _ if !is_foreign => return Arc::new(key),
            ForeignKey::Ring { pass } => format!("{name}:{pass}:{}:{from}", transfer.section),
            ForeignKey::Tree => format!("{name}:0:{from}:{to}"),
            ForeignKey::Exchange => format!("{name}{from}{to}"),
            ForeignKey::None => return Arc::new(key),
        };
        Arc::new(RendezvousKey { text: text.into(), ..key })
    }
}

/// Returns the names of devices, in their order.
pub(super) fn names_of(devices: &[DeviceAttributes]) -> Arc<[Arc<str>]> {
    devices.iter().map(|device| device.name.to_string().into()).collect()
}

/// Returns the rendezvous key of the elements that one member sends to another in a phase of a collective. In the first
/// phase a dead tensor under this key is the notice that the sender's terms differ from those agreed on.
pub(super) fn transfer_key(
    name: &str,
    phase: usize,
    source: &DeviceAttributes,
    destination: &DeviceAttributes,
) -> RendezvousKey {
    let (from, to) = (source.name.to_string(), destination.name.to_string());
    RendezvousKey::new(from, source.incarnation, to, edge(name, phase))
}

/// Returns the edge in the rendezvous keys of a collective's phase.
fn edge(name: &str, phase: usize) -> String {
    format!("{COLLECTIVE_EDGE}{name}:{phase}")
}
