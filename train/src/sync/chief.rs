//! What the chief does for all: waits for gradients, updates, gives out tokens. And how it makes all this ready, and
//! takes it over from a chief that died.

use super::decision::{Attempts, Cut, Seen, Verdict};
use super::queue::Queue;
use super::replica::{FINISHED, NOTHING, Phases, Places, SyncReplicas};
use super::roster::{EARLY, Entry};
use crate::error::{Error, Result};
use crate::readiness::missing;
use client::Session;
use graph::{Bool8, Code, NodeId, Output, Shape, Tensor};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Held while variables change: whoever holds it sees all of them at one step.
pub(crate) type UpdateLock = Arc<Mutex<()>>;

/// At least so often the chief looks by itself: a wake-up may have gone with the step that took it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What one step of emptying a queue may take at last.
const LONGEST_DRAIN: Duration = Duration::from_secs(60);

/// Where a step takes less, it is not so long that nobody pushes.
const STILL: Duration = Duration::from_secs(2);

/// So often where gradients may come from clients that wake nobody, and so often where some do.
const LOOK_SOON: Duration = Duration::from_millis(25);
const LOOK_OFTEN: Duration = Duration::from_millis(2);

/// What came of the gradients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// Updates by this chief.
    pub updates: u64,
    /// Gradients that came too late, by worker and by the step they were computed at.
    pub dropped: BTreeMap<(usize, i64), u64>,
}

/// The chief's thread.
#[derive(Debug)]
pub(crate) struct Aggregator<'a> {
    pub(crate) session: &'a Session,
    pub(crate) sync: &'a SyncReplicas,
    /// Whether each variable has a value, by name.
    pub(crate) probes: &'a [(String, Output)],
    pub(crate) lock: UpdateLock,
    pub(crate) report: Arc<Mutex<SyncReport>>,
    /// How long a step may wait for gradients.
    pub(crate) deadline: Duration,
}

