//! The process that follows the one that serves its task, and takes over from it.

use super::{SILENCE, Sign, encode, look};
use crate::worker::Worker;
use executor::resource::ResourceStore;
use futures::stream;
use parking_lot::Mutex;
use proto::Status;
use proto::channel::{self, innermost};
use proto::grpc::MAX_MESSAGE_SIZE;
use proto::replication::replication_service_client::ReplicationServiceClient;
use proto::replication::{self as pb, Batch, FollowRequest};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_util::task::AbortOnDropHandle;

/// Between two attempts to follow: the first is soon, each that fails the next time later.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);
/// How long the other has to say its first word.
const FIRST_WORD: Duration = Duration::from_secs(5);

/// A process that may serve a task that another serves.
#[derive(Debug)]
pub struct Standby {
    worker: Arc<Worker>,
    /// Where the other process serves, `host:port`.
    other: String,
    /// Where this one is known to live.
    presence: String,
    /// What is said there; all bits are turned round once this process serves.
    token: Arc<AtomicU64>,
    _says_so: AbortOnDropHandle<()>,
    held: Mutex<Held>,
}

/// What a standby has.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    /// All that the task had.
    is_whole: bool,
    /// The last batch that was applied.
    applied: u64,
    /// When the other last said that it serves.
    heard: Option<Instant>,
}

impl Held {
    /// The other says nothing any more, and answers nobody without a word of this process.
    fn is_enough(&self) -> bool {
        self.is_whole && self.heard.is_some_and(|heard| heard.elapsed() >= SILENCE)
    }
}

impl Standby {
    /// A standby of the worker's task, which another process serves at `other`. `own` is this machine's name or address
    /// for that process.
    ///
    /// # Errors
    /// `Unavailable` if no port can be had.
    pub async fn new(worker: &Arc<Worker>, other: &str, own: &str, bind: IpAddr) -> Result<Standby, Status> {
        let failed = |e: std::io::Error| {
            let text = format!("{} cannot hold a port open on {bind}: {e}", worker.task());
            Status::new(graph::Code::Unavailable, text)
        };
        let listener = TcpListener::bind((bind, 0)).await.map_err(failed)?;
        let port = listener.local_addr().map_err(failed)?.port();
        let token = Arc::new(AtomicU64::new(rand::random()));
        let says = token.clone();
        // Who connects wants to see that the process lives, and nothing else.
        let says_so = async move {
            loop {
                match listener.accept().await {
                    // The buffer of a new connection has room for it. Who does not hear it asks again.
                    Ok((stream, _)) => {
                        drop(stream.try_write(&says.load(Ordering::Acquire).to_le_bytes()));
                    }
                    // A process without descriptors may have some soon.
                    Err(_) => sleep(PAUSE).await,
                }
            }
        };
        Ok(Standby {
            worker: worker.clone(),
            other: other.to_owned(),
            presence: format!("{own}:{port}"),
            token,
            _says_so: AbortOnDropHandle::new(tokio::spawn(says_so)),
            held: Mutex::default(),
        })
    }

    /// Whether this process holds all that the task had when it was last served.
    pub fn holds_state(&self) -> bool {
        self.held.lock().is_whole
    }

    /// Follows whoever serves the task, until nobody does; a process that is not there yet is waited for so long. Then
    /// this one holds all that the task had, or nothing.
    pub async fn until_nobody_serves(&self, patience: Duration) {
        let start = Instant::now();
        let (mut pause, mut last) = (PAUSE, String::new());
        loop {
            let had = self.held.lock().applied;
            if self.held.lock().is_enough() {
                tracing::warn!("{} was silent for {SILENCE:?}, and answers nobody", self.other);
                return self.takes_over();
            }
            let task = self.worker.task();
            let why = match look(&self.other).await {
                Sign::Ended if self.holds_state() => return self.takes_over(),
                Sign::Ended if start.elapsed() >= patience => {
                    // It may have been told a part.
                    return self.worker.stores().for_each(ResourceStore::clear_all);
                }
                Sign::Ended => String::new(),
                Sign::Silence => {
                    format!("{task} cannot see whether {} serves it: its machine is silent", self.other)
                }
                Sign::Lives | Sign::HasTakenOver => {
                    format!("{task} follows {} no longer: {}", self.other, self.follow().await)
                }
            };
            if why != last && !why.is_empty() {
                tracing::warn!("{why}");
            }
            let came_further = self.held.lock().applied != had;
            pause = if why != last || came_further { PAUSE } else { (2 * pause).min(LONGEST_PAUSE) };
            last = why;
            sleep(pause).await;
        }
    }

