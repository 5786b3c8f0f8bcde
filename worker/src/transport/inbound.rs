//! The receiving side of a link: passes received tensors to the rendezvous of their steps, and runs of graphs
//! to the worker.

use super::budget::REPORT_FRACTION;
use super::connection::Connection;
use super::content::{Content, tensor};
use super::fabric::{Borrower, Fabric, READ_TIMEOUT, RemoteMemory};
use super::frame::{Frame, Malformed, TensorSpec, ValueId};
use super::handoff::HandoffTable;
use super::handshake::Caller;
use super::outbound::PUSH_BUDGET;
use super::peer_access::DevicePair;
use super::peer_blocks::{PeerBlock, PeerBlocks};
use super::piggyback;
use super::receive::receive_all;
use crate::handler::Handler;
use crate::rendezvous::to_error;
use crate::worker::Worker;
use bytes::Bytes;
use device::peer_buffer::BufferBorrow;
use device::rendezvous::Sent;
use device::{Error, Value};
use graph::{Buffer, Code, DeviceName, RendezvousKey};
use parking_lot::Mutex;
use prost::Message;
use proto::convert::tensor_from_proto;
use proto::{Status, pb};
use rpc::inline_task::InlineTask;
use rustc_hash::FxHashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

/// Largest number of runs that a peer may have in progress over one link.
const MAX_RUNS: usize = 1 << 16;

/// Maximum number of unanswered queries of a peer for access to a shared block. A peer sends one for each pair of one
/// of its devices and a device of this process.
const MAX_ACCESS_QUERIES: usize = 1 << 12;

/// Maximum number of tensors of a peer that are being read by a fabric.
const MAX_READS: usize = 1 << 12;

/// The receiving side of an open link, over which another process sends tensors.
pub(crate) struct Inbound {
    connection: Arc<Connection>,
    caller: Caller,
    /// The hand-off table, for a link within this process.
    handoff: Option<Arc<HandoffTable>>,
    /// Consumed bytes that have not been reported to the sender.
    unreported: AtomicU64,
    runs: Mutex<FxHashMap<u64, Option<Arc<InlineTask>>>>,
    /// Number of the peer's access queries that have not been answered.
    access_queries: AtomicUsize,
    /// The fabric by which this process reads large tensors of the peer; unset until the peer's offer is taken.
    borrower: OnceLock<Arc<dyn Borrower>>,
    /// Number of tensors that are being read by the fabric.
    reads: AtomicUsize,
}

impl Inbound {
    pub(super) fn new(
        connection: Connection,
        caller: Caller,
        handoff: Option<Arc<HandoffTable>>,
    ) -> Arc<Inbound> {
        Arc::new(Inbound {
            connection: Arc::new(connection),
            caller,
            handoff,
            unreported: AtomicU64::new(0),
            runs: Mutex::default(),
            access_queries: AtomicUsize::new(0),
            borrower: OnceLock::new(),
            reads: AtomicUsize::new(0),
        })
    }

    /// Returns the incarnations of the peer's devices, whose tensors come over this link.
    pub(super) fn incarnations(&self) -> &[u64] {
        &self.caller.incarnations
    }

    /// Returns whether the link has broken.
    pub(crate) fn is_broken(&self) -> bool {
        self.connection.is_broken()
    }

    /// Returns whether the sending device that a rendezvous key names is one of the peer's devices.
    pub(crate) fn carries(&self, key: &str) -> bool {
        let incarnation = key.split(';').nth(1).and_then(|i| u64::from_str_radix(i, 16).ok());
        incarnation.is_some_and(|i| self.caller.incarnations.contains(&i))
    }

    /// Returns whether the peer pushes all its values for a device of this process. It does so if its cluster
    /// spec gives the device's task this process's address.
    pub(crate) fn is_for(&self, device: &str) -> bool {
        let is_of = |task: &String| device.strip_prefix(&**task).is_some_and(|rest| rest.starts_with('/'));
        self.caller.receivers.iter().any(is_of)
    }

