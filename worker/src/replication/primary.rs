//! The process that serves a task, and what it does for its standby.

use super::{Sign, encode, look_for};
use executor::journal::{Change, Journal};
use futures::stream::{self, BoxStream, StreamExt};
use graph::{Code, TaskName};
use parking_lot::Mutex;
use proto::Status;
use proto::replication::replication_service_server::ReplicationService;
use proto::replication::{Batch, FollowRequest};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::time::{sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Streaming};

/// How long a run waits for a standby that does not say that it has what the run changed.
const PATIENCE: Duration = Duration::from_secs(30);
/// So often is looked whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// About so many bytes are in one message.
const MESSAGE: usize = 32 << 20;

/// What a served task does for its standby.
pub(crate) struct Primary {
    task: TaskName,
    journal: Arc<Journal>,
    state: Mutex<State>,
    /// Held while changes are taken and put on their way, so that they leave in that order.
    order: Mutex<()>,
    /// Changes whenever the state does.
    moved: watch::Sender<()>,
    /// Called for when this process is not to go on.
    yields: CancellationToken,
}

type Batches = mpsc::UnboundedSender<Result<Batch, tonic::Status>>;

#[derive(Default)]
struct State {
    standby: Option<Following>,
    /// The number of the last batch.
    last: u64,
    standbys: u64,
}

/// A standby, or one that has lost its link and whose process may live.
struct Following {
    /// Which one it is of all that have come.
    id: u64,
    presence: String,
    token: u64,
    /// `None` once the link is lost.
    batches: Option<Batches>,
    /// The batch that tells everything.
    first: u64,
    applied: u64,
}

impl Following {
    /// Whether it has been told everything, so that runs wait for it.
    fn is_whole(&self) -> bool {
        self.applied >= self.first
    }
}

/// Puts a batch on its way, in messages of bearable size.
fn send(batches: &Batches, number: u64, is_everything: bool, changes: &[Change]) {
    // Who is not there any more is found by the end of what he says.
    let send = |batch| drop(batches.send(Ok(batch)));
    let next = || Batch { number, is_everything, ..Batch::default() };
    let (mut batch, mut size) = (next(), 0);
    for change in changes.iter().map(encode::to_proto) {
        let more = encode::size(&change);
        if size > 0 && size + more > MESSAGE {
            send(Batch { has_more: true, ..std::mem::replace(&mut batch, next()) });
            size = 0;
        }
        size += more;
        batch.changes.push(change);
    }
    send(batch);
}

impl Primary {
    pub(crate) fn new(task: TaskName, journal: Arc<Journal>) -> Arc<Primary> {
        let (state, order) = (Mutex::default(), Mutex::default());
        let (moved, yields) = (watch::Sender::new(()), CancellationToken::new());
        Arc::new(Primary { task, journal, state, order, moved, yields })
    }

    /// Ends when the standby has all that the task had, and this process nothing: it is to serve no longer.
    pub(crate) async fn yields(&self) {
        self.yields.cancelled().await;
    }

    /// Returns when the standby has all that has changed until now; at once without one.
    ///
    /// # Errors
    /// `Unavailable` if it does not say so for long, `DeadlineExceeded` if the deadline is sooner.
    pub(crate) async fn settle(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), Status> {
        let mut moved = self.moved.subscribe();
        if self.state.lock().standby.is_none() {
            return Ok(());
        }
        let own = self.clone();
        // Changes that are under way are waited for.
        let taken = tokio::task::spawn_blocking(move || own.take()).await;
        let number = taken.map_err(|e| Status::new(Code::Internal, e.to_string()))?;
        let patience = Instant::now() + PATIENCE;
        let end = deadline.map_or(patience, |deadline| deadline.min(patience));
        while let Some(presence) = self.awaited(number) {
            if timeout_at(end.into(), moved.changed()).await.is_err() {
                let code = if end < patience { Code::DeadlineExceeded } else { Code::Unavailable };
                let text = format!(
                    "{}: its standby, whose process holds {presence} open, does not say that it has what the step \
                     changed: it has lost the way here, or is stopped; end it, or mend the network between the two",
                    self.task
                );
                return Err(Status::new(code, text));
            }
        }
        Ok(())
    }

    /// Where the standby is known to live that has not applied this batch yet, if it is waited for.
    fn awaited(&self, number: Option<u64>) -> Option<String> {
        let state = self.state.lock();
        let standby = state.standby.as_ref()?;
        let is_linked = standby.batches.is_some();
        // A newcomer will be told everything, but he is not waited for.
        let is_new = is_linked && !standby.is_whole();
        let has_it = is_linked && number.is_none_or(|number| standby.applied >= number);
        if is_new || has_it { None } else { Some(standby.presence.clone()) }
    }

