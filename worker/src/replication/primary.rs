//! The primary of a replicated task: it serves the task and keeps its standby up to date.

use super::standby_state::{StandbyLink, StandbyState, messages};
use super::{HEARTBEAT_PERIOD, ProcessState, probe_token};
use crate::worker::blocking;
use device::journal::Journal;
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

/// Time for which a run waits for the standby to acknowledge the run's changes, in addition to the time in
/// which the standby applies the unapplied changes at [`MIN_APPLY_RATE`].
const REPLICATION_TIMEOUT: Duration = Duration::from_secs(30);
/// Rate at which a standby is expected to apply changes, bytes per second.
const MIN_APPLY_RATE: usize = 8 << 20;
/// Period of the probes for a lost standby's process.
const PROBE_PERIOD: Duration = Duration::from_millis(200);
/// Time for which a process that has just begun to serve without the task's state delays sessions, because a
/// standby that holds the state may connect.
const STARTUP_WAIT: Duration = Duration::from_secs(5);

/// The replication state of a task that this process serves: its journal of changes and its standby.
pub(crate) struct Primary {
    task: TaskName,
    journal: Arc<Journal>,
    state: Mutex<PrimaryState>,
    /// Held while changes are taken from the journal and queued for the standby, so that batches are sent in
    /// the order of their numbers. It is locked before `state`.
    order: Arc<tokio::sync::Mutex<()>>,
    /// Notifies waiting runs after each change of `state`.
    changed: watch::Sender<()>,
    /// Cancelled when this process must stop serving.
    superseded: CancellationToken,
    started: Instant,
    /// The time at which this process began to serve.
    serving_since: Mutex<Instant>,
    /// True once no other process can hold more of the task's state than this one.
    is_certain: watch::Sender<bool>,
}

#[derive(Default)]
struct PrimaryState {
    standby: Option<StandbyState>,
    /// The number of the last batch that was sent to a standby; 0 before the first.
    last_batch: u64,
    /// Number of links that standbys have opened, which is also the number of the newest link.
    links: u64,
}

impl Primary {
    pub(crate) fn new(task: TaskName, journal: Arc<Journal>) -> Arc<Primary> {
        Arc::new(Primary {
            task,
            journal,
            state: Mutex::default(),
            order: Arc::default(),
            changed: watch::Sender::new(()),
            superseded: CancellationToken::new(),
            started: Instant::now(),
            serving_since: Mutex::new(Instant::now()),
            is_certain: watch::Sender::new(false),
        })
    }

    pub(super) fn task(&self) -> &TaskName {
        &self.task
    }

    /// Waits until this process must stop serving: the standby has taken over, or a process with the task's state has
    /// connected while this process has none.
    pub(crate) async fn wait_until_superseded(&self) {
        self.superseded.cancelled().await;
    }

    /// Records the time from which other processes can connect to this one.
    pub(crate) fn mark_serving(&self) {
        *self.serving_since.lock() = Instant::now();
    }

    /// Records that no other process holds more of the task's state than this one.
    pub(crate) fn mark_certain(&self) {
        self.is_certain.send_replace(true);
    }

    /// Waits until a standby has connected or [`STARTUP_WAIT`] has passed, after which no standby with more
    /// of the task's state than this newly started process is expected.
    pub(crate) async fn wait_until_certain(&self) {
        let mut is_certain = self.is_certain.subscribe();
        let end = *self.serving_since.lock() + STARTUP_WAIT;
        // A timeout means that no standby with the task's state exists.
        let _ = timeout_at(end.into(), is_certain.wait_for(|is_certain| *is_certain)).await;
    }

