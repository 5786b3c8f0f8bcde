//! The standby of a replicated task: it applies the primary's changes, and takes over from the primary.

use super::apply_queue::{Applied, ApplyQueue, ChangeSet};
use super::{HELLO_TIMEOUT, ProcessState, SILENCE, probe};
use crate::worker::Worker;
use device::resource::ResourceStore;
use futures::future::BoxFuture;
use futures::stream;
use parking_lot::Mutex;
use proto::Status;
use proto::channel::{self, innermost};
use proto::grpc::MAX_MESSAGE_SIZE;
use proto::replication::replication_service_client::ReplicationServiceClient;
use proto::replication::{Batch, FollowRequest};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;
use tonic::Streaming;

/// Initial pause between two attempts to follow the primary. An attempt that makes no progress and fails for the same
/// reason as the attempt before doubles the pause; any other attempt resets it.
const MIN_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause between two attempts to follow the primary.
const MAX_PAUSE: Duration = Duration::from_secs(1);

/// A process that follows the primary of its task and may take over from it.
#[derive(Debug)]
pub struct Standby {
    worker: Arc<Worker>,
    /// The address of the primary, `host:port`.
    other: String,
    /// The address at which this process can be probed, `host:port`.
    presence: String,
    token: u64,
    /// The number that answers probes: the token, or its complement once this process has taken over.
    presence_answer: Arc<AtomicU64>,
    _answers_probes: AbortOnDropHandle<()>,
    /// Number of attempts to follow the primary.
    attempts: AtomicU64,
    progress: Mutex<StandbyProgress>,
}

/// The progress of a standby in receiving the task's state.
#[derive(Clone, Copy, Debug, Default)]
struct StandbyProgress {
    /// Set if the standby has the complete state of the task.
    is_whole: bool,
    /// The number of the last batch that was applied.
    applied: u64,
    /// The time of the primary's last message.
    last_message: Option<Instant>,
}

impl StandbyProgress {
    /// Returns whether this process may take over from a silent primary: it has the complete state, and the
    /// primary answers no runs without this standby's acknowledgements.
    fn can_take_over(&self) -> bool {
        self.is_whole && self.last_message.is_some_and(|last| last.elapsed() >= SILENCE)
    }
}

impl Standby {
    /// Creates a standby of the worker's task, which another process serves at `other`. `own` is this
    /// machine's name or address as seen from that process.
    ///
    /// # Errors
    /// `Unavailable` if no port can be opened.
    pub async fn new(worker: &Arc<Worker>, other: &str, own: &str, bind: IpAddr) -> Result<Standby, Status> {
        let failed = |e: std::io::Error| {
            let text = format!("{} cannot hold a port open on {bind}: {e}", worker.task());
            Status::new(graph::Code::Unavailable, text)
        };
        let listener = TcpListener::bind((bind, 0)).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let token = rand::random();
        let presence_answer = Arc::new(AtomicU64::new(token));
        let number = presence_answer.clone();
        // Clients of this port only probe whether this process lives, so the answer to every connection is
        // the same number.
        let answer_probes = async move {
            loop {
                match listener.accept().await {
                    // The eight bytes fit into a new connection's send buffer, and the runtime assumes a new connection
                    // to be writable. A client that does not receive the answer probes again.
                    Ok((stream, _)) => {
                        drop(stream.try_write(&number.load(Ordering::Acquire).to_le_bytes()));
                    }
                    // Accepting fails, for instance, while the process has no free file descriptors.
                    Err(_) => sleep(MIN_PAUSE).await,
                }
            }
        };
        Ok(Standby {
            worker: worker.clone(),
            other: other.to_owned(),
            presence: format!("{own}:{port}"),
            token,
            presence_answer,
            _answers_probes: AbortOnDropHandle::new(tokio::spawn(answer_probes)),
            attempts: AtomicU64::new(0),
            progress: Mutex::default(),
        })
    }

    /// Returns whether this process holds the complete state of the task.
    pub fn has_state(&self) -> bool {
        self.progress.lock().is_whole
    }

