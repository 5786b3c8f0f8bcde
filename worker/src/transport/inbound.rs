//! The receiving side of a link: tensors into the rendezvous of their steps, runs to the worker.

use super::budget::TOLD_SHARE;
use super::connection::Connection;
use super::content::{Content, tensor};
use super::cork::corked;
use super::frame::{Frame, Malformed, Name};
use super::hearing::hear_all;
use super::meeting::Caller;
use super::outbound::UNASKED;
use super::peer_blocks::{PeerBlock, PeerBlocks};
use super::shelf::Shelf;
use super::sights::Pair;
use super::way_back;
use crate::handler::Handler;
use crate::rendezvous::to_error;
use crate::worker::Worker;
use bytes::Bytes;
use device::rendezvous::Sent;
use device::window::Loan;
use device::{Error, Value};
use graph::{Code, DeviceName, RendezvousKey};
use parking_lot::Mutex;
use prost::Message;
use proto::convert::tensor_from_proto;
use proto::{Status, pb};
use rpc::afterwards::afterwards;
use rpc::errand::Errand;
use rustc_hash::FxHashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Runs that a peer may have begun and that have not ended.
const MOST_RUNS: usize = 1 << 16;

/// Looks that a peer may have asked for and that have not been answered: one of each device of its into each of these.
const MOST_LOOKS: usize = 1 << 12;

/// A link that stands, from one process.
pub(crate) struct Inbound {
    connection: Arc<Connection>,
    caller: Caller,
    /// Of a link within this process.
    shelf: Option<Arc<Shelf>>,
    /// Bytes that have been taken up and that the sender does not know of.
    untold: AtomicU64,
    runs: Mutex<FxHashMap<u64, Option<Arc<Errand>>>>,
    /// How many devices are looking into blocks, or about to.
    looks: AtomicUsize,
}

impl Inbound {
    pub(super) fn new(connection: Connection, caller: Caller, shelf: Option<Arc<Shelf>>) -> Arc<Inbound> {
        Arc::new(Inbound {
            connection: Arc::new(connection),
            caller,
            shelf,
            untold: AtomicU64::new(0),
            runs: Mutex::default(),
            looks: AtomicUsize::new(0),
        })
    }

    /// The incarnations of the devices whose tensors come here.
    pub(super) fn incarnations(&self) -> &[u64] {
        &self.caller.incarnations
    }

    pub(crate) fn is_broken(&self) -> bool {
        self.connection.is_broken()
    }

    /// Whether what is sent under this key comes here.
    pub(crate) fn carries(&self, key: &str) -> bool {
        let incarnation = key.split(';').nth(1).and_then(|i| u64::from_str_radix(i, 16).ok());
        incarnation.is_some_and(|i| self.caller.incarnations.contains(&i))
    }

    /// Whether the sender pushes all that is for this device: it knows its task by this process's address.
    pub(crate) fn is_for(&self, device: &str) -> bool {
        let is_of = |task: &String| device.strip_prefix(&**task).is_some_and(|rest| rest.starts_with('/'));
        self.caller.receivers.iter().any(is_of)
    }

    /// So many pushed bytes have been taken up, or dropped.
    pub(crate) fn taken(&self, bytes: u64) {
        let untold = self.untold.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if untold >= UNASKED / TOLD_SHARE {
            let bytes = self.untold.swap(0, Ordering::Relaxed);
            self.answer(&Frame::Taken { bytes }, None);
        }
    }

    /// Asks for a value that was offered.
    pub(crate) fn want(&self, step_id: i64, key: &Arc<str>) {
        self.answer(&Frame::Want(Name { step_id, key: key.clone() }), None);
    }

    fn answer(&self, frame: &Frame, payload: Option<Bytes>) {
        if self.connection.post(frame, payload).is_ok() {
            self.connection.flush();
        }
    }

