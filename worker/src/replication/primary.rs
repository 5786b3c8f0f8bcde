//! The primary of a replicated task: it serves the task and keeps its standby up to date.

use super::following::{Following, Link, messages};
use super::{BEAT, Sign, look_for};
use crate::worker::blocking;
use executor::journal::Journal;
use graph::{Code, TaskName};
use parking_lot::Mutex;
use proto::Status;
use proto::replication::{Batch, FollowRequest};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::{interval, sleep, timeout_at};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Streaming;

/// Time for which a run waits for the standby to acknowledge the run's changes. It is longer if the standby
/// has more to apply than this many bytes per second.
const PATIENCE: Duration = Duration::from_secs(30);
const LEAST_RATE: usize = 8 << 20;
/// Period of the probes for a lost standby's process.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Time after it began to serve for which a process that holds nothing delays sessions, because a standby
/// that holds the task's state may connect.
const UNCERTAIN_FOR: Duration = Duration::from_secs(5);

/// The replication state of a served task.
pub(crate) struct Primary {
    task: TaskName,
    journal: Arc<Journal>,
    state: Mutex<State>,
    /// Held while changes are collected and queued, so that batches are sent in order. It is locked before
    /// `state`.
    order: Arc<tokio::sync::Mutex<()>>,
    /// Notified of each change of `state`.
    moved: watch::Sender<()>,
    /// Cancelled when this process must stop serving.
    yields: CancellationToken,
    started: Instant,
    /// The time at which this process began to serve.
    serves: Mutex<Instant>,
    /// True once no other process can hold more of the task's state than this one.
    is_certain: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    standby: Option<Following>,
    /// The number of the last batch.
    last: u64,
    /// Number of links that standbys have had.
    links: u64,
}

impl Primary {
    pub(crate) fn new(task: TaskName, journal: Arc<Journal>) -> Arc<Primary> {
        Arc::new(Primary {
            task,
            journal,
            state: Mutex::default(),
            order: Arc::default(),
            moved: watch::Sender::new(()),
            yields: CancellationToken::new(),
            started: Instant::now(),
            serves: Mutex::new(Instant::now()),
            is_certain: watch::Sender::new(false),
        })
    }

    pub(super) fn task(&self) -> &TaskName {
        &self.task
    }

    /// Waits until this process must stop serving: the standby has taken over, or a process with the task's
    /// state has come while this one has none.
    pub(crate) async fn yields(&self) {
        self.yields.cancelled().await;
    }

    /// Records that other processes can connect from now on.
    pub(crate) fn begins_to_serve(&self) {
        *self.serves.lock() = Instant::now();
    }

    /// Records that no other process holds more of the task's state than this one.
    pub(crate) fn becomes_certain(&self) {
        self.is_certain.send_replace(true);
    }

    /// Waits until a standby that holds more than this newly started process is unlikely to connect.
    pub(crate) async fn until_certain(&self) {
        let mut is_certain = self.is_certain.subscribe();
        let end = *self.serves.lock() + UNCERTAIN_FOR;
        // After the timeout there is no such standby to wait for.
        let _ = timeout_at(end.into(), is_certain.wait_for(|is_certain| *is_certain)).await;
    }

