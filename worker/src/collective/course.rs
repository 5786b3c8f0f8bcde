//! The course of one collective on one member: the phases of its schedule, run over the step's rendezvous.

use super::buffer::BufferCalls;
use super::schedule::{ForeignKey, Phase, Schedule, Source, Then, Transfer};
use device::collective::{Finish, Operation, Reduction};
use device::rendezvous::{Rendezvous, RendezvousKey, Sent};
use device::{Error, Pool, Result, Value};
use graph::{DType, DeviceAttributes, Shape, Tensor};
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// Number of bytes that are combined or copied on the thread that delivers the last transfer of a phase; more are left
/// to the thread pool, so that links stay responsive.
const MAX_INLINE_BYTES: usize = 256 << 10;

/// A member's view of a collective: the constant properties of its course.
#[derive(Debug)]
pub(super) struct Plan {
    /// The members in the order of their ranks.
    pub(super) members: Arc<[DeviceAttributes]>,
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
    /// By rank.
    pub(super) is_foreign: Vec<bool>,
    pub(super) buffers: BufferCalls,
}

/// One collective under way on one member.
pub(super) struct Course {
    plan: Plan,
    rendezvous: Arc<dyn Rendezvous>,
    pool: Arc<Pool>,
    state: Mutex<State>,
}

struct State {
    input: Option<Tensor>,
    output: Option<Tensor>,
    phase: usize,
    /// The transfers of the phase, in the order of its schedule; `None` for those that have not arrived.
    received: Vec<Option<Tensor>>,
    missing: usize,
    /// `None` once the collective has ended.
    finish: Option<Finish>,
}

impl Course {
    /// Starts a member's course; `finish` receives its output, or the error that ended it.
    pub(super) fn start(
        plan: Plan,
        input: Option<Tensor>,
        rendezvous: Arc<dyn Rendezvous>,
        pool: Arc<Pool>,
        finish: Finish,
    ) -> Arc<Course> {
        let state =
            State { input, output: None, phase: 0, received: Vec::new(), missing: 0, finish: Some(finish) };
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
            // The course itself counts, so that the phase does not end before its last receive is registered.
            state.missing = phase.receives.len() + 1;
            let source = match phase.source {
                Source::Input => state.input.as_ref(),
                Source::Output => state.output.as_ref(),
            };
            let sends = match source {
                Some(source) if !phase.sends.is_empty() => self.pieces(source, &phase.sends)?,
                _ => Vec::new(),
            };
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

    /// Returns the tensors of a phase's transfers; equal ranges share one tensor.
    fn pieces(&self, source: &Tensor, sends: &[Transfer]) -> Result<Vec<Tensor>> {
        let mut pieces: Vec<Tensor> = Vec::with_capacity(sends.len());
        for (i, transfer) in sends.iter().enumerate() {
            let last = pieces.last().filter(|_| sends[i - 1].elements == transfer.elements).cloned();
            let piece = match last {
                Some(piece) => piece,
                None => piece(source, &transfer.elements, self.width())?,
            };
            pieces.push(piece);
        }
        Ok(pieces)
    }

    /// Stores a transfer that has arrived.
    fn receive(self: &Arc<Self>, index: usize, expected: usize, received: Result<Sent>) {
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
            let State { input, output: Some(output), phase, received, .. } = &mut *state else {
                return Ok(());
            };
            let finished = &self.plan.schedule.phases[*phase];
            let received: Vec<Tensor> = std::mem::take(received).into_iter().flatten().collect();
            self.apply(finished, input.as_ref(), output, &received)?;
            *phase += 1;
        }
        self.begin_phase()
    }

    fn apply(
        &self,
        phase: &Phase,
        input: Option<&Tensor>,
        output: &mut Tensor,
        received: &[Tensor],
    ) -> Result<()> {
        match &phase.then {
            Then::Place => {
                for (transfer, tensor) in phase.receives.iter().zip(received) {
                    output.bytes_mut()?[self.bytes(&transfer.elements)].copy_from_slice(tensor.bytes()?);
                }
                Ok(())
            }
            Then::Combine { input: own, output: to, is_final } => {
                if own.is_empty() {
                    return Ok(());
                }
                let input = input.ok_or_else(|| Error::internal("a reduction without an input"))?;
                let own_bytes = &input.bytes()?[self.bytes(own)];
                let mut terms: Vec<&[u8]> = Vec::with_capacity(received.len() + 1);
                let before = phase.receives.iter().filter(|t| t.peer < self.plan.rank).count();
                for tensor in received {
                    terms.push(tensor.bytes()?);
                }
                terms.insert(before.min(terms.len()), own_bytes);
                let to = self.bytes(&(*to..*to + own.len()));
                let reduction = self.reduction()?;
                kernels::collective::combine(
                    self.plan.dtype,
                    Reduction { is_mean: reduction.is_mean && *is_final, ..reduction },
                    self.plan.members.len(),
                    &terms,
                    &mut output.bytes_mut()?[to],
                )
            }
        }
    }

    fn reduction(&self) -> Result<Reduction> {
        match self.plan.operation {
            Operation::Reduce(reduction) | Operation::ReduceScatter(reduction) => Ok(reduction),
            _ => Err(Error::internal("only reductions combine elements")),
        }
    }

    fn width(&self) -> usize {
        self.plan.width
    }

    fn bytes(&self, elements: &Range<usize>) -> Range<usize> {
        elements.start * self.width()..elements.end * self.width()
    }

    /// Returns the rendezvous key of a transfer in a phase. The text of a transfer to or from a member of TensorFlow is that
    /// of TensorFlow's buffer.
    fn key(&self, phase: usize, transfer: &Transfer, from: usize, to: usize) -> Arc<RendezvousKey> {
        let Plan { members, name, foreign, schedule, .. } = &self.plan;
        let (source, destination) = (&members[from], &members[to]);
        let edge = format!("collective:{name}:{phase}");
        let key = RendezvousKey::new(
            &source.name.to_string(),
            source.incarnation,
            &destination.name.to_string(),
            &edge,
        );
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

/// Returns a range of a tensor's elements as a vector; the whole tensor without a copy.
fn piece(source: &Tensor, elements: &Range<usize>, width: usize) -> Result<Tensor> {
    let shape = Shape::new(&[elements.len()])?;
    if elements.len() == source.num_elements() {
        return Ok(source.reshaped(shape)?);
    }
    let bytes = &source.bytes()?[elements.start * width..elements.end * width];
    Ok(Tensor::from_bytes(source.dtype(), shape, bytes)?)
}
