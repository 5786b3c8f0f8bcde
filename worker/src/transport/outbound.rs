//! The sending side of a link: pushes tensors, shares memory, limits the bytes of both, and carries runs of
//! graphs. It receives their answers, with [piggybacked](super::way_back) values.

use super::budget::Budget;
use super::connection::Connection;
use super::content::{Content, tensor};
use super::cork;
use super::frame::{Form, Frame, Malformed, Name};
use super::hearing::hear_all;
use super::loans::Loan;
use super::shelf::Shelf;
use super::sights::{Pair, Seen, Sights};
use super::vigil::Vigil;
use super::way_back;
use crate::worker::Worker;
use bytes::Bytes;
use executor::device::{Device, DeviceTensor};
use executor::rendezvous::Sent;
use executor::shared_block::{Freed, Place};
use executor::{Error, Value};
use graph::{Buffer, Code, RendezvousKey, Tensor};
use parking_lot::Mutex;
use prost::Message;
use proto::convert::tensor_to_proto;
use proto::{Status, pb};
use rpc::errand::at_hand;
use rustc_hash::{FxHashMap, FxHashSet};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Most bytes that are pushed without a request, apart from shared memory.
pub(super) const UNASKED: u64 = 64 << 20;
/// Most bytes of shared memory that are borrowed without a request and not returned, so that a peer that has
/// stopped does not hold all memory.
const LENT: u64 = 1 << 30;
/// Most host memory blocks shared with one peer, because each is a mapping there. Tensors in other blocks are
/// written to the connection. Devices need no limit: they use few blocks, one for each tensor that is shared
/// at a time.
const MOST_KNOWN: usize = 2048;
/// Queued bytes from which the queue is flushed at once.
const FULL: usize = 128 << 10;
/// Time after which the end of a step is sent if no other frame is sent before.
const TIDY: Duration = Duration::from_millis(10);

/// An open link to another process.
pub(crate) struct Outbound {
    own: Weak<Outbound>,
    connection: Arc<Connection>,
    /// Task and address, for messages.
    peer: String,
    /// The number of the worker at the other end.
    worker: u64,
    reach: Reach,
    runtime: Handle,
    /// Set while a flush is [scheduled](CLEANUP_FLUSH_DELAY).
    tidies: AtomicBool,
    state: Mutex<State>,
    sights: Sights,
    runs: Mutex<FxHashMap<u64, oneshot::Sender<Result<pb::RunGraphResponse, Status>>>>,
    next_run: AtomicU64,
    vigil: Vigil,
}

/// The relation of the other end to this process.
#[derive(Debug)]
/// Another machine, or a TCP connection.
pub(super) enum Reach {
    Nothing,
    /// The same machine: the other end can map this process's shared memory.
    Memory,
    /// The same process.
    Process(Arc<Shelf>),
}

/// The pushed and shared bytes of a link.
#[derive(Debug)]
struct State {
    budget: Budget,
    lent: Budget,
    loans: FxHashMap<u64, Loan>,
    next_loan: u64,
    /// The blocks that the peer has descriptors of.
    blocks: FxHashSet<u64>,
}

/// The reason why a tensor is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The value is ready.
    Ready,
    /// The receiver requested it.
    Asked,
}

impl Outbound {
    /// Creates the link to a worker, given by its name and number.
    pub(super) fn new(
        connection: Connection,
        (peer, worker): (String, u64),
        reach: Reach,
        runtime: Handle,
    ) -> Arc<Outbound> {
        let state = State {
            budget: Budget::new(UNASKED),
            lent: Budget::new(LENT),
            loans: FxHashMap::default(),
            next_loan: 0,
            blocks: FxHashSet::default(),
        };
        let vigil = Vigil::new(&runtime);
        Arc::new_cyclic(|own| Outbound {
            own: own.clone(),
            connection: Arc::new(connection),
            peer,
            worker,
            reach,
            runtime,
            tidies: AtomicBool::new(false),
            state: Mutex::new(state),
            sights: Sights::default(),
            runs: Mutex::default(),
            next_run: AtomicU64::new(0),
            vigil,
        })
    }