    /// Waits until the standby has applied all changes made so far. Returns at once without a standby.
    ///
    /// # Errors
    /// `Unavailable` if the standby does not acknowledge the changes within a time limit (see [`REPLICATION_TIMEOUT`]),
    /// or if this process must stop serving; `DeadlineExceeded` if the deadline is sooner.
    pub(crate) async fn wait_replicated(self: &Arc<Self>, deadline: Option<Instant>) -> Result<(), Status> {
        let mut changed = self.changed.subscribe();
        let start = Instant::now();
        let mut give_up_at = start + REPLICATION_TIMEOUT;
        let mut number = None;
        loop {
            if self.superseded.is_cancelled() {
                let text = format!(
                    "{}: this process stops serving, because its replica holds the task's state",
                    self.task
                );
                return Err(Status::new(Code::Unavailable, text));
            }
            let wait_for_event = self.wait_for_event(number);
            if matches!(wait_for_event, WaitFor::Nothing) {
                return Ok(());
            }
            give_up_at = give_up_at.max(start + REPLICATION_TIMEOUT + self.apply_time());
            let end = deadline.map_or(give_up_at, |deadline| deadline.min(give_up_at));
            let presence = match wait_for_event {
                WaitFor::Nothing => return Ok(()),
                WaitFor::Acknowledgement(presence) => presence,
                WaitFor::Sending(_) if let Some(nothing) = self.last_batch_if_unchanged() => {
                    number = Some(nothing);
                    continue;
                }
                // `run_in_order` first waits for a thread that is already sending changes.
                WaitFor::Sending(presence) => {
                    match timeout_at(end.into(), self.run_in_order(Primary::send_changes)).await {
                        Ok(taken) => {
                            number = taken?;
                            continue;
                        }
                        Err(_) => presence,
                    }
                }
            };
            if timeout_at(end.into(), changed.changed()).await.is_err() {
                let code = if end < give_up_at { Code::DeadlineExceeded } else { Code::Unavailable };
                let text = format!(
                    "{}: its standby, whose process holds {presence} open, does not acknowledge the changes of \
                     the step: it cannot reach this task, or is stopped; end it, or repair the network between the two",
                    self.task
                );
                return Err(Status::new(code, text));
            }
        }
    }

    /// Returns the time that the standby may need for the changes that it has not applied.
    fn apply_time(&self) -> Duration {
        let bytes = self.state.lock().standby.as_ref().map_or(0, StandbyState::unapplied_bytes);
        Duration::from_secs((bytes / MIN_APPLY_RATE) as u64)
    }

    /// Returns whether there may be changes that the standby has not applied.
    pub(crate) fn is_behind(&self) -> bool {
        if !self.state.lock().standby.as_ref().is_some_and(|standby| standby.may_take_over) {
            return false;
        }
        self.last_batch_if_unchanged()
            .is_none_or(|number| !matches!(self.wait_for_event(Some(number)), WaitFor::Nothing))
    }

    /// Returns the next event that a run must wait for before it is answered. `number` holds the numbers of a link and
    /// of the batch on it that the standby must apply; `None` means that all changes made so far must be sent first.
    fn wait_for_event(&self, number: Option<(u64, u64)>) -> WaitFor {
        let state = self.state.lock();
        let Some(standby) = state.standby.as_ref().filter(|standby| standby.may_take_over) else {
            return WaitFor::Nothing;
        };
        let presence = standby.presence.clone();
        match number {
            _ if !standby.is_following() => WaitFor::Acknowledgement(presence),
            Some((id, number)) if id == standby.id && standby.applied() >= number && !standby.is_silent() => {
                WaitFor::Nothing
            }
            Some((id, _)) if id == standby.id => WaitFor::Acknowledgement(presence),
            _ if standby.is_backlogged() && self.journal.has_notes() => WaitFor::Acknowledgement(presence),
            _ => WaitFor::Sending(presence),
        }
    }

    /// Calls `act` on a blocking thread while no other thread takes changes from the journal or sends them. `act`
    /// completes even if the returned future is dropped.
    async fn run_in_order<T: Send + 'static>(
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

    /// Returns the numbers of the standby's link and of the last batch sent to it; `None` if there may be changes that
    /// were not sent, or no standby to send them to.
    fn last_batch_if_unchanged(&self) -> Option<(u64, u64)> {
        // `try_lock` fails while another thread has taken changes from the journal but not yet sent them.
        let _no_thread_collects = self.order.try_lock().ok()?;
        let state = self.state.lock();
        let standby = state.standby.as_ref().filter(|standby| standby.is_following())?;
        (!self.journal.has_notes()).then_some((standby.id, state.last_batch))
    }

