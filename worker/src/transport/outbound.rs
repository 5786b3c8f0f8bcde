//! The sending side of a link: pushes tensors, lends memory, keeps count of both, and carries runs of graphs. It hears
//! their answers, and what comes [the way back](super::way_back) with them.

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
use device::{Device, DeviceTensor};
use device::rendezvous::Sent;
use device::shared_block::{Freed, Place};
use device::{Error, Value};
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

/// Bytes that are pushed before they are asked for, besides those of memory that is lent.
pub(super) const UNASKED: u64 = 64 << 20;
/// Bytes that are lent before they are asked for and have not been returned: a peer that has stopped must not come to
/// hold all memory.
const LENT: u64 = 1 << 30;
/// Blocks of the host's memory that one peer knows: each is a mapping there. Tensors in others are written to the connection.
/// Devices lend from few blocks, one for each tensor that is lent at a time.
const MOST_KNOWN: usize = 2048;
/// So much leaves at once, bytes.
const FULL: usize = 128 << 10;
/// That a step is over leaves with what comes next, but no later than this.
const TIDY: Duration = Duration::from_millis(10);

/// A link that stands, to one process.
pub(crate) struct Outbound {
    own: Weak<Outbound>,
    connection: Arc<Connection>,
    /// Task and address, for messages.
    peer: String,
    /// The number of the worker at the other end.
    worker: u64,
    reach: Reach,
    runtime: Handle,
    /// What was posted will be flushed [soon](TIDY).
    tidies: AtomicBool,
    state: Mutex<State>,
    sights: Sights,
    runs: Mutex<FxHashMap<u64, oneshot::Sender<Result<pb::RunGraphResponse, Status>>>>,
    next_run: AtomicU64,
    vigil: Vigil,
}

/// What the other end has in common with this one.
#[derive(Debug)]
pub(super) enum Reach {
    Nothing,
    /// It reads this one's memory.
    Memory,
    /// It is of the same process.
    Process(Arc<Shelf>),
}

#[derive(Debug)]
struct State {
    budget: Budget,
    lent: Budget,
    loans: FxHashMap<u64, Loan>,
    next_loan: u64,
    /// The blocks that the peer knows.
    blocks: FxHashSet<u64>,
}

/// Why a tensor leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It is ready.
    Ready,
    /// The receiver asked for it.
    Asked,
}

impl Outbound {
    /// To a worker by its name and its number.
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