    /// Queues a value for the next [`Outbound::flush`]. Returns false if too many bytes are in flight: then
    /// the caller must store the value and [offer](Outbound::offer) it.
    ///
    /// # Errors
    /// `Unavailable`, naming the peer, if the link has broken; `Internal` for a value that cannot be sent.
    pub(crate) fn push(
        &self,
        step_id: i64,
        key: &Arc<str>,
        sent: &Sent,
        cause: Cause,
    ) -> executor::Result<bool> {
        if self.connection.is_broken() {
            return Err(self.broke());
        }
        let name = Name { step_id, key: key.clone() };
        let tensor = match &sent.value {
            _ if sent.is_dead => match way_back::take(self.worker, step_id, 0) {
                Some(way) => return post_back(&way, &Frame::Dead(name), None),
                None => return post_value(&self.connection, &Frame::Dead(name), None),
            },
            Value::Host(tensor) => tensor,
            Value::Device(tensor) => return self.push_device(name, tensor, cause),
            other => return Err(Error::internal(format!("{other:?} cannot be sent"))),
        };
        if let Reach::Process(shelf) = &self.reach {
            let parcel = shelf.leave(sent.clone());
            return post_value(&self.connection, &Frame::Parcel { name, parcel }, None);
        }
        let Some(buffer) = &tensor.buffer() else {
            if !self.takes(tensor.num_bytes(), cause) {
                return Ok(false);
            }
            let message = tensor_to_proto(tensor).encode_to_vec();
            return post_value(&self.connection, &Frame::Message(name), Some(message.into()));
        };
        let payload = || Some(Bytes::from_owner(Elements(buffer.clone())));
        if let Some(way) = way_back::take(self.worker, step_id, buffer.len()) {
            return post_back(&way, &Frame::Elements(name, form(tensor)), payload());
        }
        let loan = Loan::Host(buffer.clone());
        let known = self.known(&loan).unwrap_or_else(|error| {
            tracing::debug!("no memory is shared with {}: {error}", self.peer);
            None
        });
        if let Some(block) = known {
            return self.lend(name, form(tensor), (block, loan), cause);
        }
        if !self.takes(buffer.len(), cause) {
            return Ok(false);
        }
        post_value(&self.connection, &Frame::Elements(name, form(tensor)), payload())
    }

    /// Reserves bytes of the push budget. Returns false if there is no room.
    fn takes(&self, bytes: usize, cause: Cause) -> bool {
        cause.takes(&mut self.state.lock().budget, bytes)
    }

    /// Pushes a device's tensor, which the receiver must be able to [access](Outbound::check_access).
    fn push_device(&self, name: Name, tensor: &DeviceTensor, cause: Cause) -> executor::Result<bool> {
        let form = Form { dtype: tensor.dtype, shape: tensor.shape.clone() };
        let loan = Loan::Device(tensor.memory.clone());
        let lacking = |why: &str| {
            let what = format!("{} does not see {tensor:?}, which is for {}{why}", self.peer, name.key);
            Error::new(Code::Unavailable, what)
        };
        let known = self.known(&loan).map_err(|error| {
            // For a while, other tensors of this pair of devices are sent by the host.
            if let Ok(key) = RendezvousKey::parse(&name.key) {
                self.sights.put_off(Pair::of(&key));
            }
            lacking(&format!(": {error}"))
        })?;
        let block = known.ok_or_else(|| lacking(""))?;
        self.lend(name, form, (block, loan), cause)
    }

    /// Returns whether the receiving device can access memory that `device`, the sender, shares. If this is
    /// unknown, the peer is asked about this tensor; the result is false until the answer arrives.
    pub(crate) fn is_seen(
        &self,
        key: &RendezvousKey,
        device: &Arc<dyn Device>,
        tensor: &DeviceTensor,
    ) -> bool {
        let Reach::Memory = self.reach else { return false };
        let pair = Pair::of(key);
        match self.sights.of(&pair) {
            Seen::Yes => return self.state.lock().lent.has_room(),
            Seen::No => return false,
            Seen::Unasked => {}
        }
        let own = self.own.clone();
        let lent = move |lent| {
            if let Some(own) = own.upgrade() {
                own.show(pair, lent);
            }
        };
        device.lend(tensor.clone(), Box::new(lent));
        false
    }