    /// Waits until the standby has applied all changes made so far. Returns at once without a standby.
    ///
    /// # Errors
    /// `Unavailable` if the standby does not acknowledge the changes for long, or if this process must stop
    /// serving; `DeadlineExceeded` if the deadline is sooner.
    pub(crate) async fn settle(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), Status> {
        let mut moved = self.moved.subscribe();
        let start = Instant::now();
        let mut patience = start + PATIENCE;
        let mut number = None;
        loop {
            if self.yields.is_cancelled() {
                let text =
                    format!("{}: this process gives way to its replica, which has what there is", self.task);
                return Err(Status::new(Code::Unavailable, text));
            }
            let awaited = self.awaited(number);
            if matches!(awaited, Awaited::Nobody) {
                return Ok(());
            }
            patience = patience.max(start + PATIENCE + self.way_to_go());
            let end = deadline.map_or(patience, |deadline| deadline.min(patience));
            let presence = match awaited {
                Awaited::Nobody => return Ok(()),
                Awaited::Word(presence) => presence,
                Awaited::Take(_) if let Some(nothing) = self.nothing_to_take() => {
                    number = Some(nothing);
                    continue;
                }
                // Changes that are being collected must complete first.
                Awaited::Take(presence) => match timeout_at(end.into(), self.in_order(Primary::take)).await {
                    Ok(taken) => {
                        number = taken?;
                        continue;
                    }
                    Err(_) => presence,
                },
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

    /// Returns the time that the standby may need for the changes that it has not applied.
    fn way_to_go(&self) -> Duration {
        let bytes = self.state.lock().standby.as_ref().map_or(0, Following::to_apply);
        Duration::from_secs((bytes / LEAST_RATE) as u64)
    }

    /// Returns whether there may be changes that the standby has not applied.
    pub(crate) fn is_behind(&self) -> bool {
        if !self.state.lock().standby.as_ref().is_some_and(|standby| standby.may_take_over) {
            return false;
        }
        self.nothing_to_take().is_none_or(|number| !matches!(self.awaited(Some(number)), Awaited::Nobody))
    }

    /// Returns the event that a run must wait for until the standby has applied batch `number`, or, without a
    /// number, the changes made so far.
    fn awaited(&self, number: Option<(u64, u64)>) -> Awaited {
        let state = self.state.lock();
        let Some(standby) = state.standby.as_ref().filter(|standby| standby.may_take_over) else {
            return Awaited::Nobody;
        };
        let presence = standby.presence.clone();
        match number {
            _ if !standby.follows() => Awaited::Word(presence),
            Some((id, number)) if id == standby.id && standby.applied() >= number && !standby.is_silent() => {
                Awaited::Nobody
            }
            Some((id, _)) if id == standby.id => Awaited::Word(presence),
            _ if standby.has_enough_to_do() && self.journal.has_notes() => Awaited::Word(presence),
            _ => Awaited::Take(presence),
        }
    }

    /// Calls `act` while no other thread collects changes. It completes even if the returned future is
    /// dropped.
    async fn in_order<T: Send + 'static>(
        self: &Arc<Self>,
        act: impl FnOnce(&Primary) -> T + Send + 'static,
    ) -> Result<T, Status> {
        let (own, order) = (self.clone(), self.order.clone().lock_owned().await);
        blocking(move || {
            let _order = order;
            Ok(act(&own))
        })
        .await
    }

    /// Returns the standby's link and the last batch sent to it, if there are no further changes.
    fn nothing_to_take(&self) -> Option<(u64, u64)> {
        // While another thread collects changes, the journal does not show them.
        let _nobody_takes = self.order.try_lock().ok()?;
        let state = self.state.lock();
        let standby = state.standby.as_ref().filter(|standby| standby.follows())?;
        (!self.journal.has_notes()).then_some((standby.id, state.last))
    }

    /// Sends the collected changes. Returns the standby's link and the last batch sent to it; `None` if no
    /// more batches may be in flight.
    fn take(&self) -> Option<(u64, u64)> {
        let (id, last, has_enough) = {
            let state = self.state.lock();
            let standby = state.standby.as_ref().filter(|s| s.may_take_over && s.follows())?;
            (standby.id, state.last, standby.has_enough_to_do())
        };
        if !self.journal.has_notes() {
            return Some((id, last));
        }
        if has_enough {
            return None;
        }
        let changes = self.journal.take();
        let number = last + 1;
        let batch = messages(Batch { number, ..Batch::default() }, changes).collect();
        let mut state = self.state.lock();
        state.last = number;
        // A standby that has connected anew meanwhile receives a snapshot instead.
        state.standby.as_mut().filter(|standby| standby.id == id)?.send(number, batch);
        Some((id, number))
    }

    /// Adds the standby that sent `hello` over this link. Returns the link's number. A standby that was
    /// linked before is sent the batches that it has not applied. Any other receives a snapshot, and first
    /// discards the state that it holds.
    ///
    /// # Errors
    /// `Unavailable` while there is another standby, or if the standby's process cannot be reached from here.
    pub(super) async fn welcome(self: &Arc<Self>, hello: FollowRequest, link: Link) -> Result<u64, Status> {
        if !self.admits(&hello)? {
            let presence = &hello.presence;
            // Without a way to probe the process, a lost link would look like the end of the process.
            if look_for(presence, hello.token).await != Sign::Lives {
                let text = format!(
                    "{} cannot see its standby's process at {presence}: open the way there",
                    self.task
                );
                return Err(Status::new(Code::Unavailable, text));
            }
        }
        // No more messages are sent over an older link of the same standby.
        if let Some(standby) = self.state.lock().standby.as_mut().filter(|s| s.token == hello.token) {
            standby.unlink();
        }
        let id = self.in_order(move |own| own.link(hello, link)).await??;
        self.becomes_certain();
        self.moved.send_replace(());
        Ok(id)
    }

    /// Returns whether the standby that sent `hello` was linked before and can continue from the state that
    /// it has.
    ///
    /// # Errors
    /// Those of [`Primary::add_standby`].
    fn admits(&self, hello: &FollowRequest) -> Result<bool, Status> {
        let state = self.state.lock();
        let Some(standby) = &state.standby else { return Ok(false) };
        standby.gives_place_to(hello)?;
        Ok(standby.can_resume(hello) && hello.applied <= state.last)
    }

    /// Stores the standby's new link. Returns the link's number.
    fn link(&self, hello: FollowRequest, link: Link) -> Result<u64, Status> {
        let is_back = self.admits(&hello)?;
        let mut state = self.state.lock();
        state.links += 1;
        let id = state.links;
        match &mut state.standby {
            Some(standby) if is_back => {
                tracing::info!("{} has its standby back", self.task);
                standby.resume(id, &hello, link);
            }
            standby => *standby = Some(Following::new(id, hello, link)),
        }
        Ok(id)
    }

    /// Sends a snapshot to a standby that has discarded its state. Runs do not wait for the standby until it
    /// has the snapshot.
    fn tell_everything(&self, id: u64) {
        let Some((link, number)) = self.with(id, |standby, number| standby.begin_everything(number)) else {
            return;
        };
        let changes = self.journal.everything();
        for message in messages(Batch { number, is_everything: true, ..Batch::default() }, changes) {
            if !link.send_when_there_is_room(message) {
                return;
            }
        }
    }

    /// Sends the changes made since the snapshot, after which the standby has the complete state. Runs wait
    /// for the standby from now on.
    fn make_whole(&self, id: u64) {
        // `may_take_over` is set before the changes are collected: a run that still sees it unset has its
        // changes among them.
        let Some(number) = self.with(id, |standby, number| {
            standby.may_take_over = true;
            Some(number)
        }) else {
            return;
        };
        let changes = self.journal.take();
        let batch = messages(Batch { number, is_whole: true, ..Batch::default() }, changes).collect();
        if let Some(standby) = self.state.lock().standby.as_mut().filter(|standby| standby.id == id) {
            standby.send(number, batch);
            tracing::info!("{} has a standby", self.task);
        }
    }

    /// Updates the standby with this link and takes a new batch number for it. `None` if the link is not the
    /// current one.
    fn with<T>(&self, id: u64, change: impl FnOnce(&mut Following, u64) -> Option<T>) -> Option<T> {
        let changed = {
            let mut state = self.state.lock();
            let number = state.last + 1;
            let changed = change(state.standby.as_mut().filter(|standby| standby.id == id)?, number);
            state.last = number;
            changed
        };
        self.moved.send_replace(());
        changed
    }

    /// Processes the messages of a standby until its stream ends.
    pub(super) async fn listen(self: Arc<Self>, id: u64, mut said: Streaming<FollowRequest>) {
        let beats = AbortOnDropHandle::new(tokio::spawn(self.clone().tell_the_time(id)));
        while let Ok(Some(word)) = said.message().await {
            if self.heard(id, &word).await.is_err() {
                break;
            }
        }
        drop(beats);
        self.lost(id).await;
    }

    /// Sends heartbeats for as long as the link exists.
    async fn tell_the_time(self: Arc<Self>, id: u64) {
        let mut beat = interval(BEAT);
        loop {
            beat.tick().await;
            let time = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
            let state = self.state.lock();
            if !state.standby.as_ref().is_some_and(|s| s.id == id && s.tell_the_time(time)) {
                return;
            }
        }
    }

    /// Processes one message of a standby: an acknowledged heartbeat, or the number of the last batch
    /// applied.
    async fn heard(self: &Arc<Self>, id: u64, word: &FollowRequest) -> Result<(), Status> {
        let applied = word.applied;
        let everything = {
            let mut state = self.state.lock();
            let last = state.last;
            let Some(standby) = state.standby.as_mut().filter(|standby| standby.id == id) else {
                return Ok(());
            };
            let sent = self.started.checked_add(Duration::from_millis(word.time));
            let Some(sent) = sent.filter(|sent| *sent <= Instant::now() && applied <= last) else {
                return Err(Status::invalid("a standby has heard what was not said"));
            };
            if word.time > 0 {
                if standby.has_heard(sent) {
                    self.moved.send_replace(());
                }
                return Ok(());
            }
            standby.has_applied(applied);
            standby.everything()
        };
        // The following calls wait for changes that are being collected.
        match everything {
            None => self.in_order(move |own| own.tell_everything(id)).await?,
            Some(everything) if everything == applied => {
                self.in_order(move |own| own.make_whole(id)).await?;
            }
            Some(_) => {
                self.moved.send_replace(());
            }
        }
        Ok(())
    }

    /// Handles the loss of a standby's link: probes the standby's process until it has ended, has taken over
    /// or is linked again.
    async fn lost(self: Arc<Self>, id: u64) {
        let known = {
            let mut state = self.state.lock();
            state.standby.as_mut().filter(|standby| standby.id == id).map(|standby| {
                standby.unlink();
                (standby.presence.clone(), standby.token, standby.may_take_over)
            })
        };
        let Some((presence, token, may_take_over)) = known else { return };
        self.moved.send_replace(());
        tracing::warn!("{} has lost its standby", self.task);
        while may_take_over && self.is_standby(id) {
            match look_for(&presence, token).await {
                Sign::Ended => break,
                Sign::HasTakenOver if self.is_standby(id) => {
                    tracing::warn!(
                        "{} is served by the process that was its standby: this one ends",
                        self.task
                    );
                    return self.yields.cancel();
                }
                Sign::HasTakenOver | Sign::Lives | Sign::Silence => sleep(LOOK_EVERY).await,
            }
        }
        // An error means that the runtime is shutting down.
        let _ = self.in_order(move |own| own.dismiss(id)).await;
    }

    /// Removes the standby with this link, if it is still the current one.
    fn dismiss(&self, id: u64) {
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

    /// Stops serving if this process holds nothing and the standby that sent `hello` holds the task's state.
    /// Returns whether it does so.
    pub(super) fn gives_way_to(&self, hello: &FollowRequest) -> bool {
        let is_blank = !self.journal.was_used() && self.state.lock().links == 0;
        if hello.holds_state && is_blank {
            tracing::warn!("{} holds nothing, and its replica what there is: this one ends", self.task);
            self.yields.cancel();
            return true;
        }
        false
    }
}

/// The event that a run waits for.
enum Awaited {
    Nobody,
    /// The changes must be sent to the standby, whose address this is.
    Take(String),
    /// The standby, whose address this is, must acknowledge the changes.
    Word(String),
}

impl fmt::Debug for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Primary({})", self.task)
    }
}