    /// Takes a value to leave with the next [`Outbound::flush`]. False if too much is on its way: then it is to be
    /// kept and [offered](Outbound::offer).
    ///
    /// # Errors
    /// `Unavailable`, naming the peer, if the link has broken; what cannot be sent at all.
    pub(crate) fn push(
        &self,
        step_id: i64,
        key: &Arc<str>,
        sent: &Sent,
        cause: Cause,
    ) -> device::Result<bool> {
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

    fn takes(&self, bytes: usize, cause: Cause) -> bool {
        cause.takes(&mut self.state.lock().budget, bytes)
    }

    /// As [`Outbound::push`] of what its receiver [sees](Outbound::is_seen).
    fn push_device(&self, name: Name, tensor: &DeviceTensor, cause: Cause) -> device::Result<bool> {
        let form = Form { dtype: tensor.dtype, shape: tensor.shape.clone() };
        let loan = Loan::Device(tensor.memory.clone());
        let lacking = |why: &str| {
            let what = format!("{} does not see {tensor:?}, which is for {}{why}", self.peer, name.key);
            Error::new(Code::Unavailable, what)
        };
        let known = self.known(&loan).map_err(|error| {
            // Others go by the host, for a while.
            if let Ok(key) = RendezvousKey::parse(&name.key) {
                self.sights.put_off(Pair::of(&key));
            }
            lacking(&format!(": {error}"))
        })?;
        let block = known.ok_or_else(|| lacking(""))?;
        self.lend(name, form, (block, loan), cause)
    }

    /// Whether the receiving device sees what this one, which sends, lends. Whether it sees this tensor is asked if it is not
    /// known yet; until there is an answer, it does not.
    pub(crate) fn is_seen(
        &self,
        key: &RendezvousKey,
        device: &Arc<Device>,
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
        device.processor().export(tensor.clone(), Box::new(lent));
        false
    }

    /// Asks a device of the other end whether it sees this, if it is where it could be seen.
    fn show(&self, pair: Pair, lent: device::Result<Value>) {
        let known = |lent: &DeviceTensor| self.known(&Loan::Device(lent.memory.clone())).ok().flatten();
        let lent = match lent {
            Ok(Value::Device(lent)) => known(&lent).map(|block| (block, lent)),
            _ => None,
        };
        let Some((block, lent)) = lent else { return self.sights.put_off(pair) };
        self.sights.shows(pair.clone(), lent);
        // A link that has broken will be made anew.
        if self.post(&Frame::Look { block, pair }, None).is_ok() {
            self.flush();
        }
    }

    /// The number of the block that memory lies in, by which the peer knows it from now on; `None` if it cannot read it there.
    ///
    /// # Errors
    /// `ResourceExhausted` if there is no descriptor to be given away.
    fn known(&self, loan: &Loan) -> device::Result<Option<u64>> {
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
        // Without the lock: it may have to be copied.
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

    /// Lends memory in a block that the peer knows.
    fn lend(
        &self,
        name: Name,
        form: Form,
        (block, what): (u64, Loan),
        cause: Cause,
    ) -> device::Result<bool> {
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

    /// Says that a value is there for the asking.
    pub(crate) fn offer(&self, step_id: i64, key: &Arc<str>) -> device::Result<()> {
        self.post(&Frame::Offer(Name { step_id, key: key.clone() }), None)
    }

    fn post(&self, frame: &Frame, payload: Option<Bytes>) -> device::Result<()> {
        self.connection.post(frame, payload).map(drop).map_err(unsendable)
    }

    pub(crate) fn flush(&self) {
        self.connection.flush();
    }

    /// That the link has broken, naming the peer.
    pub(crate) fn broke(&self) -> Error {
        Error::new(Code::Unavailable, self.connection.broke("the connection for tensors to", &self.peer))
    }

    /// Runs a graph at the other end; dropping the future cancels that.
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

    fn run_lost(&self) -> Status {
        let why = self.connection.broke("the connection to", &self.peer);
        Status::new(Code::Unavailable, format!("RunGraph failed: {why}"))
    }

    /// Tells the peer that a step has failed here, now.
    pub(crate) fn failed(&self, step_id: i64, why: &Error) {
        let why = crate::failure(why).derived();
        // A link that has broken tells its ends by itself.
        if self.post(&Frame::Failed { step_id, why }, None).is_ok() {
            self.flush();
        }
    }

    /// Tells the peer that a step is over, together with what it is told next: the next step, most often.
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

    /// Takes what the other end says, until the link ends.
    pub(super) async fn listen(self: &Arc<Self>, worker: &Weak<Worker>) -> io::Result<()> {
        hear_all(&self.connection, |frame, content| self.hear(frame, content, worker)).await
    }

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
                // Dropped without the lock: freeing memory may lead back here.
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
                    // Its caller goes on here, and may have much to write.
                    cork::release();
                    // A caller that has gone does not mind.
                    at_hand(|| drop(give.send(response)));
                }
            }
            (Frame::Leaving, _) => self.connection.note_leave(),
            _ => return Err(Malformed("frame: it is the sender's").into()),
        }
        Ok(())
    }

    pub(super) fn take_leave(&self) {
        self.connection.take_leave();
    }

    pub(super) fn close(&self) {
        self.connection.close();
        self.end_runs();
    }

    fn end_runs(&self) {
        let runs = std::mem::take(&mut *self.runs.lock());
        for give in runs.into_values() {
            let _ = give.send(Err(self.run_lost()));
        }
    }

    /// Gives up what was lent and nobody will return: it stays as it is for as long as somebody reads it, and who
    /// wants to write it here copies it. The link has been closed.
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
    fn end_loan(&mut self, loan: u64) -> Option<Loan> {
        let loan = self.loans.remove(&loan)?;
        self.lent.taken(loan.len() as u64);
        Some(loan)
    }
}

impl Cause {
    /// Counts bytes that are to leave; whether they may.
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

/// Tells the other end that nobody waits for its answer.
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
            // Somebody may wait for the memory, on this very thread.
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

/// Posts one of many values: they begin to leave before the last is there. The caller holds no locks.
fn post_value(to: &Arc<Connection>, frame: &Frame, payload: Option<Bytes>) -> device::Result<bool> {
    if to.post(frame, payload).map_err(unsendable)? >= FULL {
        to.flush_now();
    }
    Ok(true)
}

/// As [`post_value`], of one that goes the [way back](way_back).
fn post_back(way: &Arc<Connection>, frame: &Frame, payload: Option<Bytes>) -> device::Result<bool> {
    let is_posted = post_value(way, frame, payload)?;
    way.flush();
    Ok(is_posted)
}

/// Leaves a value that came the [way back](way_back) where its receiver looks.
fn came_back(worker: &Weak<Worker>, name: &Name, sent: Sent) {
    // A step that is over wants it no more.
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