    /// Asks the other end whether its device can access a shared tensor, if `lent` is in a block that can be
    /// mapped.
    fn show(&self, pair: Pair, lent: executor::Result<Value>) {
        let known = |lent: &DeviceTensor| self.known(&Loan::Device(lent.memory.clone())).ok().flatten();
        let lent = match lent {
            Ok(Value::Device(lent)) => known(&lent).map(|block| (block, lent)),
            _ => None,
        };
        let Some((block, lent)) = lent else { return self.sights.put_off(pair) };
        self.sights.shows(pair.clone(), lent);
        // An error means that the link has broken; the next link starts anew.
        if self.post(&Frame::Look { block, pair }, None).is_ok() {
            self.flush();
        }
    }

    /// Makes the block that contains the memory known to the peer. Returns the block's number; `None` if the
    /// peer cannot map it.
    ///
    /// # Errors
    /// `ResourceExhausted` if no descriptor can be created.
    fn known(&self, loan: &Loan) -> executor::Result<Option<u64>> {
        let (Reach::Memory, Some(block)) = (&self.reach, loan.block()) else { return Ok(None) };
        let id = block.sharing().id();
        {
            let blocks = &self.state.lock().blocks;
            if blocks.contains(&id) {
                return Ok(Some(id));
            } else if block.place() == Place::Host && blocks.len() >= MOST_KNOWN {
                return Ok(None);
            }
        }
        // The lock is not held, because the system call may have to copy the block.
        let descriptor = block.descriptor();
        let descriptor =
            descriptor.map_err(|error| Error::new(Code::ResourceExhausted, error.to_string()))?;
        let mut state = self.state.lock();
        if !state.blocks.contains(&id) {
            let frame = Frame::Block { block: id, len: block.len() as u64, place: block.place() };
            self.connection.post_descriptor(&frame, descriptor).map_err(unsendable)?;
            state.blocks.insert(id);
            block.sharing().tell(self.own.clone());
        }
        Ok(Some(id))
    }

    /// Sends a reference to memory in a block that the peer knows.
    fn lend(
        &self,
        name: Name,
        form: Form,
        (block, what): (u64, Loan),
        cause: Cause,
    ) -> executor::Result<bool> {
        let mut state = self.state.lock();
        if !cause.takes(&mut state.lent, what.len()) {
            return Ok(false);
        }
        let loan = state.next_loan;
        state.next_loan += 1;
        self.post(&Frame::Lent { name, form, block, loan }, None)?;
        state.loans.insert(loan, what);
        Ok(true)
    }

    /// Offers a value, which the receiver may request.
    pub(crate) fn offer(&self, step_id: i64, key: &Arc<str>) -> executor::Result<()> {
        self.post(&Frame::Offer(Name { step_id, key: key.clone() }), None)
    }

    /// Queues a frame.
    fn post(&self, frame: &Frame, payload: Option<Bytes>) -> executor::Result<()> {
        self.connection.post(frame, payload).map(drop).map_err(unsendable)
    }

    /// Writes the queued frames.
    pub(crate) fn flush(&self) {
        self.connection.flush();
    }

    /// Returns the error for a broken link; it names the peer.
    pub(crate) fn broke(&self) -> Error {
        Error::new(Code::Unavailable, self.connection.broke("the connection for tensors to", &self.peer))
    }

    /// Runs a graph at the other end; dropping the future cancels the run.
    ///
    /// # Errors
    /// The run's own failure; `Unavailable`, naming the peer, if the link breaks.
    pub(crate) async fn run(
        &self,
        request: &pb::RunGraphRequest,
        timeout: Option<Duration>,
    ) -> Result<pb::RunGraphResponse, Status> {
        let id = self.next_run.fetch_add(1, Ordering::Relaxed);
        let (give, answer) = oneshot::channel();
        self.runs.lock().insert(id, give);
        let mut cancels = CancelsRun { link: self, id: Some(id) };
        let posted = self.post(&Frame::Run { id, timeout }, Some(request.encode_to_vec().into()));
        posted.map_err(|e| crate::failure(&e))?;
        self.flush();
        if self.connection.is_broken() {
            self.end_runs();
        }
        let answer = self.vigil.keep(answer).await.unwrap_or_else(|_| Err(self.run_lost()));
        cancels.id = None;
        answer
    }