    /// Takes what the other end sends, until the link ends.
    pub(super) async fn serve(self: &Arc<Self>, worker: &Weak<Worker>) -> io::Result<()> {
        let mut blocks = PeerBlocks::default();
        let hear = |frame, content| {
            let worker = worker.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            self.hear(frame, content, &mut blocks, &worker)
        };
        hear_all(&self.connection, hear).await
    }

    fn hear(
        self: &Arc<Self>,
        frame: Frame,
        content: Content,
        blocks: &mut PeerBlocks,
        worker: &Arc<Worker>,
    ) -> io::Result<()> {
        match (frame, content) {
            (Frame::Elements(name, form), Content::Elements(buffer)) => {
                let tensor = tensor(form, buffer)?;
                self.deposit(worker, name, Sent { value: Value::Host(tensor), is_dead: false });
            }
            (Frame::Elements(name, _), Content::TooLarge(error)) => {
                worker.refuse(name.step_id, &name.key, &self.caller.name, &error.into())
            }
            (Frame::Message(name), Content::Message(message)) => {
                let message = pb::TensorProto::decode(message).map_err(|_| Malformed("tensor"))?;
                match tensor_from_proto(message) {
                    Ok(tensor) => {
                        self.deposit(worker, name, Sent { value: Value::Host(tensor), is_dead: false });
                    }
                    Err(error) => worker.refuse(name.step_id, &name.key, &self.caller.name, &error.into()),
                }
            }
            (Frame::Dead(name), _) => self.deposit(worker, name, Sent::dead()),
            (Frame::Lent { name, form, block, loan }, _) => {
                let borrowed = Borrowed { lender: self.clone(), loan, key: name.key.clone() };
                let value = blocks.get(block)?.tensor(form, Box::new(borrowed))?;
                self.deposit(worker, name, Sent { value, is_dead: false });
            }
            (Frame::Look { block, pair }, _) => self.look(worker, blocks.get(block)?, pair)?,
            (Frame::Parcel { name, parcel }, _) => {
                let sent = self.shelf.as_ref().and_then(|shelf| shelf.take(parcel));
                self.deposit(worker, name, sent.ok_or(Malformed("parcel: it is not there"))?);
            }
            (Frame::Block { block, len, place }, Content::Memory(memory)) => {
                blocks.add(block, PeerBlock::new(place, len, memory)?)?;
            }
            (Frame::BlockGone { block }, _) => blocks.remove(block),
            (Frame::Offer(name), _) => match worker.arrive(name.step_id) {
                Ok(step) => step.rendezvous.offered(self, &name.key),
                Err(status) => drop(status),
            },
            (Frame::Run { id, timeout }, Content::Message(message)) => {
                let request = pb::RunGraphRequest::decode(message).map_err(|_| Malformed("run"))?;
                self.run(worker, id, timeout, request)?;
            }
            (Frame::Cancel { id }, _) => {
                let cancelled = self.runs.lock().remove(&id);
                if let Some(Some(run)) = cancelled {
                    run.abort();
                }
            }
            (Frame::Cleanup { step_id }, _) => {
                let worker = worker.clone();
                afterwards(move || corked(|| worker.steps.cleanup(step_id)));
            }
            (Frame::Failed { step_id, why }, _) => {
                if let Ok(step) = worker.arrive(step_id) {
                    step.cancel(to_error(why));
                }
            }
            (Frame::Leaving, _) => self.connection.note_leave(),
            _ => return Err(Malformed("frame: it is the receiver's").into()),
        }
        Ok(())
    }

    /// Leaves a value where its receiver looks. A step that is over wants it no more.
    fn deposit(self: &Arc<Self>, worker: &Arc<Worker>, name: Name, sent: Sent) {
        match worker.arrive(name.step_id) {
            Ok(step) => self.with_way_back(name.step_id, || step.rendezvous.arrived(self, &name.key, sent)),
            Err(_) => self.taken(weight(&sent)),
        }
    }