    /// Counts pushed bytes as consumed, and reports the count to the sender once it is 1 /
    /// [`REPORT_FRACTION`] of [`PUSH_BUDGET`].
    pub(crate) fn report_consumed(&self, bytes: u64) {
        let unreported = self.unreported.fetch_add(bytes, Ordering::Relaxed) + bytes;
        if unreported >= PUSH_BUDGET / REPORT_FRACTION {
            let bytes = self.unreported.swap(0, Ordering::Relaxed);
            self.send(&Frame::Consumed { bytes }, None);
        }
    }

    /// Requests a value that was offered.
    pub(crate) fn request(&self, step_id: i64, key: &Arc<str>) {
        self.send(&Frame::Request(ValueId { step_id, key: key.clone() }), None);
    }

    /// Sends a frame back to the process that sends tensors over this link.
    fn send(&self, frame: &Frame, payload: Option<Bytes>) {
        if self.connection.post(frame, payload).is_ok() {
            self.connection.flush();
        }
    }

    /// Returns whether the peer has offered a fabric.
    pub(super) fn has_fabric_offer(&self) -> bool {
        self.caller.fabric.is_some()
    }

    /// Answers the peer's offer of a fabric, if it has made one.
    pub(super) fn answer_fabric(&self, fabric: Option<&Arc<dyn Fabric>>) {
        let Some(offer) = &self.caller.fabric else { return };
        let taken = fabric.map(|fabric| fabric.borrower(offer));
        let text = match taken {
            Some(Ok((borrower, text))) => {
                self.borrower.set(borrower).map_or_else(|_| String::new(), |()| text)
            }
            Some(Err(error)) => {
                tracing::warn!("large tensors of {} come by TCP: {error}", self.caller.name);
                String::new()
            }
            None => String::new(),
        };
        self.send(&Frame::FabricAnswer { text }, None);
    }

    /// Handles the frames of the other end until the link ends.
    pub(super) async fn serve(self: &Arc<Self>, worker: &Weak<Worker>) -> io::Result<()> {
        let mut blocks = PeerBlocks::default();
        let handle = |frame, content| {
            let worker = worker.upgrade().ok_or(io::ErrorKind::NotConnected)?;
            self.handle(frame, content, &mut blocks, &worker)
        };
        receive_all(&self.connection, handle).await
    }

    /// Handles one frame of the peer.
    pub(super) fn handle(
        self: &Arc<Self>,
        frame: Frame,
        content: Content,
        blocks: &mut PeerBlocks,
        worker: &Arc<Worker>,
    ) -> io::Result<()> {
        match (frame, content) {
            (Frame::Elements(value_id, spec), Content::Elements(buffer)) => {
                let tensor = tensor(spec, buffer)?;
                self.deliver(worker, value_id, Sent { value: Value::Host(tensor), is_dead: false });
            }
            (Frame::Elements(value_id, _), Content::TooLarge(error)) => {
                worker.cancel_for_value(value_id.step_id, &value_id.key, &self.caller.name, &error.into())
            }
            (Frame::Message(value_id), Content::Message(message)) => {
                let message = pb::TensorProto::decode(message).map_err(|_| Malformed("tensor"))?;
                match tensor_from_proto(message) {
                    Ok(tensor) => {
                        self.deliver(worker, value_id, Sent { value: Value::Host(tensor), is_dead: false });
                    }
                    Err(error) => worker.cancel_for_value(
                        value_id.step_id,
                        &value_id.key,
                        &self.caller.name,
                        &error.into(),
                    ),
                }
            }
            (Frame::Dead(value_id), _) => self.deliver(worker, value_id, Sent::dead()),
            (Frame::Shared { value_id, spec, at, loan }, _) => {
                let guard = BorrowGuard { lender: self.clone(), loan, key: value_id.key.clone() };
                let value = blocks.get(at.block)?.tensor(spec, at.start, Box::new(guard))?;
                self.deliver(worker, value_id, Sent { value, is_dead: false });
            }
            (Frame::Lent { value_id, spec, from, loan }, _) => {
                self.read_lent(worker, value_id, spec, from, loan)?
            }
            (Frame::QueryAccess { block, pair }, _) => {
                self.answer_access_query(worker, blocks.get(block)?, pair)?
            }
            (Frame::HandOff { value_id, number }, _) => {
                let sent = self.handoff.as_ref().and_then(|handoff| handoff.take(number));
                self.deliver(worker, value_id, sent.ok_or(Malformed("hand-off: the value is not there"))?);
            }
            (Frame::Block { block, len, kind }, Content::Memory(memory)) => {
                blocks.add(block, PeerBlock::new(kind, len, memory)?)?;
            }
            (Frame::BlockFreed { block }, _) => blocks.remove(block),
            (Frame::Offer(value_id), _) => match worker.get_or_insert_early(value_id.step_id) {
                Ok(step) => step.rendezvous.record_offer(self, &value_id.key),
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
                visit::defer(move || visit::cork(|| worker.steps.cleanup(step_id)));
            }
            (Frame::Failed { step_id, why }, _) => {
                if let Ok(step) = worker.get_or_insert_early(step_id) {
                    step.cancel(to_error(why));
                }
            }
            (Frame::ShuttingDown, _) => self.connection.set_peer_shutting_down(),
            _ => return Err(Malformed("frame: it is the receiver's").into()),
        }
        Ok(())
    }