    /// Returns the error for a run whose link has broken.
    fn run_lost(&self) -> Status {
        let why = self.connection.broke("the connection to", &self.peer);
        Status::new(Code::Unavailable, format!("RunGraph failed: {why}"))
    }

    /// Notifies the peer at once that a step has failed here.
    pub(crate) fn failed(&self, step_id: i64, why: &Error) {
        let why = crate::failure(why).derived();
        // A broken link notifies its ends by itself.
        if self.post(&Frame::Failed { step_id, why }, None).is_ok() {
            self.flush();
        }
    }

    /// Notifies the peer that a step has ended, together with the next frame, which is usually the next
    /// step's.
    pub(crate) fn cleanup(&self, step_id: i64) {
        let is_posted = self.post(&Frame::Cleanup { step_id }, None).is_ok();
        if is_posted && !self.tidies.swap(true, Ordering::AcqRel) {
            let own = self.own.clone();
            self.runtime.spawn(async move {
                tokio::time::sleep(TIDY).await;
                if let Some(link) = own.upgrade() {
                    link.tidies.store(false, Ordering::Release);
                    link.flush();
                }
            });
        }
    }

    /// Handles the frames of the other end until the link ends.
    pub(super) async fn listen(self: &Arc<Self>, worker: &Weak<Worker>) -> io::Result<()> {
        hear_all(&self.connection, |frame, content| self.hear(frame, content, worker)).await
    }

    /// Handles one frame.
    fn hear(self: &Arc<Self>, frame: Frame, content: Content, worker: &Weak<Worker>) -> io::Result<()> {
        match (frame, content) {
            (Frame::Elements(_, form), _) if form.len().is_none_or(|len| len > way_back::SMALL) => {
                return Err(Malformed("tensor: it is too large to come back").into());
            }
            (Frame::Elements(name, form), Content::Elements(buffer)) => {
                let value = Value::Host(tensor(form, buffer)?);
                came_back(worker, &name, Sent { value, is_dead: false });
            }
            (Frame::Elements(name, _), Content::TooLarge(error)) => {
                if let Some(worker) = worker.upgrade() {
                    worker.refuse(name.step_id, &name.key, &self.peer, &error.into());
                }
            }
            (Frame::Dead(name), _) => came_back(worker, &name, Sent::dead()),
            (Frame::Want(name), _) => {
                let step = worker.upgrade().and_then(|worker| worker.steps.get(name.step_id));
                if let Some(step) = step {
                    step.rendezvous.wanted(self, &name.key);
                }
            }
            (Frame::Taken { bytes }, _) => self.state.lock().budget.taken(bytes),
            (Frame::Returned { loan }, _) => {
                // Dropped after the lock is released, because freeing memory may call this object.
                let returned = self.state.lock().end_loan(loan);
                drop(returned);
            }
            (Frame::Seen { pair, sees }, _) => {
                let how = if sees { "directly" } else { "by the host, for it does not see its memory" };
                let Pair { lender, borrower } = &pair;
                tracing::info!("tensors of {lender} go to {borrower} at {} {how}", self.peer);
                self.sights.hear(&pair, sees);
            }
            (Frame::Ran { id, failure }, Content::Message(message)) => {
                let response = match failure {
                    Some(status) => Err(status),
                    None => Ok(pb::RunGraphResponse::decode(message).map_err(|_| Malformed("answer"))?),
                };
                let asked = self.runs.lock().remove(&id);
                if let Some(give) = asked {
                    // The caller of the run continues on this thread, and may have much to write.
                    cork::release();
                    // An error means that the caller has cancelled.
                    at_hand(|| drop(give.send(response)));
                }
            }
            (Frame::Leaving, _) => self.connection.note_leave(),
            _ => return Err(Malformed("frame: it is the sender's").into()),
        }
        Ok(())
    }