    /// Sends the changes in the journal to the standby as one batch. Returns the numbers of the standby's
    /// link and of the last batch; `None` if there is no standby to wait for, or no further batch may be in
    /// flight.
    fn send_changes(&self) -> Option<(u64, u64)> {
        let (id, last, has_enough) = {
            let state = self.state.lock();
            let standby = state.standby.as_ref().filter(|s| s.may_take_over && s.is_following())?;
            (standby.id, state.last_batch, standby.is_backlogged())
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
        state.last_batch = number;
        // A standby that has opened a new link meanwhile is sent a snapshot instead of this batch.
        state.standby.as_mut().filter(|standby| standby.id == id)?.send(number, batch);
        Some((id, number))
    }

    /// Adds the standby that sent `hello` over this link. Returns the link's number. A standby that was
    /// linked before is sent the batches that it has not applied. A new standby discards the state that it
    /// holds and is sent a snapshot.
    ///
    /// # Errors
    /// `Unavailable` while there is another standby, or if this process cannot connect to the standby's
    /// process.
    pub(super) async fn add_standby(
        self: &Arc<Self>,
        hello: FollowRequest,
        link: StandbyLink,
    ) -> Result<u64, Status> {
        if !self.can_resume(&hello)? {
            let presence = &hello.presence;
            // The standby's process must be reachable, because this process probes it after the link was lost to find
            // out whether it has ended.
            if probe_token(presence, hello.token).await != ProcessState::Alive {
                let text = format!(
                    "{} cannot reach its standby's process at {presence}: allow connections to it",
                    self.task
                );
                return Err(Status::new(Code::Unavailable, text));
            }
        }
        // No more messages are sent over an older link of the same standby.
        if let Some(standby) = self.state.lock().standby.as_mut().filter(|s| s.token == hello.token) {
            standby.unlink();
        }
        let id = self.run_in_order(move |own| own.attach(hello, link)).await??;
        self.mark_certain();
        self.changed.send_replace(());
        Ok(id)
    }

    /// Returns whether the standby that sent `hello` was linked before and can continue from the state that
    /// it has.
    ///
    /// # Errors
    /// Those of [`Primary::add_standby`].
    fn can_resume(&self, hello: &FollowRequest) -> Result<bool, Status> {
        let state = self.state.lock();
        let Some(standby) = &state.standby else { return Ok(false) };
        standby.check_replacement(hello)?;
        Ok(standby.can_resume(hello) && hello.applied <= state.last_batch)
    }

    /// Stores the standby's new link. Returns the link's number.
    fn attach(&self, hello: FollowRequest, link: StandbyLink) -> Result<u64, Status> {
        let resumes = self.can_resume(&hello)?;
        let mut state = self.state.lock();
        state.links += 1;
        let id = state.links;
        match &mut state.standby {
            Some(standby) if resumes => {
                tracing::info!("{} has its standby back", self.task);
                standby.resume(id, &hello, link);
            }
            standby => *standby = Some(StandbyState::new(id, hello, link)),
        }
        Ok(id)
    }

    /// Sends a snapshot to a standby that has discarded its state. Runs do not wait for the standby until it
    /// has the snapshot.
    fn send_snapshot(&self, id: u64) {
        let Some((link, number)) = self.update_standby(id, |standby, number| standby.begin_snapshot(number))
        else {
            return;
        };
        let changes = self.journal.everything();
        for message in messages(Batch { number, is_everything: true, ..Batch::default() }, changes) {
            if !link.send_blocking(message) {
                return;
            }
        }
    }

    /// Sends the changes made since the snapshot, after which the standby has the complete state. From this
    /// call on, runs wait for the standby's acknowledgements.
    fn complete_snapshot(&self, id: u64) {
        // `may_take_over` is set before the changes are taken from the journal, so that they include the changes of
        // every run that still read `false` and does not wait for the standby.
        let Some(number) = self.update_standby(id, |standby, number| {
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

    /// Calls `change` with the standby on link `id` and a new batch number. Returns `None` if the standby has
    /// another link.
    fn update_standby<T>(
        &self,
        id: u64,
        change: impl FnOnce(&mut StandbyState, u64) -> Option<T>,
    ) -> Option<T> {
        let changed = {
            let mut state = self.state.lock();
            let number = state.last_batch + 1;
            let changed = change(state.standby.as_mut().filter(|standby| standby.id == id)?, number);
            state.last_batch = number;
            changed
        };
        self.changed.send_replace(());
        changed
    }

    /// Processes the messages of the standby on link `id` until their stream ends.
    pub(super) async fn listen(self: Arc<Self>, id: u64, mut messages: Streaming<FollowRequest>) {
        let heartbeats = AbortOnDropHandle::new(tokio::spawn(self.clone().send_heartbeats(id)));
        while let Ok(Some(message)) = messages.message().await {
            if self.process_message(id, &message).await.is_err() {
                break;
            }
        }
        drop(heartbeats);
        self.handle_lost_link(id).await;
    }

    /// Sends heartbeats to the standby for as long as link `id` is its current link.
    async fn send_heartbeats(self: Arc<Self>, id: u64) {
        let mut period = interval(HEARTBEAT_PERIOD);
        loop {
            period.tick().await;
            let time = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
            let state = self.state.lock();
            if !state.standby.as_ref().is_some_and(|s| s.id == id && s.send_heartbeat(time)) {
                return;
            }
        }
    }

    /// Processes one message of a standby: an acknowledged heartbeat, or the number of the last batch
    /// applied.
    async fn process_message(self: &Arc<Self>, id: u64, message: &FollowRequest) -> Result<(), Status> {
        let applied = message.applied;
        let snapshot = {
            let mut state = self.state.lock();
            let last = state.last_batch;
            let Some(standby) = state.standby.as_mut().filter(|standby| standby.id == id) else {
                return Ok(());
            };
            let sent = self.started.checked_add(Duration::from_millis(message.time));
            let Some(sent) = sent.filter(|sent| *sent <= Instant::now() && applied <= last) else {
                return Err(Status::invalid(
                    "a standby acknowledged a heartbeat or a batch that was not sent",
                ));
            };
            if message.time > 0 {
                if standby.record_acknowledgement(sent) {
                    self.changed.send_replace(());
                }
                return Ok(());
            }
            standby.set_applied(applied);
            standby.snapshot()
        };
        // `run_in_order` may wait for a thread that is sending changes and needs the lock of `state`, so the lock was
        // released above.
        match snapshot {
            None => self.run_in_order(move |own| own.send_snapshot(id)).await?,
            Some(snapshot) if snapshot == applied => {
                self.run_in_order(move |own| own.complete_snapshot(id)).await?;
            }
            Some(_) => {
                self.changed.send_replace(());
            }
        }
        Ok(())
    }

    /// Handles the loss of a standby's link: probes the standby's process until it has ended, has taken over
    /// or is linked again.
    async fn handle_lost_link(self: Arc<Self>, id: u64) {
        let lost = {
            let mut state = self.state.lock();
            state.standby.as_mut().filter(|standby| standby.id == id).map(|standby| {
                standby.unlink();
                (standby.presence.clone(), standby.token, standby.may_take_over)
            })
        };
        let Some((presence, token, may_take_over)) = lost else { return };
        self.changed.send_replace(());
        tracing::warn!("{} has lost its standby", self.task);
        while may_take_over && self.is_standby(id) {
            match probe_token(&presence, token).await {
                ProcessState::Ended => break,
                ProcessState::HasTakenOver if self.is_standby(id) => {
                    tracing::warn!(
                        "{} is served by the process that was its standby: this one ends",
                        self.task
                    );
                    return self.superseded.cancel();
                }
                ProcessState::HasTakenOver | ProcessState::Alive | ProcessState::Unreachable => {
                    sleep(PROBE_PERIOD).await
                }
            }
        }
        // An error means that the runtime is shutting down.
        let _ = self.run_in_order(move |own| own.remove_standby(id)).await;
    }

    /// Removes the standby if `id` is still the number of its link.
    fn remove_standby(&self, id: u64) {
        if !self.is_standby(id) {
            return;
        }
        self.journal.stop();
        self.state.lock().standby = None;
        self.changed.send_replace(());
        tracing::warn!("{} goes on without a standby", self.task);
    }

    fn is_standby(&self, id: u64) -> bool {
        self.state.lock().standby.as_ref().is_some_and(|standby| standby.id == id)
    }

    /// Stops serving if this process holds no state of the task and the standby that sent `hello` holds it.
    /// Returns whether this process stops.
    pub(super) fn try_yield_to(&self, hello: &FollowRequest) -> bool {
        let is_blank = !self.journal.has_changed() && self.state.lock().links == 0;
        if hello.holds_state && is_blank {
            tracing::warn!(
                "{} holds no state, and its replica holds the task's: this process ends",
                self.task
            );
            self.superseded.cancel();
            return true;
        }
        false
    }
}

/// The event that a run on a replicated task waits for before its answer.
enum WaitFor {
    Nothing,
    /// The sending of the changes to the standby, with the address of the standby's process.
    Sending(String),
    /// The standby's acknowledgement of the changes, with the address of the standby's process.
    Acknowledgement(String),
}

impl fmt::Debug for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Primary({})", self.task)
    }
}
