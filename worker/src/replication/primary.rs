//! The process that serves a task, and what it does for its standby.

use super::following::{Following, Link, messages};
use super::{BEAT, Sign, look_for};
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

/// How long a run waits for a standby that does not say that it has what the run changed, and longer where that is more
/// than so many bytes a second.
const PATIENCE: Duration = Duration::from_secs(30);
const LEAST_RATE: usize = 8 << 20;
/// So often is looked whether it does.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// How long after its start a process that holds nothing waits with sessions for a standby that may hold what there is.
const UNCERTAIN_FOR: Duration = Duration::from_secs(5);

/// What a served task does for its standby.
pub(crate) struct Primary {
    task: TaskName,
    journal: Arc<Journal>,
    state: Mutex<State>,
    /// Held while changes are taken and put on their way, so that they leave in that order; locked before the state.
    order: Arc<tokio::sync::Mutex<()>>,
    /// Changes whenever the state does.
    moved: watch::Sender<()>,
    /// Called for when this process is not to go on.
    yields: CancellationToken,
    started: Instant,
    /// When it began to serve.
    serves: Mutex<Instant>,
    /// No other process holds more than this one.
    is_certain: watch::Sender<bool>,
}

#[derive(Default)]
struct State {
    standby: Option<Following>,
    /// The number of the last batch.
    last: u64,
    /// How many links of standbys there have been.
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

    /// Ends when the standby has all that the task had, and this process nothing, or nothing more: it is to serve no longer.
    pub(crate) async fn yields(&self) {
        self.yields.cancelled().await;
    }

    /// From now on others may come.
    pub(crate) fn begins_to_serve(&self) {
        *self.serves.lock() = Instant::now();
    }

    /// No other process holds more than this one.
    pub(crate) fn becomes_certain(&self) {
        self.is_certain.send_replace(true);
    }

    /// Ends once no standby is likely to come that holds what this process, which has just started, does not.
    pub(crate) async fn until_certain(&self) {
        let mut is_certain = self.is_certain.subscribe();
        let end = *self.serves.lock() + UNCERTAIN_FOR;
        // After that nobody can be waited for.
        let _ = timeout_at(end.into(), is_certain.wait_for(|is_certain| *is_certain)).await;
    }

    /// Returns when the standby has all that has changed until now; at once without one.
    ///
    /// # Errors
    /// `Unavailable` if it does not say so for long, or if this process gives way to it, `DeadlineExceeded` if the deadline
    /// is sooner.
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
                // Changes that are under way are waited for.
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

    /// How long what the standby is sent may take to be there.
    fn way_to_go(&self) -> Duration {
        let bytes = self.state.lock().standby.as_ref().map_or(0, Following::to_apply);
        Duration::from_secs((bytes / LEAST_RATE) as u64)
    }

    /// Whether something has changed that the standby may not have.
    pub(crate) fn is_behind(&self) -> bool {
        if !self.state.lock().standby.as_ref().is_some_and(|standby| standby.may_take_over) {
            return false;
        }
        self.nothing_to_take().is_none_or(|number| !matches!(self.awaited(Some(number)), Awaited::Nobody))
    }

    /// What is waited for until the standby has this batch, or has whatever is to be put into one.
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

    /// Does this when nobody else takes changes; what has begun is done, whether or not it is waited for.
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

    /// The standby's link, and the last batch that it is sent, if that is all.
    fn nothing_to_take(&self) -> Option<(u64, u64)> {
        // What is being taken is not noted.
        let _nobody_takes = self.order.try_lock().ok()?;
        let state = self.state.lock();
        let standby = state.standby.as_ref().filter(|standby| standby.follows())?;
        (!self.journal.has_notes()).then_some((standby.id, state.last))
    }

    /// Puts what has changed on its way; the standby's link, and the last batch that it is sent. `None` if it is not to
    /// be sent more now.
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
        // Who has come anew meanwhile is told everything.
        state.standby.as_mut().filter(|standby| standby.id == id)?.send(number, batch);
        Some((id, number))
    }

    /// A standby has come, over this link; the link's number. One that was here before and has lost its link is sent
    /// what it has not applied. Any other is told everything; if it could take over, it first forgets what it holds.
    ///
    /// # Errors
    /// `Unavailable` while there is another, or if its process cannot be seen from here.
    pub(super) async fn welcome(self: &Arc<Self>, hello: FollowRequest, link: Link) -> Result<u64, Status> {
        if !self.admits(&hello)? {
            let presence = &hello.presence;
            // Or it would seem to have ended as soon as its link is lost.
            if look_for(presence, hello.token).await != Sign::Lives {
                let text = format!(
                    "{} cannot see its standby's process at {presence}: open the way there",
                    self.task
                );
                return Err(Status::new(Code::Unavailable, text));
            }
        }
        // What it was told over another link it is told no more.
        if let Some(standby) = self.state.lock().standby.as_mut().filter(|s| s.token == hello.token) {
            standby.unlink();
        }
        let id = self.in_order(move |own| own.link(hello, link)).await??;
        self.becomes_certain();
        self.moved.send_replace(());
        Ok(id)
    }

    /// Whether who says this was here before, and goes on with what it has.
    ///
    /// # Errors
    /// As [`Primary::welcome`].
    fn admits(&self, hello: &FollowRequest) -> Result<bool, Status> {
        let state = self.state.lock();
        let Some(standby) = &state.standby else { return Ok(false) };
        standby.gives_place_to(hello)?;
        Ok(standby.can_resume(hello) && hello.applied <= state.last)
    }

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

    /// The standby has forgotten what it held: tells it everything. No run waits until it has that.
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

    /// The standby has been told everything: with what has changed meanwhile it is whole. Runs wait from now on.
    fn make_whole(&self, id: u64) {
        // What runs change that see nobody to wait for is noted before this, or they wait.
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

    /// Changes what is known of the standby, if it is still this one, for one more batch.
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

    /// Hears what a standby says until it says no more.
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

    /// Says that the task is served for as long as the link stands.
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
        // What is told takes as long as the changes that are under way.
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

    /// A standby's link is lost: looks whether its process lives, until that is known or it is back.
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
        // Nobody depends on it.
        let _ = self.in_order(move |own| own.dismiss(id)).await;
    }

    /// Goes on without this standby, if it is still that.
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

    /// Whether this process is to go, because it has nothing and the one that comes all that there was.
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

/// What a run waits for.
enum Awaited {
    Nobody,
    /// That what has changed is put on its way, to the standby that is there.
    Take(String),
    /// A word of the standby that is there.
    Word(String),
}

impl fmt::Debug for Primary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Primary({})", self.task)
    }
}
