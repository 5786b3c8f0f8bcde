//! The sending side of a link: pushes tensors, limits the bytes in flight, and handles the receiver's frames,
//! such as requests, answers to runs and [piggybacked](crate::transport::piggyback) values.

mod access;
mod lent;
mod loans;
mod remote_run;
mod shared;

use self::loans::BufferBorrow;
use self::shared::SharedState;
use crate::transport::adaptive_spin::AdaptiveSpin;
use crate::transport::budget::Budget;
use crate::transport::connection::Connection;
use crate::transport::content::{Content, tensor};
use crate::transport::fabric::Lending;
use crate::transport::frame::{Frame, Malformed, TensorSpec, ValueId};
use crate::transport::handoff::HandoffTable;
use crate::transport::peer_access::{DevicePair, PeerAccessTable};
use crate::transport::piggyback;
use crate::transport::receive::receive_all;
use crate::worker::Worker;
use bytes::Bytes;
use device::rendezvous::Sent;
use device::{Error, Value};
use graph::{Buffer, Code, Tensor};
use parking_lot::Mutex;
use prost::Message;
use proto::convert::tensor_to_proto;
use proto::step_ids::next_step_id;
use proto::{Status, pb};
use rustc_hash::FxHashMap;
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// Largest number of bytes in flight that are pushed without a request, not counting shared memory.
pub(in crate::transport) const PUSH_BUDGET: u64 = 64 << 20;
/// Number of queued bytes from which the queue is flushed at once, even within a cork (`visit::cork`).
const FLUSH_FROM: usize = 128 << 10;
/// Time after which the announcement of a step's end is flushed if no other frame has been flushed before.
const CLEANUP_FLUSH_DELAY: Duration = Duration::from_millis(10);

/// The sending side of an open link to another worker.
pub(crate) struct Outbound {
    own: Weak<Outbound>,
    connection: Arc<Connection>,
    /// The receiving task and its address, for error messages.
    peer: String,
    /// The random number that identifies the worker at the other end.
    worker: u64,
    locality: Locality,
    /// The fabric by which the peer reads large tensors.
    lending: Mutex<Lending>,
    runtime: Handle,
    /// Set while a flush is [scheduled](CLEANUP_FLUSH_DELAY).
    flush_is_scheduled: AtomicBool,
    state: Mutex<OutboundState>,
    peer_access: PeerAccessTable,
    runs: Mutex<FxHashMap<u64, oneshot::Sender<Result<pb::RunGraphResponse, Status>>>>,
    next_run: AtomicU64,
    spin: AdaptiveSpin,
}

/// The location of a link's other end: in this process, on this machine or on another one.
#[derive(Debug)]
pub(in crate::transport) enum Locality {
    /// A process on another machine, or one that is reached by TCP.
    Remote,
    /// Another process on this machine, which can map this process's shared memory.
    SameHost,
    /// This process, with the hand-off table for values.
    SameProcess(Arc<HandoffTable>),
}

/// The bytes in flight on a link: those of pushed elements, and the borrowed memory.
#[derive(Debug)]
struct OutboundState {
    budget: Budget,
    shared: SharedState,
}

/// The reason why a tensor is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PushReason {
    /// A Send node has sent the tensor.
    Ready,
    /// The receiver has requested the tensor after an offer.
    Requested,
}