    /// Puts what has changed on its way; the number of the last batch, if there was a link to put it on. What is lost
    /// on the way will be told with everything.
    fn take(&self) -> Option<u64> {
        let _order = self.order.lock();
        let (batches, last) = {
            let state = self.state.lock();
            (state.standby.as_ref()?.batches.clone()?, state.last)
        };
        let changes = self.journal.take();
        if changes.is_empty() {
            return Some(last);
        }
        let number = last + 1;
        self.state.lock().last = number;
        send(&batches, number, false, &changes);
        Some(number)
    }

    /// A standby has come: tells it everything.
    fn welcome(
        &self,
        standby: FollowRequest,
    ) -> (u64, mpsc::UnboundedReceiver<Result<Batch, tonic::Status>>) {
        let (batches, to_send) = mpsc::unbounded_channel();
        let _order = self.order.lock();
        let (id, first) = {
            let mut state = self.state.lock();
            state.standbys += 1;
            state.last += 1;
            (state.standbys, state.last)
        };
        send(&batches, first, true, &self.journal.everything());
        let FollowRequest { presence, token, .. } = standby;
        let standby = Following { id, presence, token, batches: Some(batches), first, applied: 0 };
        self.state.lock().standby = Some(standby);
        self.moved.send_replace(());
        (id, to_send)
    }

    /// The standby has applied a batch.
    fn applied(&self, id: u64, number: u64) {
        let mut state = self.state.lock();
        let last = state.last;
        let Some(standby) = state.standby.as_mut().filter(|standby| standby.id == id) else { return };
        let was_whole = standby.is_whole();
        standby.applied = standby.applied.max(number);
        if standby.is_whole() && !was_whole {
            // Runs wait from now on: what they did before is on its way before this.
            let whole = Batch { number: last, is_whole: true, ..Batch::default() };
            standby.batches.iter().for_each(|batches| drop(batches.send(Ok(whole.clone()))));
            tracing::info!("{} has a standby", self.task);
        }
        drop(state);
        self.moved.send_replace(());
    }

    /// A standby's link is lost: looks whether its process lives, until that is known or another follows.
    async fn lost(self: Arc<Self>, id: u64) {
        let (presence, token) = {
            let mut state = self.state.lock();
            let Some(standby) = state.standby.as_mut().filter(|standby| standby.id == id) else { return };
            standby.batches = None;
            (standby.presence.clone(), standby.token)
        };
        self.moved.send_replace(());
        tracing::warn!("{} has lost its standby", self.task);
        while self.is_standby(id) {
            if look_for(&presence, token).await == Sign::Ended {
                let mut state = self.state.lock();
                if state.standby.as_ref().is_some_and(|standby| standby.id == id) {
                    self.journal.stop();
                    state.standby = None;
                    tracing::warn!("{} goes on without a standby: its process has ended", self.task);
                }
                drop(state);
                self.moved.send_replace(());
                return;
            }
            sleep(LOOK_EVERY).await;
        }
    }

    fn is_standby(&self, id: u64) -> bool {
        self.state.lock().standby.as_ref().is_some_and(|standby| standby.id == id)
    }

    /// Whether the task has nothing yet.
    fn is_blank(&self) -> bool {
        self.journal.is_empty()
    }
}

/// The service that standbys call.
#[derive(Clone, Debug)]
pub struct Replication(Option<Arc<Primary>>);

impl Replication {
    /// `None` of a task that one process holds.
    pub(crate) fn new(primary: Option<Arc<Primary>>) -> Replication {
        Replication(primary)
    }
}

#[tonic::async_trait]
impl ReplicationService for Replication {
    type FollowStream = BoxStream<'static, Result<Batch, tonic::Status>>;

    async fn follow(
        &self,
        request: Request<Streaming<FollowRequest>>,
    ) -> Result<Response<Self::FollowStream>, tonic::Status> {
        let mut said = request.into_inner();
        let none = || tonic::Status::failed_precondition("this task has no replicas: see --ps-replicas");
        let primary = self.0.clone().ok_or_else(none)?;
        let first = said.message().await?.unwrap_or_default();
        if first.task != primary.task.to_string() {
            let text = format!("{} is served here, and {} followed", primary.task, first.task);
            return Err(tonic::Status::invalid_argument(text));
        }
        if first.holds_state && primary.is_blank() {
            tracing::warn!("{} holds nothing, and its replica what there is: this one ends", primary.task);
            primary.yields.cancel();
            return Err(tonic::Status::aborted("what the task had is with you"));
        }
        let own = primary.clone();
        let welcomed = tokio::task::spawn_blocking(move || own.welcome(first)).await;
        let (id, batches) = welcomed.map_err(|e| tonic::Status::internal(e.to_string()))?;
        tokio::spawn(async move {
            while let Ok(Some(message)) = said.message().await {
                primary.applied(id, message.applied);
            }
            primary.lost(id).await;
        });
        let next = |mut batches: mpsc::UnboundedReceiver<_>| async {
            batches.recv().await.map(|batch| (batch, batches))
        };
        Ok(Response::new(stream::unfold(batches, next).boxed()))
    }
}

impl fmt::Debug for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Primary({})", self.task)
    }
}