    /// Follows the primary until no process serves the task; waits up to `patience` for a primary that does
    /// not run yet. When this returns, the process holds either the complete state of the task or no state.
    pub fn wait_until_unserved(&self, patience: Duration) -> BoxFuture<'_, ()> {
        Box::pin(self.follow_while_served(patience))
    }

    async fn follow_while_served(&self, patience: Duration) {
        let start = Instant::now();
        let (mut pause, mut last) = (MIN_PAUSE, String::new());
        loop {
            let had = self.progress.lock().applied;
            if self.progress.lock().can_take_over() {
                tracing::warn!("{} was silent for {SILENCE:?}, and answers no runs", self.other);
                return self.announce_takeover();
            }
            let task = self.worker.task();
            let why = match probe(&self.other).await {
                ProcessState::Ended if self.has_state() => return self.announce_takeover(),
                ProcessState::Ended if start.elapsed() >= patience => {
                    // The part of a snapshot that the standby may have received is discarded.
                    return self.worker.stores().for_each(ResourceStore::clear_all);
                }
                ProcessState::Ended => String::new(),
                ProcessState::Unreachable => {
                    format!(
                        "{task} cannot find out whether {} serves it: its machine does not answer",
                        self.other
                    )
                }
                ProcessState::Alive | ProcessState::HasTakenOver => {
                    format!("{task} follows {} no longer: {}", self.other, self.follow().await)
                }
            };
            if why != last && !why.is_empty() {
                tracing::warn!("{why}");
            }
            let made_progress = self.progress.lock().applied != had;
            pause = if why != last || made_progress { MIN_PAUSE } else { (2 * pause).min(MAX_PAUSE) };
            last = why;
            sleep(pause).await;
        }
    }

    /// Makes the answer to probes say that this process has taken over, so that the former primary ends if it
    /// still runs.
    fn announce_takeover(&self) {
        self.presence_answer.store(!self.token, Ordering::Release);
    }

    /// Returns whether this process, which listens on the task's port after [`Standby::wait_until_unserved`],
    /// is to serve the task; if so, marks it as serving. If both processes of the task listen and neither
    /// holds state, the process with `first` set serves.
    pub fn try_begin_serving(&self, first: bool) -> BoxFuture<'_, bool> {
        Box::pin(self.begin_serving(first))
    }

    async fn begin_serving(&self, first: bool) -> bool {
        let may = self.has_state()
            || match probe(&self.other).await {
                ProcessState::Ended => true,
                ProcessState::Alive | ProcessState::HasTakenOver => {
                    first && self.is_other_unresponsive().await
                }
                ProcessState::Unreachable => false,
            };
        if may {
            self.worker.mark_serving();
        }
        may
    }

    /// Returns whether the other process does not answer gRPC calls.
    async fn is_other_unresponsive(&self) -> bool {
        let Some(endpoint) = channel::endpoint(&self.other) else { return true };
        let connect = channel::connect(&endpoint);
        let answered = timeout(HELLO_TIMEOUT, async {
            let mut client = proto::service::WorkerServiceClient::new(connect.await.ok()?);
            client.get_status(proto::pb::GetStatusRequest {}).await.ok()
        });
        !matches!(answered.await, Ok(Some(_)))
    }

    /// Follows the primary until the link is lost. Returns the reason.
    async fn follow(&self) -> String {
        let (sender, requests) = mpsc::unbounded_channel();
        let progress = *self.progress.lock();
        let hello = FollowRequest {
            task: self.worker.task().to_string(),
            presence: self.presence.clone(),
            holds_state: progress.is_whole,
            token: self.token,
            applied: progress.applied,
            attempt: self.attempts.fetch_add(1, Ordering::Relaxed) + 1,
            time: 0,
        };
        let _ = sender.send(hello);
        let requests = stream::unfold(requests, |mut requests| async move {
            requests.recv().await.map(|request| (request, requests))
        });
        let Some(endpoint) = channel::endpoint(&self.other) else {
            return "its address is malformed".to_owned();
        };
        let begun = timeout(HELLO_TIMEOUT, async {
            let channel = channel::connect(&endpoint).await.map_err(|e| innermost(&e))?;
            let mut client = ReplicationServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE);
            client.follow(requests).await.map_err(|status| status.message().to_owned())
        });
        let mut batches = match begun.await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(why)) => return why,
            Err(_) => return "it does not answer".to_owned(),
        };
        // The primary accepted this standby, so no third process holds the task's state.
        self.worker.mark_certain();
        let mut queue = ApplyQueue::new(self.worker.clone());
        let why = self.apply_batches(&mut batches, &sender, &mut queue).await;
        // The standby finishes applying the current batch before it connects again: the next stream of batches
        // continues after that batch.
        match queue.finish().await.map(|applied| self.record_applied(applied)) {
            Some(Err(why)) => why,
            Some(Ok(_)) | None => why,
        }
    }

    /// Applies the primary's batches until the stream of batches ends. Returns the reason for its end.
    async fn apply_batches(
        &self,
        batches: &mut Streaming<Batch>,
        sender: &UnboundedSender<FollowRequest>,
        queue: &mut ApplyQueue,
    ) -> String {
        // The result is ignored, because the stream of batches also ends when the primary is gone.
        let acknowledge =
            |number| _ = sender.send(FollowRequest { applied: number, ..FollowRequest::default() });
        let mut changes = Vec::new();
        loop {
            let batch = tokio::select! {
                applied = queue.next() => match self.record_applied(applied) {
                    Ok(number) => {
                        number.into_iter().for_each(acknowledge);
                        continue;
                    }
                    Err(why) => return why,
                },
                batch = timeout(SILENCE, batches.message()) => match batch {
                    Ok(Ok(Some(batch))) => batch,
                    Ok(Ok(None)) => return "it has ended".to_owned(),
                    Ok(Err(status)) => return status.message().to_owned(),
                    Err(_) => return "it sends nothing".to_owned(),
                },
            };
            self.progress.lock().last_message = Some(Instant::now());
            if batch.time > 0 {
                let _ = sender.send(FollowRequest { time: batch.time, ..FollowRequest::default() });
                continue;
            }
            let Batch { number, is_everything, changes: more, has_more, is_whole, .. } = batch;
            if is_everything && number == 0 {
                self.progress.lock().is_whole = false;
                while queue.is_busy() {
                    let _forgotten = queue.next().await;
                }
                self.worker.stores().for_each(ResourceStore::clear_all);
                acknowledge(0);
                continue;
            }
            changes.extend(more);
            // A batch is applied as a whole. The messages of a snapshot are applied as they arrive, because
            // the standby does not take over before the snapshot is complete.
            if is_everything || !has_more {
                let number = (!has_more).then_some(number);
                queue.add(ChangeSet { number, is_whole, changes: std::mem::take(&mut changes) });
            }
            // The next message of a snapshot is received once this one has been applied, so that the snapshot
            // does not fill the memory.
            while is_everything && queue.is_busy() {
                match self.record_applied(queue.next().await) {
                    Ok(number) => number.into_iter().for_each(acknowledge),
                    Err(why) => return why,
                }
            }
        }
    }

    /// Records that a set of changes was applied. Returns the number of its batch if the set was the batch's
    /// last.
    ///
    /// # Errors
    /// The reason why the changes could not be applied; the primary will send a snapshot.
    fn record_applied(&self, applied: Applied) -> Result<Option<u64>, String> {
        let Applied { number, is_whole, result } = applied;
        let mut progress = self.progress.lock();
        if result.is_err() {
            progress.is_whole = false;
        }
        result?;
        progress.applied = number.unwrap_or(progress.applied);
        progress.is_whole |= is_whole;
        if is_whole {
            tracing::info!("{} is a standby of {}", self.worker.task(), self.other);
        }
        Ok(number)
    }
}