    /// Delivers a value to its step's rendezvous; a value for a step that has ended is dropped.
    fn deliver(self: &Arc<Self>, worker: &Arc<Worker>, value_id: ValueId, sent: Sent) {
        match worker.get_or_insert_early(value_id.step_id) {
            Ok(step) => self.with_piggyback(value_id.step_id, || {
                step.rendezvous.deliver_pushed(self, &value_id.key, sent)
            }),
            Err(_) => self.report_consumed(pushed_bytes(&sent)),
        }
    }

    /// Reads a lent tensor on a blocking thread, and delivers it. A tensor that cannot be read is reported to the sender, which
    /// sends it over the connection.
    fn read_lent(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        value_id: ValueId,
        spec: TensorSpec,
        from: RemoteMemory,
        loan: u64,
    ) -> Result<(), Malformed> {
        let len = spec.len().ok_or(Malformed("tensor: its size"))?;
        let borrower = self.borrower.get().ok_or(Malformed("tensor: the link has no fabric"))?.clone();
        if self.reads.fetch_add(1, Ordering::Relaxed) >= MAX_READS {
            return Err(Malformed("tensor: too many are lent"));
        }
        let (own, worker) = (self.clone(), worker.clone());
        let runtime = worker.runtime.clone();
        runtime.spawn_blocking(move || {
            let read = read(&*borrower, from, len);
            own.reads.fetch_sub(1, Ordering::Relaxed);
            match read {
                Ok(buffer) => {
                    own.send(&Frame::Returned { loan }, None);
                    if let Ok(tensor) = tensor(spec, buffer) {
                        own.deliver_read(
                            &worker,
                            &value_id,
                            Sent { value: Value::Host(tensor), is_dead: false },
                        );
                    }
                }
                Err(error) => {
                    tracing::warn!("a tensor of {} comes by TCP: {error}", own.caller.name);
                    own.send(&Frame::NotRead { loan }, None);
                }
            }
        });
        Ok(())
    }

    /// Delivers a tensor that has been read by the fabric, like a pushed one.
    fn deliver_read(self: &Arc<Self>, worker: &Arc<Worker>, value_id: &ValueId, sent: Sent) {
        match worker.get_or_insert_early(value_id.step_id) {
            Ok(step) => step.rendezvous.deliver_pushed(self, &value_id.key, sent),
            Err(_) => self.report_consumed(pushed_bytes(&sent)),
        }
    }

    /// Tests on a blocking thread whether the device `pair.borrower` of this process can access a block of
    /// the peer, and sends the answer.
    fn answer_access_query(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        block: &PeerBlock,
        pair: DevicePair,
    ) -> Result<(), Malformed> {
        if self.access_queries.fetch_add(1, Ordering::Relaxed) >= MAX_ACCESS_QUERIES {
            return Err(Malformed("access query: there are too many"));
        }
        let (own, block) = (self.clone(), block.clone());
        let found = DeviceName::parse(&pair.borrower).ok();
        let found = found.and_then(|name| worker.devices.find_local(&name).ok().cloned());
        worker.runtime.spawn_blocking(move || {
            let has_access = found.is_some_and(|found| block.is_accessible_by(&found));
            own.access_queries.fetch_sub(1, Ordering::Relaxed);
            own.send(&Frame::AccessAnswer { pair, has_access }, None);
        });
        Ok(())
    }