    /// From now on the other ends if it comes back.
    fn takes_over(&self) {
        self.token.fetch_xor(u64::MAX, Ordering::AcqRel);
    }

    /// As [`Standby::until_nobody_serves`], when this process has the task's port: whether it is to serve. Another that
    /// has its port too, and serves as little, is told apart by who is `first`.
    pub async fn may_serve(&self, first: bool) -> bool {
        if self.holds_state() {
            return true;
        }
        match look(&self.other).await {
            Sign::Ended => true,
            Sign::Lives | Sign::HasTakenOver => first && self.nobody_answers().await,
            Sign::Silence => false,
        }
    }

    async fn nobody_answers(&self) -> bool {
        let Some(endpoint) = channel::endpoint(&self.other) else { return true };
        let connect = endpoint.connect_with_connector(channel::connector());
        let answered = timeout(FIRST_WORD, async {
            let mut client = proto::service::WorkerServiceClient::new(connect.await.ok()?);
            client.get_status(proto::pb::GetStatusRequest {}).await.ok()
        });
        !matches!(answered.await, Ok(Some(_)))
    }

    /// Follows until the link is lost; why it was.
    async fn follow(&self) -> String {
        let (say, said) = mpsc::unbounded_channel();
        let held = *self.held.lock();
        let hello = FollowRequest {
            task: self.worker.task().to_string(),
            presence: self.presence.clone(),
            holds_state: held.is_whole,
            token: self.token.load(Ordering::Acquire),
            applied: held.applied,
            time: 0,
        };
        let _ = say.send(hello);
        let said = stream::unfold(said, |mut said| async move { said.recv().await.map(|word| (word, said)) });
        let Some(endpoint) = channel::endpoint(&self.other) else { return "that is no address".to_owned() };
        let begun = timeout(FIRST_WORD, async {
            let channel =
                endpoint.connect_with_connector(channel::connector()).await.map_err(|e| innermost(&e))?;
            let mut client = ReplicationServiceClient::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE);
            client.follow(said).await.map_err(|status| status.message().to_owned())
        });
        let mut batches = match begun.await {
            Ok(Ok(answer)) => answer.into_inner(),
            Ok(Err(why)) => return why,
            Err(_) => return "it does not answer".to_owned(),
        };
        // What there is is there or here, from now on.
        self.worker.becomes_certain();
        let mut held = Vec::new();
        loop {
            let batch = match timeout(SILENCE, batches.message()).await {
                Ok(Ok(Some(batch))) => batch,
                Ok(Ok(None)) => return "it has ended".to_owned(),
                Ok(Err(status)) => return status.message().to_owned(),
                Err(_) => return "it says nothing".to_owned(),
            };
            self.held.lock().heard = Some(Instant::now());
            let Batch { number, is_everything, changes, has_more, is_whole, time } = batch;
            if time > 0 {
                let _ = say.send(FollowRequest { time, ..FollowRequest::default() });
                continue;
            }
            if is_everything && number == 0 {
                self.held.lock().is_whole = false;
                self.worker.stores().for_each(ResourceStore::clear_all);
                // That it is not heard is found by the end of the batches.
                let _ = say.send(FollowRequest::default());
                continue;
            }
            held.extend(changes);
            // All of a batch or nothing; everything, which is nothing until it is whole, as it comes.
            if is_everything || !has_more {
                let (worker, changes) = (self.worker.clone(), std::mem::take(&mut held));
                let applied = tokio::task::spawn_blocking(move || apply(&worker, changes)).await;
                if let Err(why) = applied.map_err(|e| e.to_string()).and_then(|a| a.map_err(|s| s.message)) {
                    // What is missing will be told with everything.
                    self.held.lock().is_whole = false;
                    return why;
                }
            }
            if !has_more {
                {
                    let mut held = self.held.lock();
                    held.applied = number;
                    held.is_whole |= is_whole;
                }
                if is_whole {
                    tracing::info!("{} is a standby of {}", self.worker.task(), self.other);
                }
                let _ = say.send(FollowRequest { applied: number, ..FollowRequest::default() });
            }
        }
    }
}

fn apply(worker: &Worker, changes: Vec<pb::Change>) -> Result<(), Status> {
    for change in changes {
        let change = encode::from_proto(change)?;
        let store = worker.stores().nth(change.store as usize).ok_or_else(|| {
            Status::invalid(format!("{} has no CPU device {}", worker.task(), change.store))
        })?;
        change.apply(store).map_err(|e| crate::failure(&e))?;
    }
    Ok(())
}
