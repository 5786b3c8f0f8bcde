//! The values that a step receives from other tasks, by RecvTensor or over a link.

use crate::reply::Reply;
use crate::transfers::TransferTimer;
use device::rendezvous::{Receive, RendezvousKey, Sent};
use device::{Error, Value};
use graph::Code;
use parking_lot::Mutex;
use proto::Status;
use proto::channel::Peer;
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Maximum number of pending receives that an error message names; the message gives only the number of the others.
const MAX_NAMED: usize = 3;

/// The key of a receive, and the task to receive from.
type Fetch = (Arc<RendezvousKey>, Arc<Peer>);

/// The receives of a step that are in progress.
#[derive(Debug, Default)]
pub(super) struct Fetches {
    /// The reason why the step ended; receives that are dropped without an answer fail with it.
    reason: Mutex<Option<Error>>,
    open: Mutex<FxHashMap<u64, Fetch>>,
    next: AtomicU64,
    /// Set when a peer has reported that it restarted and lost its state.
    restarted: AtomicBool,
}

impl Fetches {
    /// Registers a receive, which the returned [`FetchAnswer`] completes.
    pub(super) fn open(
        self: &Arc<Self>,
        key: &Arc<RendezvousKey>,
        peer: &Arc<Peer>,
        receive: Receive,
        timer: Option<TransferTimer>,
    ) -> FetchAnswer {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.lock().insert(id, (key.clone(), peer.clone()));
        FetchAnswer { id, fetches: self.clone(), receive: Some(receive), timer }
    }

    /// Sets the reason with which receives that are dropped without an answer fail; the first reason is
    /// retained.
    pub(super) fn end(&self, reason: &Error) {
        self.reason.lock().get_or_insert_with(|| reason.clone());
    }

    /// Returns whether a peer has reported that it lost its state.
    pub(super) fn has_restarted_peer(&self) -> bool {
        self.restarted.load(Ordering::Relaxed)
    }

    /// Returns the names of the values that are being fetched, with their sources, in order.
    pub(super) fn names(&self) -> Vec<String> {
        let open = self.open.lock();
        let name = |(key, peer): &Fetch| format!("{} from {} at {}", key.edge, peer.task(), peer.address());
        let mut names: Vec<String> = open.values().map(name).collect();
        names.sort();
        names
    }

    /// Returns the end of an error message that names the receives in progress; empty if there are none.
    pub(super) fn awaited(&self) -> String {
        let mut names = self.names();
        let more = names.len().saturating_sub(MAX_NAMED);
        names.truncate(MAX_NAMED);
        match (names.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!("; it waits for {}", names.join(", ")),
            (false, more) => format!("; it waits for {} and {more} more", names.join(", ")),
        }
    }
}

/// The pending answer to one receive. Dropping it without an answer fails the receive with the reason why the
/// step ended.
pub(super) struct FetchAnswer {
    id: u64,
    fetches: Arc<Fetches>,
    receive: Option<Receive>,
    timer: Option<TransferTimer>,
}

impl FetchAnswer {
    /// Completes the receive with the result of RecvTensor.
    pub(super) fn complete(self, result: Result<Reply, Status>) {
        let result = match result {
            Ok(Reply { is_dead: true, .. }) => Ok(Sent::dead()),
            Ok(Reply { tensor, .. }) => Ok(Sent { value: Value::Host(tensor), is_dead: false }),
            Err(status) => {
                self.fetches.restarted.fetch_or(status.restarted, Ordering::Relaxed);
                Err(to_error(status))
            }
        };
        self.finish(result);
    }

    /// Completes the receive with a value or an error, and logs the transfer of a value if the step's transfers are
    /// logged.
    pub(super) fn finish(mut self, result: device::Result<Sent>) {
        match (self.timer.take(), result.as_ref().map(|sent| &sent.value)) {
            (Some(timer), Ok(Value::Host(tensor))) => timer.finish(tensor.num_bytes()),
            (Some(timer), Ok(Value::Device(tensor))) => timer.finish(tensor.memory.len()),
            _ => {}
        }
        self.end(result);
    }

    fn end(&mut self, result: device::Result<Sent>) {
        if let Some(receive) = self.receive.take() {
            self.fetches.open.lock().remove(&self.id);
            receive(result);
        }
    }
}

impl Drop for FetchAnswer {
    fn drop(&mut self) {
        if self.receive.is_some() {
            let reason = self.fetches.reason.lock().clone();
            let reason = reason.unwrap_or_else(|| Error::new(Code::Cancelled, "the process is ending"));
            self.end(Err(reason.derived()));
        }
    }
}

/// Converts a status answered by another task into an error of the step in this process.
pub(crate) fn to_error(status: Status) -> Error {
    let error = Error::new(status.code, status.message);
    if status.derived { error.derived() } else { error }
}