impl Outbound {
    /// Makes the sending side of a link from its connection and the receiving worker's name and number.
    pub(in crate::transport) fn new(
        connection: Connection,
        (peer, worker): (String, u64),
        locality: Locality,
        runtime: Handle,
    ) -> Arc<Outbound> {
        let state = OutboundState { budget: Budget::new(PUSH_BUDGET), shared: SharedState::new() };
        let spin = AdaptiveSpin::new(&runtime);
        Arc::new_cyclic(|own| Outbound {
            own: own.clone(),
            connection: Arc::new(connection),
            peer,
            worker,
            locality,
            lending: Mutex::default(),
            runtime,
            flush_is_scheduled: AtomicBool::new(false),
            state: Mutex::new(state),
            peer_access: PeerAccessTable::default(),
            runs: Mutex::default(),
            next_run: AtomicU64::new(0),
            spin,
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
        reason: PushReason,
    ) -> device::Result<bool> {
        if self.connection.is_broken() {
            return Err(self.broken_error());
        }
        let value_id = ValueId { step_id, key: key.clone() };
        let tensor = match &sent.value {
            _ if sent.is_dead => match piggyback::take(self.worker, step_id, 0) {
                Some(way) => return post_piggybacked(&way, &Frame::Dead(value_id), None),
                None => return post_value(&self.connection, &Frame::Dead(value_id), None),
            },
            Value::Host(tensor) => tensor,
            Value::Device(tensor) => return self.push_device(value_id, tensor, reason),
            other => return Err(Error::internal(format!("{other:?} cannot be sent"))),
        };
        if let Locality::SameProcess(handoff) = &self.locality {
            let number = handoff.insert(sent.clone());
            return post_value(&self.connection, &Frame::HandOff { value_id, number }, None);
        }
        let Some(buffer) = &tensor.buffer() else {
            if !self.try_reserve(tensor.num_bytes(), reason) {
                return Ok(false);
            }
            let message = tensor_to_proto(tensor).encode_to_vec();
            return post_value(&self.connection, &Frame::Message(value_id), Some(message.into()));
        };
        let payload = || Some(Bytes::from_owner(Elements(buffer.clone())));
        if let Some(way) = piggyback::take(self.worker, step_id, buffer.len()) {
            return post_piggybacked(&way, &Frame::Elements(value_id, spec_of(tensor)), payload());
        }
        let loan = BufferBorrow::Host(buffer.clone());
        let shared_block = self.share_block(&loan).unwrap_or_else(|error| {
            tracing::debug!("no memory is shared with {}: {error}", self.peer);
            None
        });
        if let Some(block) = shared_block {
            return self.push_shared(value_id, spec_of(tensor), (block, loan), reason);
        }
        if let Some(is_pushed) = self.push_lent(&value_id, &spec_of(tensor), buffer, reason)? {
            return Ok(is_pushed);
        }
        if !self.try_reserve(buffer.len(), reason) {
            return Ok(false);
        }
        post_value(&self.connection, &Frame::Elements(value_id, spec_of(tensor)), payload())
    }

    /// Reserves bytes of the push budget. Returns false if a value that is ready would exceed the budget.
    fn try_reserve(&self, bytes: usize, reason: PushReason) -> bool {
        reason.try_reserve(&mut self.state.lock().budget, bytes)
    }

    /// Offers a value, which the receiver may request.
    pub(crate) fn offer(&self, step_id: i64, key: &Arc<str>) -> device::Result<()> {
        self.post(&Frame::Offer(ValueId { step_id, key: key.clone() }), None)
    }

    /// Queues a frame.
    fn post(&self, frame: &Frame, payload: Option<Bytes>) -> device::Result<()> {
        self.connection.post(frame, payload).map(drop).map_err(unsendable)
    }

    /// Writes the queued frames.
    pub(crate) fn flush(&self) {
        self.connection.flush();
    }

    /// Returns the error for a broken link; it names the peer.
    pub(crate) fn broken_error(&self) -> Error {
        Error::new(
            Code::Unavailable,
            self.connection.end_message("the connection for tensors to", &self.peer),
        )
    }

    /// Notifies the peer at once that a step has failed here.
    pub(crate) fn send_failure(&self, step_id: i64, why: &Error) {
        let why = crate::failure(why).derived();
        // An error is ignored: both ends notice a broken link, and fail the steps that use it.
        if self.post(&Frame::Failed { step_id, why }, None).is_ok() {
            self.flush();
        }
    }

    /// Notifies a peer that takes part in a step's collectives, perhaps in another master's session, of the step's
    /// failure. The next step in the sequence of step ids fails too, because the other master may have begun it
    /// already, and would wait for members whose master has left the sequence.
    pub(crate) fn send_failure_to_member(&self, step_id: i64, why: &Error) {
        self.send_failure(step_id, why);
        self.send_failure(next_step_id(step_id), why);
    }

    /// Notifies the peer that a step has ended, together with the next frame, which is usually the next
    /// step's.
    pub(crate) fn send_cleanup(&self, step_id: i64) {
        let is_posted = self.post(&Frame::Cleanup { step_id }, None).is_ok();
        if is_posted && !self.flush_is_scheduled.swap(true, Ordering::AcqRel) {
            let own = self.own.clone();
            self.runtime.spawn(async move {
                tokio::time::sleep(CLEANUP_FLUSH_DELAY).await;
                if let Some(link) = own.upgrade() {
                    link.flush_is_scheduled.store(false, Ordering::Release);
                    link.flush();
                }
            });
        }
    }

    /// Handles the frames of the other end until the link ends.
    pub(in crate::transport) async fn listen(self: &Arc<Self>, worker: &Weak<Worker>) -> io::Result<()> {
        receive_all(&self.connection, |frame, content| self.handle(frame, content, worker)).await
    }

    /// Handles one frame of the receiver.
    fn handle(self: &Arc<Self>, frame: Frame, content: Content, worker: &Weak<Worker>) -> io::Result<()> {
        match (frame, content) {
            (Frame::Elements(_, spec), _) if spec.len().is_none_or(|len| len > piggyback::MAX_VALUE) => {
                return Err(Malformed("tensor: it is too large to come back").into());
            }
            (Frame::Elements(value_id, spec), Content::Elements(buffer)) => {
                let value = Value::Host(tensor(spec, buffer)?);
                deliver_piggybacked(worker, &value_id, Sent { value, is_dead: false });
            }
            (Frame::Elements(value_id, _), Content::TooLarge(error)) => {
                if let Some(worker) = worker.upgrade() {
                    worker.cancel_for_value(value_id.step_id, &value_id.key, &self.peer, &error.into());
                }
            }
            (Frame::Dead(value_id), _) => deliver_piggybacked(worker, &value_id, Sent::dead()),
            (Frame::Request(value_id), _) => {
                let step = worker.upgrade().and_then(|worker| worker.steps.get(value_id.step_id));
                if let Some(step) = step {
                    step.rendezvous.answer_request(self, &value_id.key);
                }
            }
            (Frame::Consumed { bytes }, _) => self.state.lock().budget.release(bytes),
            (Frame::Returned { loan }, _) => {
                // The memory is dropped after the lock is released, because freeing it may call
                // `FreeListener::freed` of this object.
                let returned = self.state.lock().shared.end_loan(loan);
                drop(returned);
            }
            (Frame::NotRead { loan }, _) => self.resend_lent(loan),
            (Frame::FabricAnswer { text }, _) => self.complete_fabric(text),
            (Frame::AccessAnswer { pair, has_access }, _) => {
                let how = if has_access {
                    "directly"
                } else {
                    "by the host, because it has no access to that memory"
                };
                let DevicePair { lender, borrower } = &pair;
                tracing::info!("tensors of {lender} go to {borrower} at {} {how}", self.peer);
                self.peer_access.set_answer(&pair, has_access);
            }
            (Frame::Ran { id, failure }, Content::Message(message)) => {
                let response = match failure {
                    Some(status) => Err(status),
                    None => Ok(pb::RunGraphResponse::decode(message).map_err(|_| Malformed("answer"))?),
                };
                self.end_run(id, response);
            }
            (Frame::ShuttingDown, _) => self.connection.set_peer_shutting_down(),
            _ => return Err(Malformed("frame: it is the sender's").into()),
        }
        Ok(())
    }

    /// Announces to the other end that this process is shutting down.
    pub(in crate::transport) fn announce_shutdown(&self) {
        self.connection.announce_shutdown();
    }

    /// Closes the connection, and fails the runs in progress.
    pub(in crate::transport) fn close(&self) {
        self.connection.close();
        self.end_runs();
    }
}

impl PushReason {
    /// Reserves bytes for a tensor: always for a requested one, within the budget's limit for one that is
    /// ready. Returns false if the tensor is to be offered.
    fn try_reserve(self, budget: &mut Budget, bytes: usize) -> bool {
        match self {
            PushReason::Ready => budget.try_reserve(bytes as u64),
            PushReason::Requested => {
                budget.reserve(bytes as u64);
                true
            }
        }
    }
}

impl fmt::Debug for Outbound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Outbound({} by {:?})", self.peer, self.connection)
    }
}