    /// Answers whether a device here sees a block. To look takes a while.
    fn look(self: &Arc<Self>, worker: &Arc<Worker>, block: &PeerBlock, pair: Pair) -> Result<(), Malformed> {
        if self.looks.fetch_add(1, Ordering::Relaxed) >= MOST_LOOKS {
            return Err(Malformed("look: there are too many"));
        }
        let (own, block) = (self.clone(), block.clone());
        let found = DeviceName::parse(&pair.borrower).ok();
        let found = found.and_then(|name| worker.devices.find_local(&name).ok().cloned());
        worker.runtime.spawn_blocking(move || {
            let sees = found.is_some_and(|found| block.is_seen_by(&*found));
            own.looks.fetch_sub(1, Ordering::Relaxed);
            own.answer(&Frame::Seen { pair, sees }, None);
        });
        Ok(())
    }

    /// Does what follows from something of a step that the other end sent.
    fn with_way_back(&self, step_id: i64, what: impl FnOnce()) {
        way_back::open(&self.connection, self.caller.worker, step_id, what);
    }

    /// Starts a run. It goes on here up to where it waits, and then where its step ends: that saves changes of threads.
    fn run(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        id: u64,
        timeout: Option<Duration>,
        request: pb::RunGraphRequest,
    ) -> io::Result<()> {
        {
            let mut runs = self.runs.lock();
            if runs.len() >= MOST_RUNS || runs.insert(id, None).is_some() {
                return Err(Malformed("run: there are too many, or its number is another's").into());
            }
        }
        let (handler, own) = (Handler::new(worker.clone()), self.clone());
        let deadline = timeout.and_then(proto::deadline::within);
        self.with_way_back(request.step_id, || {
            let run = Errand::begin(&worker.runtime, async move {
                let outcome = handler.run_message(request, deadline).await;
                if own.runs.lock().remove(&id).is_some() {
                    own.ran(id, outcome);
                }
            });
            if let Some(place) = self.runs.lock().get_mut(&id) {
                *place = Some(run);
            }
        });
        Ok(())
    }

    fn ran(&self, id: u64, outcome: Result<pb::RunGraphResponse, Status>) {
        let (failure, message) = match outcome {
            Ok(response) => (None, response.encode_to_vec()),
            Err(status) => (Some(status), Vec::new()),
        };
        self.answer(&Frame::Ran { id, failure }, Some(message.into()));
    }

    pub(super) fn take_leave(&self) {
        self.connection.take_leave();
    }

    /// Ends the connection, and the runs that its peer had asked for.
    pub(super) fn close(&self) {
        self.connection.close();
        let runs = std::mem::take(&mut *self.runs.lock());
        runs.into_values().flatten().for_each(|run| run.abort());
    }

    /// That the link has broken, naming the peer.
    pub(crate) fn broke(&self) -> Error {
        let text = self.connection.broke("the connection for tensors from", &self.caller.name);
        Error::new(Code::Unavailable, text)
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbound({} by {:?})", self.caller.name, self.connection)
    }
}

/// The memory that a pushed value takes here, as its sender counts it.
pub(crate) fn weight(sent: &Sent) -> u64 {
    match &sent.value {
        Value::Host(tensor) if tensor.buffer().is_none_or(|b| b.is_writable()) => tensor.num_bytes() as u64,
        _ => 0,
    }
}

/// Until dropped, the sender leaves what it has lent as it is.
struct Borrowed {
    lender: Arc<Inbound>,
    loan: u64,
    /// Of the value.
    key: Arc<str>,
}

impl Loan for Borrowed {
    fn tell_unseen(&self) {
        if let Ok(key) = RendezvousKey::parse(&self.key) {
            self.lender.answer(&Frame::Seen { pair: Pair::of(&key), sees: false }, None);
        }
    }
}

impl Drop for Borrowed {
    fn drop(&mut self) {
        self.lender.answer(&Frame::Returned { loan: self.loan }, None);
    }
}
