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
    /// Held while changes are taken and put on their way, so that they leave in that order; locked before the state.
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
    /// How many standbys have come.
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
    /// Whether it would take over if this process died now, or soon: then runs wait for it.
    may_take_over: bool,
    /// The batch that tells everything, once it is on its way.
    everything: Option<u64>,
    applied: u64,
}

/// Puts a batch on its way, in messages of bearable size.
fn send(batches: &Batches, empty: Batch, changes: &[Change]) {
    // Who is not there any more is found by the end of what he says.
    let send = |batch| drop(batches.send(Ok(batch)));
    let next = || empty.clone();
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
        let patience = Instant::now() + PATIENCE;
        let end = deadline.map_or(patience, |deadline| deadline.min(patience));
        let mut number = None;
        loop {
            let presence = match self.awaited(number) {
                Awaited::Nobody => return Ok(()),
                Awaited::Word(presence) => presence,
                Awaited::Take(presence) => {
                    // Changes that are under way are waited for.
                    let own = self.clone();
                    let taking = tokio::task::spawn_blocking(move || own.take());
                    match timeout_at(end.into(), taking).await {
                        Ok(taken) => {
                            number = taken.map_err(|e| Status::new(Code::Internal, e.to_string()))?;
                            continue;
                        }
                        Err(_) => presence,
                    }
                }
            };
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
    }

    /// Whether something has changed that the standby may not have.
    pub(crate) fn is_behind(&self) -> bool {
        let state = self.state.lock();
        let Some(standby) = state.standby.as_ref().filter(|standby| standby.may_take_over) else {
            return false;
        };
        standby.batches.is_none() || standby.applied < state.last || self.journal.has_notes()
    }

    /// What is waited for until the standby has this batch, or has whatever is to be put into one.
    fn awaited(&self, number: Option<(u64, u64)>) -> Awaited {
        let state = self.state.lock();
        let Some(standby) = state.standby.as_ref().filter(|standby| standby.may_take_over) else {
            return Awaited::Nobody;
        };
        let presence = standby.presence.clone();
        match number {
            // It has lost its link, or has come anew and not been told everything.
            _ if standby.batches.is_none() || standby.everything.is_none() => Awaited::Word(presence),
            Some((id, number)) if id == standby.id && standby.applied >= number => Awaited::Nobody,
            Some((id, _)) if id == standby.id => Awaited::Word(presence),
            _ => Awaited::Take(presence),
        }
    }

    /// Puts what has changed on its way; the standby, and the last batch that it is sent.
    fn take(&self) -> Option<(u64, u64)> {
        let _order = self.order.lock();
        let (id, batches, last) = {
            let state = self.state.lock();
            let standby = state.standby.as_ref().filter(|s| s.may_take_over && s.everything.is_some())?;
            (standby.id, standby.batches.clone()?, state.last)
        };
        let changes = self.journal.take();
        if changes.is_empty() {
            return Some((id, last));
        }
        self.state.lock().last = last + 1;
        send(&batches, Batch { number: last + 1, ..Batch::default() }, &changes);
        Some((id, last + 1))
    }

    /// A standby has come. One that could take over first says that it has forgotten what it holds.
    fn welcome(&self, hello: FollowRequest) -> (u64, mpsc::UnboundedReceiver<Result<Batch, tonic::Status>>) {
        let (batches, to_send) = mpsc::unbounded_channel();
        let _ = batches.send(Ok(Batch { is_everything: true, has_more: true, ..Batch::default() }));
        let mut state = self.state.lock();
        state.standbys += 1;
        let FollowRequest { presence, token, holds_state, .. } = hello;
        state.standby = Some(Following {
            id: state.standbys,
            presence,
            token,
            batches: Some(batches),
            may_take_over: holds_state,
            everything: None,
            applied: 0,
        });
        (state.standbys, to_send)
    }

    /// The standby has forgotten what it held: tells it everything. No run waits until it has that.
    fn tell_everything(&self, id: u64) {
        let _order = self.order.lock();
        let Some((batches, number)) = self.with(id, |state, number| {
            let standby = state.standby.as_mut()?;
            (standby.may_take_over, standby.everything) = (false, Some(number));
            Some((standby.batches.clone()?, number))
        }) else {
            return;
        };
        let changes = self.journal.everything();
        send(&batches, Batch { number, is_everything: true, ..Batch::default() }, &changes);
    }

    /// The standby has been told everything: with what has changed meanwhile it is whole. Runs wait from now on.
    fn make_whole(&self, id: u64) {
        let _order = self.order.lock();
        let Some((batches, number)) = self.with(id, |state, number| {
            let standby = state.standby.as_mut()?;
            standby.may_take_over = true;
            Some((standby.batches.clone()?, number))
        }) else {
            return;
        };
        // What runs have changed that saw nobody to wait for is noted.
        let changes = self.journal.take();
        send(&batches, Batch { number, is_whole: true, ..Batch::default() }, &changes);
        tracing::info!("{} has a standby", self.task);
    }

    /// Changes the state for one more batch, if this is still the standby.
    fn with<T>(&self, id: u64, change: impl FnOnce(&mut State, u64) -> Option<T>) -> Option<T> {
        let changed = {
            let mut state = self.state.lock();
            state.standby.as_ref().filter(|standby| standby.id == id)?;
            state.last += 1;
            let number = state.last;
            change(&mut state, number)
        };
        self.moved.send_replace(());
        changed
    }

    /// Hears what a standby says until it says no more.
    async fn listen(self: Arc<Self>, id: u64, mut said: Streaming<FollowRequest>) {
        while let Ok(Some(word)) = said.message().await {
            let own = self.clone();
            // What is told takes as long as the changes that are under way.
            let heard = tokio::task::spawn_blocking(move || own.heard(id, word.applied));
            if heard.await.is_err() {
                break;
            }
        }
        self.lost(id).await;
    }

    fn heard(&self, id: u64, applied: u64) {
        let everything = {
            let mut state = self.state.lock();
            let Some(standby) = state.standby.as_mut().filter(|standby| standby.id == id) else { return };
            standby.applied = applied;
            standby.everything
        };
        match everything {
            None => self.tell_everything(id),
            Some(everything) if everything == applied => self.make_whole(id),
            Some(_) => self.moved.send_replace(()),
        }
    }

    /// A standby's link is lost: looks whether its process lives, until that is known or another follows.
    async fn lost(self: Arc<Self>, id: u64) {
        let known = {
            let mut state = self.state.lock();
            state.standby.as_mut().filter(|standby| standby.id == id).map(|standby| {
                standby.batches = None;
                (standby.presence.clone(), standby.token, standby.may_take_over)
            })
        };
        let Some((presence, token, may_take_over)) = known else { return };
        self.moved.send_replace(());
        tracing::warn!("{} has lost its standby", self.task);
        while may_take_over && self.is_standby(id) && look_for(&presence, token).await != Sign::Ended {
            sleep(LOOK_EVERY).await;
        }
        let own = self.clone();
        // Nobody depends on it.
        let _ = tokio::task::spawn_blocking(move || own.dismiss(id)).await;
    }

    /// Goes on without this standby, if it is still that.
    fn dismiss(&self, id: u64) {
        let _order = self.order.lock();
        if !self.is_standby(id) {
            return;
        }
        self.journal.stop();
        self.state.lock().standby = None;
        self.moved.send_replace(());
        tracing::warn!("{} goes on without a standby", self.task);
    }

    fn is_standby(&self, id: u64) -> bool {
        self.state.lock().standby.as_ref().is_some_and(|standby| standby.id == id)
    }

    /// Whether the task has never held anything here, nor had a standby.
    fn is_blank(&self) -> bool {
        !self.journal.was_used() && self.state.lock().standbys == 0
    }
}

/// What a run waits for.
enum Awaited {
    Nobody,
    /// That what has changed is put on its way, to the standby that is there.
    Take(String),
    /// A word of the standby that is there.
    Word(String),
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
        let (id, batches) = primary.welcome(first);
        tokio::spawn(primary.listen(id, said));
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