    /// Announces to the other end that this process is shutting down.
    pub(super) fn take_leave(&self) {
        self.connection.take_leave();
    }

    /// Closes the connection, and fails the runs in progress.
    pub(super) fn close(&self) {
        self.connection.close();
        self.end_runs();
    }

    /// Fails the runs in progress.
    fn end_runs(&self) {
        let runs = std::mem::take(&mut *self.runs.lock());
        for give in runs.into_values() {
            let _ = give.send(Err(self.run_lost()));
        }
    }

    /// Abandons the shared memory that will not be returned, after the link was closed: it stays unchanged
    /// for as long as a process reads it, and local writers copy it first.
    pub(super) fn give_up(&self) {
        if let Reach::Process(shelf) = &self.reach {
            shelf.clear();
        }
        let loans = std::mem::take(&mut self.state.lock().loans);
        for loan in loans.into_values() {
            if let Some(block) = loan.block() {
                block.sharing().give_up();
            }
        }
        self.sights.end();
    }
}

impl State {
    /// Ends the borrowing of a tensor, and returns its memory.
    fn end_loan(&mut self, loan: u64) -> Option<Loan> {
        let loan = self.loans.remove(&loan)?;
        self.lent.taken(loan.len() as u64);
        Some(loan)
    }
}

impl Cause {
    /// Reserves bytes for a tensor. Returns false if it is not to be sent now.
    fn takes(self, budget: &mut Budget, bytes: usize) -> bool {
        match self {
            Cause::Ready => budget.take(bytes as u64),
            Cause::Asked => {
                budget.asked(bytes as u64);
                true
            }
        }
    }
}

/// Cancels the run at the other end if its future is dropped.
struct CancelsRun<'a> {
    link: &'a Outbound,
    id: Option<u64>,
}

impl Drop for CancelsRun<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            let was_open = self.link.runs.lock().remove(&id).is_some();
            if was_open && self.link.post(&Frame::Cancel { id }, None).is_ok() {
                self.link.flush();
            }
        }
    }
}

impl Freed for Outbound {
    fn freed(&self, block: u64) {
        let mut state = self.state.lock();
        if state.blocks.remove(&block) && self.post(&Frame::BlockGone { block }, None).is_ok() {
            drop(state);
            // A thread may wait for the memory on this very thread, so the frame must not wait for the end of
            // a cork.
            self.connection.flush_now();
        }
    }
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outbound({} by {:?})", self.peer, self.connection)
    }
}

fn form(tensor: &Tensor) -> Form {
    Form { dtype: tensor.dtype(), shape: tensor.shape().clone() }
}

/// Queues a value and flushes if much is queued, so that sending begins before the last of many values is
/// ready. The caller must hold no locks.
fn post_value(to: &Arc<Connection>, frame: &Frame, payload: Option<Bytes>) -> executor::Result<bool> {
    if to.post(frame, payload).map_err(unsendable)? >= FULL {
        to.flush_now();
    }
    Ok(true)
}

/// Queues a [piggybacked](way_back) value, and flushes.
fn post_back(way: &Arc<Connection>, frame: &Frame, payload: Option<Bytes>) -> executor::Result<bool> {
    let is_posted = post_value(way, frame, payload)?;
    way.flush();
    Ok(is_posted)
}

/// Delivers a [piggybacked](way_back) value to its step's rendezvous.
fn came_back(worker: &Weak<Worker>, name: &Name, sent: Sent) {
    // A step that has ended needs the value no more.
    if let Some(step) = worker.upgrade().and_then(|worker| worker.arrive(name.step_id).ok()) {
        step.rendezvous.came_back(&name.key, sent);
    }
}

fn unsendable(malformed: Malformed) -> Error {
    Error::new(Code::InvalidArgument, malformed.to_string())
}

/// Keeps a tensor's elements alive until they are written.
struct Elements(Arc<Buffer>);

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}