fn spec_of(tensor: &Tensor) -> TensorSpec {
    TensorSpec { dtype: tensor.dtype(), shape: tensor.shape().clone() }
}

/// Queues a value, and flushes if [`FLUSH_FROM`] bytes are queued, so that sending begins before the last of
/// many values is ready. The caller must hold no locks.
fn post_value(to: &Arc<Connection>, frame: &Frame, payload: Option<Bytes>) -> device::Result<bool> {
    if to.post(frame, payload).map_err(unsendable)? >= FLUSH_FROM {
        to.flush_now();
    }
    Ok(true)
}

/// Queues a [piggybacked](piggyback) value on `way`, the connection on which the value's receiver has sent a message,
/// and flushes the connection.
fn post_piggybacked(way: &Arc<Connection>, frame: &Frame, payload: Option<Bytes>) -> device::Result<bool> {
    let is_posted = post_value(way, frame, payload)?;
    way.flush();
    Ok(is_posted)
}

/// Delivers a [piggybacked](piggyback) value to its step's rendezvous.
fn deliver_piggybacked(worker: &Weak<Worker>, value_id: &ValueId, sent: Sent) {
    // An error means that the step has ended and needs the value no more.
    if let Some(step) = worker.upgrade().and_then(|worker| worker.get_or_insert_early(value_id.step_id).ok())
    {
        step.rendezvous.deliver_piggybacked(&value_id.key, sent);
    }
}

fn unsendable(malformed: Malformed) -> Error {
    Error::new(Code::InvalidArgument, malformed.to_string())
}

/// The owner of a frame's payload, which keeps the tensor's buffer alive until the payload is written.
struct Elements(Arc<Buffer>);

impl AsRef<[u8]> for Elements {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}
