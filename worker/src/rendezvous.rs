//! The rendezvous of a step in one process of a cluster: what other tasks send is fetched from them.

use crate::fetch::{acknowledge, fetch};
use crate::peers::Peers;
use crate::reply::Reply;
use crate::transfers::Transfers;
use executor::rendezvous::{Receive, Rendezvous, RendezvousKey, Sent};
use executor::{Error, LocalRendezvous, Value};
use graph::Code;
use parking_lot::Mutex;
use proto::Status;
use proto::channel::Peer;
use proto::remote::request_id;
use rustc_hash::FxHashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// Names in a message at most so many receives.
const NAMED: usize = 3;

/// Values of one step. Those from elsewhere can be received once [`StepRendezvous::bind`] said how.
#[derive(Debug)]
pub(crate) struct StepRendezvous {
    step_id: i64,
    local: LocalRendezvous,
    remote: OnceLock<Remote>,
    fetches: Arc<Fetches>,
}

/// What is received from whom.
type Fetch = (Arc<RendezvousKey>, Arc<Peer>);

/// What is on its way from other tasks.
#[derive(Debug, Default)]
struct Fetches {
    aborted: CancellationToken,
    reason: Mutex<Option<Error>>,
    open: Mutex<FxHashMap<u64, Fetch>>,
    next: AtomicU64,
    /// A peer said that it has lost its state.
    restarted: AtomicBool,
}

/// How to receive from other tasks.
#[derive(Clone, Debug)]
pub(crate) struct Remote {
    pub(crate) runtime: Handle,
    pub(crate) peers: Arc<Peers>,
    /// What the names of this task's own devices begin with.
    pub(crate) own_prefix: Arc<str>,
    pub(crate) transfers: Arc<Transfers>,
}

impl StepRendezvous {
    pub(crate) fn new(step_id: i64) -> StepRendezvous {
        StepRendezvous {
            step_id,
            local: LocalRendezvous::new(),
            remote: OnceLock::new(),
            fetches: Arc::default(),
        }
    }

    /// Says how to receive from other tasks; the first word holds.
    pub(crate) fn bind(&self, remote: Remote) {
        let _ = self.remote.set(remote);
    }

    /// Receives what is sent here, whatever the key says of where that is.
    pub(crate) fn recv_local(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        self.local.recv(key, receive);
    }

    pub(crate) fn peer_restarted(&self) -> bool {
        self.fetches.restarted.load(Ordering::Relaxed)
    }

    /// What is still awaited from other tasks, for messages; empty if nothing is.
    pub(crate) fn awaited(&self) -> String {
        let open = self.fetches.open.lock();
        let name = |(key, peer): &Fetch| format!("{} from {} at {}", key.edge, peer.task(), peer.address());
        let mut names: Vec<String> = open.values().map(name).collect();
        names.sort();
        let more = names.len().saturating_sub(NAMED);
        names.truncate(NAMED);
        match (names.is_empty(), more) {
            (true, _) => String::new(),
            (false, 0) => format!("; it waits for {}", names.join(", ")),
            (false, more) => format!("; it waits for {} and {more} more", names.join(", ")),
        }
    }

    fn fetch(&self, remote: &Remote, key: &Arc<RendezvousKey>, receive: Receive) {
        let peer = match remote.peers.source_of(key) {
            Ok(peer) => peer,
            Err(status) => return receive(Err(to_error(status))),
        };
        let id = self.fetches.next.fetch_add(1, Ordering::Relaxed);
        self.fetches.open.lock().insert(id, (key.clone(), peer.clone()));
        let answer = Answer { id, fetches: self.fetches.clone(), receive: Some(receive) };
        let (key, step, request) = (key.clone(), self.step_id, request_id());
        let transfers = remote.transfers.wants(step).then(|| (remote.transfers.clone(), Instant::now()));
        remote.runtime.spawn(async move {
            let aborted = answer.fetches.aborted.clone();
            tokio::select! {
                biased;
                () = aborted.cancelled() => drop(answer),
                // The step's own deadline aborts the fetch, once it has said what it waits for.
                result = fetch(&peer, request, step, &key, None) => {
                    if let (Some((transfers, started)), Ok(reply)) = (transfers, &result) {
                        transfers.record(step, &key, &reply.tensor, started);
                    }
                    let keeps_it = result.as_ref().is_ok_and(|reply| reply.require_ack);
                    answer.give(result);
                    if keeps_it {
                        acknowledge(&peer, request).await;
                    }
                }
            }
        });
    }
}

impl Rendezvous for StepRendezvous {
    fn send(&self, key: &Arc<RendezvousKey>, sent: Sent) -> executor::Result<()> {
        self.local.send(key, sent)
    }

    fn recv(&self, key: &Arc<RendezvousKey>, receive: Receive) {
        match self.remote.get() {
            Some(remote) if !key.src_device.starts_with(&*remote.own_prefix) => {
                self.fetch(remote, key, receive);
            }
            _ => self.local.recv(key, receive),
        }
    }

    fn abort(&self, reason: Error) {
        self.fetches.reason.lock().get_or_insert_with(|| reason.clone());
        self.local.abort(reason);
        self.fetches.aborted.cancel();
    }
}

/// The receiver of one fetch. Dropped without an answer, it says that the step was aborted.
struct Answer {
    id: u64,
    fetches: Arc<Fetches>,
    receive: Option<Receive>,
}

impl Answer {
    fn give(mut self, result: Result<Reply, Status>) {
        let result = match result {
            Ok(Reply { is_dead: true, .. }) => Ok(Sent { value: Value::None, is_dead: true }),
            Ok(Reply { tensor, .. }) => Ok(Sent { value: Value::Host(tensor), is_dead: false }),
            Err(status) => {
                self.fetches.restarted.fetch_or(status.restarted, Ordering::Relaxed);
                Err(to_error(status))
            }
        };
        self.finish(result);
    }

    fn finish(&mut self, result: executor::Result<Sent>) {
        if let Some(receive) = self.receive.take() {
            self.fetches.open.lock().remove(&self.id);
            receive(result);
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if self.receive.is_some() {
            let reason = self.fetches.reason.lock().clone();
            let reason = reason.unwrap_or_else(|| Error::new(Code::Cancelled, "the process is ending"));
            self.finish(Err(reason.derived()));
        }
    }
}

/// A failure of another task as one of a step here.
fn to_error(status: Status) -> Error {
    let error = Error::new(status.code, status.message);
    if status.derived { error.derived() } else { error }
}