    /// Calls `then`, which handles a message about a step. Small values that the step sends to the peer meanwhile can
    /// be sent on this connection ([`piggyback`]).
    fn with_piggyback(&self, step_id: i64, then: impl FnOnce()) {
        piggyback::open(&self.connection, self.caller.worker, step_id, then);
    }

    /// Begins a run. The run executes on this thread until it first waits, and continues on the thread that ends the
    /// wait, which saves thread switches.
    fn run(
        self: &Arc<Self>,
        worker: &Arc<Worker>,
        id: u64,
        timeout: Option<Duration>,
        request: pb::RunGraphRequest,
    ) -> io::Result<()> {
        {
            let mut runs = self.runs.lock();
            if runs.len() >= MAX_RUNS || runs.insert(id, None).is_some() {
                return Err(Malformed("run: there are too many, or its number is another's").into());
            }
        }
        let (handler, own) = (Handler::new(worker.clone()), self.clone());
        let deadline = timeout.and_then(proto::deadline::within);
        self.with_piggyback(request.step_id, || {
            let run = InlineTask::begin(&worker.runtime, async move {
                let outcome = handler.run_message(request, deadline).await;
                if own.runs.lock().remove(&id).is_some() {
                    own.send_run_result(id, outcome);
                }
            });
            if let Some(slot) = self.runs.lock().get_mut(&id) {
                *slot = Some(run);
            }
        });
        Ok(())
    }

    /// Sends the result of a run.
    fn send_run_result(&self, id: u64, outcome: Result<pb::RunGraphResponse, Status>) {
        let (failure, message) = match outcome {
            Ok(response) => (None, response.encode_to_vec()),
            Err(status) => (Some(status), Vec::new()),
        };
        self.send(&Frame::Ran { id, failure }, Some(message.into()));
    }

    /// Announces to the other end that this process is shutting down.
    pub(super) fn announce_shutdown(&self) {
        self.connection.announce_shutdown();
    }

    /// Closes the connection, and aborts the runs that the peer had begun over it.
    pub(super) fn close(&self) {
        self.connection.close();
        if let Some(borrower) = self.borrower.get() {
            borrower.close();
        }
        let runs = std::mem::take(&mut *self.runs.lock());
        runs.into_values().flatten().for_each(|run| run.abort());
    }

    /// Returns the error for a broken link; it names the peer.
    pub(crate) fn broken_error(&self) -> Error {
        let text = self.connection.end_message("the connection for tensors from", &self.caller.name);
        Error::new(Code::Unavailable, text)
    }
}

impl fmt::Debug for Inbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Inbound({} by {:?})", self.caller.name, self.connection)
    }
}

/// Reads memory of a peer into a new buffer.
fn read(borrower: &dyn Borrower, from: RemoteMemory, len: usize) -> io::Result<Buffer> {
    let failed = |error: graph::Error| io::Error::new(io::ErrorKind::OutOfMemory, error.to_string());
    let mut buffer = Buffer::unspecified(len).map_err(failed)?;
    borrower.read(from, buffer.as_mut_slice(), Instant::now() + READ_TIMEOUT)?;
    Ok(buffer)
}

/// Returns the size of a pushed value as its sender counts it against the push budget, bytes: 0 for shared
/// memory.
pub(crate) fn pushed_bytes(sent: &Sent) -> u64 {
    match &sent.value {
        Value::Host(tensor) if tensor.buffer().is_none_or(|b| b.is_writable()) => tensor.num_bytes() as u64,
        _ => 0,
    }
}

/// A guard of a sender's buffer that this process borrows. The sender does not change the buffer until dropping the
/// guard has sent [`Frame::Returned`].
struct BorrowGuard {
    lender: Arc<Inbound>,
    loan: u64,
    /// The rendezvous key of the value in the buffer.
    key: Arc<str>,
}

impl BufferBorrow for BorrowGuard {
    fn report_no_access(&self) {
        if let Ok(key) = RendezvousKey::parse(&self.key) {
            self.lender.send(&Frame::AccessAnswer { pair: DevicePair::of(&key), has_access: false }, None);
        }
    }
}

impl Drop for BorrowGuard {
    fn drop(&mut self) {
        self.lender.send(&Frame::Returned { loan: self.loan }, None);
    }
}