impl Aggregator<'_> {
    /// Updates until every worker has finished or it is to stop.
    ///
    /// # Errors
    /// `Stalled` by the workers that are missing, or the failure of a step.
    pub(crate) fn run(&self, should_stop: impl Fn() -> bool) -> Result<()> {
        let (mut progress, mut checked) = (Instant::now(), Instant::now());
        let mut has_foreign = false;
        let mut longest = Duration::ZERO;
        while !should_stop() {
            let seen = self.look()?;
            let decision = seen.decide(self.sync.replicas_to_aggregate);
            if !decision.late.is_empty() && seen.accumulated.is_none() {
                self.tell_the_late(&seen, &decision.late)?;
                // What is answered has changed.
                continue;
            }
            match decision.verdict {
                Verdict::Finished => break,
                Verdict::Update { contributors, required, active } => {
                    let own = contributors.iter().filter(|c| **c).count();
                    has_foreign =
                        seen.accumulated.is_some() && own < required && seen.pushed.contains(&NOTHING);
                    self.update(&seen, &contributors, required, active)?;
                    longest = longest.max(progress.elapsed());
                    progress = Instant::now();
                }
                Verdict::Wait { have, need, missing } => {
                    let waited = progress.elapsed();
                    if waited > self.deadline {
                        return Err(Error::Stalled { step: seen.step, have, need, missing, waited });
                    }
                    let pause = match seen.accumulated {
                        None => LOOK_EVERY,
                        Some(_) if has_foreign => LOOK_OFTEN,
                        Some(_) => LOOK_SOON,
                    };
                    let came = self.wait(need.saturating_sub(have).max(1), pause.min(self.deadline))?;
                    if !came && checked.elapsed() >= LOOK_EVERY {
                        self.check_variables()?;
                        checked = Instant::now();
                    }
                    let is_late = |worker: &usize| decision.late.iter().any(|(late, _)| late == worker);
                    // Nobody else is left to push, or has been for longer than a step takes.
                    let is_still = missing.iter().all(is_late) || waited > STILL.max(3 * longest);
                    if !came && is_still && seen.accumulated.is_some() && !decision.late.is_empty() {
                        self.rouse(&seen, &decision.late)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn look(&self) -> Result<Seen> {
        look(self.session, self.sync)
    }

    /// Asks all tasks that hold variables: who waits for gradients may have no other step on one that has died.
    fn check_variables(&self) -> Result<()> {
        let names = missing(self.session, self.probes)?;
        if names.is_empty() {
            return Ok(());
        }
        let message = format!("these variables have lost their values: {}", names.join(", "));
        Err(client::Error::Status(proto::Status::new(Code::Aborted, message)).into())
    }

    /// One update with the gradients of these workers.
    fn update(&self, seen: &Seen, contributors: &[bool], required: usize, active: usize) -> Result<()> {
        let mut feeds = self.answer(seen, contributors, active)?;
        if let Places::Accumulators(accumulators) = &self.sync.places {
            let required = i32::try_from(required).unwrap_or(i32::MAX);
            feeds.push((accumulators.required, required.into()));
        }
        let update = &self.sync.update;
        feeds.push((update.attempt, Attempts::new_number().into()));
        let _held = self.lock.lock();
        self.session.run(&feeds, &[], &[update.prepare])?;
        self.session.run(&[], &[], &[update.commit])?;
        self.report.lock().updates += 1;
        Ok(())
    }

    /// Counts gradients that came too late, and lets who pushed them go on at the step that is.
    fn tell_the_late(&self, seen: &Seen, late: &[(usize, i64)]) -> Result<()> {
        let mut gets = vec![false; seen.pushed.len()];
        let mut counts = vec![0i64; seen.pushed.len()];
        for (worker, _) in late {
            gets[*worker] = true;
            counts[*worker] = 1;
        }
        let mut feeds = self.answer(seen, &gets, late.len())?;
        feeds.push((self.sync.newly_dropped, Tensor::vector(&counts)?));
        self.session.run(&feeds, &[], &[self.sync.release, self.sync.drop])?;
        let mut report = self.report.lock();
        late.iter().for_each(|late| *report.dropped.entry(*late).or_default() += 1);
        Ok(())
    }

    /// Workers that have pushed late to accumulators wait for a token, and others have taken all of them: nobody would
    /// push any more.
    fn rouse(&self, seen: &Seen, late: &[(usize, i64)]) -> Result<()> {
        if self.session.run(&[], &[self.sync.tokens.size], &[])?[0].item::<i32>()? > 0 {
            return Ok(());
        }
        let mut gets = vec![false; seen.pushed.len()];
        late.iter().for_each(|(worker, _)| gets[*worker] = true);
        self.session.run(&self.answer(seen, &gets, late.len())?, &[], &[self.sync.release])?;
        Ok(())
    }

    /// What tells an update or a release who gets tokens, or how many of them there are.
    fn answer(&self, seen: &Seen, workers: &[bool], tokens: usize) -> Result<Vec<(Output, Tensor)>> {
        let answered = Tensor::vector(&seen.answered_after(workers))?;
        Ok(vec![(self.sync.answered, answered), receivers(self.sync, workers, tokens)?])
    }

    /// Waits for so many to say that they have pushed or finished, or for a while.
    /// Whether they have.
    fn wait(&self, count: usize, pause: Duration) -> Result<bool> {
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        let arrivals = &self.sync.arrivals;
        let step = self.session.step().feed(arrivals.count, count).fetch(arrivals.taken);
        match step.timeout(pause).run() {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Code::DeadlineExceeded => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Who gets tokens; of a queue that all share, how many there are.
fn receivers(sync: &SyncReplicas, workers: &[bool], tokens: usize) -> Result<(Output, Tensor)> {
    Ok(match &sync.places {
        Places::InOrder(places) => {
            (places.contributors, Tensor::bools(workers, Shape::new(&[workers.len()])?)?)
        }
        Places::Accumulators(places) => {
            (places.tokens, Tensor::vector(&[i32::try_from(tokens).unwrap_or(i32::MAX)])?)
        }
    })
}

fn look(session: &Session, sync: &SyncReplicas) -> Result<Seen> {
    let fetched = session.run(&[], &sync.view.fetches(), &[])?;
    let numbers = |i: usize| fetched.get(i).map_or(Ok(Vec::new()), Tensor::to_i64s);
    let number = |i: usize| numbers(i).map(|n| n.first().copied().unwrap_or_default());
    let accumulated = match &sync.places {
        Places::InOrder(_) => None,
        Places::Accumulators(_) => Some(usize::try_from(number(3)?).unwrap_or(0)),
    };
    let own = sync.worker;
    Ok(Seen { step: number(0)?, own, pushed: numbers(1)?, answered: numbers(2)?, accumulated })
}

impl Attempts {
    /// One that no attempt of any chief has had.
    fn new_number() -> i64 {
        rand::random::<i64>() & i64::MAX
    }

    fn of(session: &Session, update: &Phases) -> Result<Attempts> {
        let fetched = session.run(&[], &update.fetches(), &[])?;
        let numbers = |i: usize| fetched.get(i).map_or(Ok(Vec::new()), Tensor::to_i64s);
        let taking = numbers(2)?.first().copied().unwrap_or(NOTHING);
        Ok(Attempts { prepared: numbers(0)?, committed: numbers(1)?, taking })
    }
}

/// The chief's part at the start of a session.
impl SyncReplicas {
    /// How many gradients of each worker have been dropped since the job began, as the parameter servers know.
    ///
    /// In accumulators a gradient counts where the step had gone on before it was pushed.
    pub fn dropped_by_worker(&self, session: &Session) -> Result<Vec<i64>> {
        Ok(session.run(&[], &[self.dropped], &[])?[0].to_i64s()?)
    }

    /// Whether another chief has made everything ready before.
    pub(crate) fn is_open(&self, session: &Session) -> Result<bool> {
        Ok(session.run(&[], &[self.is_open], &[])?[0].item::<Bool8>()?.get())
    }

    /// Which workers a step that took too long waits for, if it does.
    pub(crate) fn stalled(&self, session: &Session, waited: Duration) -> Result<Option<Error>> {
        let seen = look(session, self)?;
        Ok(match seen.decide(self.replicas_to_aggregate).verdict {
            Verdict::Wait { have, need, missing } => {
                Some(Error::Stalled { step: seen.step, have, need, missing, waited })
            }
            Verdict::Update { .. } | Verdict::Finished => None,
        })
    }

    /// Makes workers wait, until [`SyncReplicas::open`]. Gives those that have left for good, if that is still known.
    pub(crate) fn shut(&self, session: &Session) -> Result<Vec<usize>> {
        let known = if self.is_open(session)? { self.roster.read(session)? } else { Vec::new() };
        session.run(&[], &[], &[self.shut])?;
        let has_gone = |(worker, entry): (usize, &Entry)| (entry.left == EARLY).then_some(worker);
        Ok(known.iter().enumerate().filter_map(has_gone).collect())
    }

    /// Forgets what was pushed before the variables got the values that they have now, and lets workers go on: those
    /// that still wait for a token of that time get one. Those that have `gone` are not waited for.
    pub(crate) fn open(&self, session: &Session, gone: &[usize]) -> Result<()> {
        self.clear(session)?;
        session.run(&[], &[], &[self.initialize])?;
        self.release_all(session)?;
        session.run(&[], &[], &[self.open])?;
        self.roster.dismiss(session, gone)
    }

    /// Goes on where a chief has died, or an update was cut off. In places, what is pushed and not answered is answered
    /// next; accumulators do not tell, so that there are tokens for all unless some are left.
    pub(crate) fn take_over(&self, session: &Session) -> Result<()> {
        let cut = Cut::find(&Attempts::of(session, &self.update)?);
        if cut == Cut::Commit {
            tracing::info!("an update was cut off while it was committed: it is taken up again");
            session.run(&[], &[], &[self.update.commit])?;
        }
        self.expect_back(session)?;
        let Places::Accumulators(accumulators) = &self.places else { return Ok(()) };
        if cut == Cut::Taking {
            tracing::info!(
                "an update was cut off while it took gradients: these are lost, and others are computed"
            );
            self.clear(session)?;
        }
        session.run(&[], &[], &[accumulators.set_steps])?;
        if cut == Cut::Taking {
            // A token too many lets a worker push once more; who pushed just now waits for one.
            self.give_to_all(session)?;
            session.run(&[], &[], &[self.update.forget_taking])?;
        } else if session.run(&[], &[self.tokens.size], &[])?[0].item::<i32>()? == 0 {
            self.release_all(session)?;
        }
        Ok(())
    }

    /// Replicas that left a job at its last step are waited for when it goes on: it has another last step now, or its
    /// chief has died at the end. One that was quicker than this, and has pushed, gets a token.
    fn expect_back(&self, session: &Session) -> Result<()> {
        let known = self.roster.read(session)?;
        let is_back: Vec<bool> = known.iter().map(|e| e.pushed == FINISHED && e.left >= 0).collect();
        let back: Vec<usize> = is_back.iter().enumerate().filter_map(|(w, back)| back.then_some(w)).collect();
        self.roster.renew(session, &back)?;
        match self.places {
            Places::InOrder(_) if !back.is_empty() => self.release_to(session, &is_back),
            _ => Ok(()),
        }
    }

    /// Who is in a step when the job is over learns it by a token.
    pub(super) fn release_others(&self, session: &Session) -> Result<()> {
        let others: Vec<bool> = self.roster.read(session)?.iter().map(|e| e.pushed != FINISHED).collect();
        if others.contains(&true) { self.release_to(session, &others) } else { Ok(()) }
    }

    /// Gives tokens to these workers, or as many to all; nothing is noted of them.
    fn release_to(&self, session: &Session, workers: &[bool]) -> Result<()> {
        let answered: Vec<i64> = self.roster.read(session)?.iter().map(|entry| entry.answered).collect();
        let tokens = workers.iter().filter(|gets| **gets).count();
        let feeds = [(self.answered, Tensor::vector(&answered)?), receivers(self, workers, tokens)?];
        session.run(&feeds, &[], &[self.release])?;
        Ok(())
    }

    fn give_to_all(&self, session: &Session) -> Result<()> {
        let answered = (self.answered, Tensor::vector(&vec![NOTHING; self.workers])?);
        let all = receivers(self, &vec![true; self.workers], self.workers)?;
        session.run(&[answered, all], &[], &[self.release])?;
        Ok(())
    }

    fn release_all(&self, session: &Session) -> Result<()> {
        self.give_to_all(session)?;
        // Who waited has his now; others do not wait for one.
        if let Places::Accumulators(_) = &self.places {
            self.drain(session, &self.tokens)?;
        }
        Ok(())
    }

    fn clear(&self, session: &Session) -> Result<()> {
        self.drain(session, &self.arrivals)?;
        if let Places::Accumulators(accumulators) = &self.places {
            let (counts, takes): (Vec<Output>, Vec<NodeId>) = accumulators.contents().into_iter().unzip();
            let counts = session.run(&[], &counts, &[])?;
            let mut full = Vec::new();
            for (count, take) in counts.iter().zip(takes) {
                if count.item::<i32>()? > 0 {
                    full.push(take);
                }
            }
            if !full.is_empty() {
                session.run(&[], &[], &full)?;
            }
        }
        Ok(())
    }

    /// Takes what a queue has. Others may take from it too: what they were quicker to take is not waited for.
    fn drain(&self, session: &Session, queue: &Queue) -> Result<()> {
        let mut patience = LOOK_EVERY;
        loop {
            let size = session.run(&[], &[queue.size], &[])?.remove(0);
            if size.item::<i32>()? == 0 {
                return Ok(());
            }
            match session.step().feed(queue.count, size).target(queue.taken).timeout(patience).run() {
                Ok(_) => {}
                // What it has taken is back.
                Err(error) if error.code() == Code::DeadlineExceeded && patience < LONGEST_DRAIN => {
                    patience *= 2;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A worker's part at the start of a session: it goes on at the global step, without tokens of another time, and
    /// whatever it had pushed or finished before.
    pub(crate) fn join(&self, session: &Session) -> Result<()> {
        // Not where a foreign chief leads, which knows nothing of it.
        if self.is_open(session)? {
            self.roster.renew(session, &[self.worker])?;
        }
        if matches!(self.places, Places::InOrder(_)) {
            self.drain(session, &self.tokens)?;
        }
        session.run(&[], &[], &[self.adopt_step])?;
        Ok(())
    }
}
