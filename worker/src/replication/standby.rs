//! The process that follows the one that serves its task, and takes over from it.

use super::applying::{Applied, Applying, Part};
use super::{FIRST_WORD, SILENCE, Sign, look};
use crate::worker::Worker;
use device::resource::ResourceStore;
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

/// Between two attempts to follow: the first is soon, each that fails the next time later.
const PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// A process that may serve a task that another serves.
#[derive(Debug)]
pub struct Standby {
    worker: Arc<Worker>,
    /// Where the other process serves, `host:port`.
    other: String,
    /// Where this one is known to live.
    presence: String,
    token: u64,
    /// What is said there: the token; once this process serves, all its bits turned round.
    says: Arc<AtomicU64>,
    _says_so: AbortOnDropHandle<()>,
    /// How often it has tried to follow.
    attempts: AtomicU64,
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
        let token = rand::random();
        let says = Arc::new(AtomicU64::new(token));
        let said = says.clone();
        // Who connects wants to see that the process lives, and nothing else.
        let says_so = async move {
            loop {
                match listener.accept().await {
                    // The buffer of a new connection has room for it, and the runtime takes a new one for ready. Who does
                    // not hear it asks again.
                    Ok((stream, _)) => {
                        drop(stream.try_write(&said.load(Ordering::Acquire).to_le_bytes()));
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
            says,
            _says_so: AbortOnDropHandle::new(tokio::spawn(says_so)),
            attempts: AtomicU64::new(0),
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
        self.says.store(!self.token, Ordering::Release);
    }

    /// As [`Standby::until_nobody_serves`], when this process has the task's port: whether it is to serve. Another that
    /// has its port too, and serves as little, is told apart by who is `first`.
    pub async fn may_serve(&self, first: bool) -> bool {
        let may = self.holds_state()
            || match look(&self.other).await {
                Sign::Ended => true,
                Sign::Lives | Sign::HasTakenOver => first && self.nobody_answers().await,
                Sign::Silence => false,
            };
        if may {
            self.worker.begins_to_serve();
        }
        may
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
            token: self.token,
            applied: held.applied,
            attempt: self.attempts.fetch_add(1, Ordering::Relaxed) + 1,
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
        let mut applying = Applying::new(self.worker.clone());
        let why = self.hear(&mut batches, &say, &mut applying).await;
        // Another link goes on with what there is then.
        match applying.finish().await.map(|applied| self.has_applied(applied)) {
            Some(Err(why)) => why,
            Some(Ok(_)) | None => why,
        }
    }

    /// Applies what comes, until no more does; why not.
    async fn hear(
        &self,
        batches: &mut Streaming<Batch>,
        say: &UnboundedSender<FollowRequest>,
        applying: &mut Applying,
    ) -> String {
        // That it is not heard is found by the end of the batches.
        let tell = |number| _ = say.send(FollowRequest { applied: number, ..FollowRequest::default() });
        let mut changes = Vec::new();
        loop {
            let batch = tokio::select! {
                applied = applying.next() => match self.has_applied(applied) {
                    Ok(number) => {
                        number.into_iter().for_each(tell);
                        continue;
                    }
                    Err(why) => return why,
                },
                batch = timeout(SILENCE, batches.message()) => match batch {
                    Ok(Ok(Some(batch))) => batch,
                    Ok(Ok(None)) => return "it has ended".to_owned(),
                    Ok(Err(status)) => return status.message().to_owned(),
                    Err(_) => return "it says nothing".to_owned(),
                },
            };
            self.held.lock().heard = Some(Instant::now());
            if batch.time > 0 {
                let _ = say.send(FollowRequest { time: batch.time, ..FollowRequest::default() });
                continue;
            }
            let Batch { number, is_everything, changes: more, has_more, is_whole, .. } = batch;
            if is_everything && number == 0 {
                self.held.lock().is_whole = false;
                while applying.is_busy() {
                    let _forgotten = applying.next().await;
                }
                self.worker.stores().for_each(ResourceStore::clear_all);
                tell(0);
                continue;
            }
            changes.extend(more);
            // All of a batch or nothing; everything, which is nothing until it is whole, as it comes.
            if is_everything || !has_more {
                let number = (!has_more).then_some(number);
                applying.add(Part { number, is_whole, changes: std::mem::take(&mut changes) });
            }
            // As much as there may be on the way is enough of it.
            while is_everything && applying.is_busy() {
                match self.has_applied(applying.next().await) {
                    Ok(number) => number.into_iter().for_each(tell),
                    Err(why) => return why,
                }
            }
        }
    }

    /// The batch that this process has now, if it was the end of one.
    ///
    /// # Errors
    /// Why it could not be applied: what is missing will be told with everything.
    fn has_applied(&self, applied: Applied) -> Result<Option<u64>, String> {
        let Applied { number, is_whole, result } = applied;
        let mut held = self.held.lock();
        if result.is_err() {
            held.is_whole = false;
        }
        result?;
        held.applied = number.unwrap_or(held.applied);
        held.is_whole |= is_whole;
        if is_whole {
            tracing::info!("{} is a standby of {}", self.worker.task(), self.other);
        }
        Ok(number)
    }
}
