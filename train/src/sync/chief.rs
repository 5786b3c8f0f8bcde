//! What the chief does for all: waits for gradients, updates, gives out tokens.

use super::decision::{Seen, Verdict};
use super::replica::{NOTHING, Places, SyncReplicas};
use crate::error::{Error, Result};
use crate::readiness::missing;
use client::Session;
use graph::{Code, Output, Shape, Tensor};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Held while variables change: whoever holds it sees all of them at one step.
pub(crate) type UpdateLock = Arc<Mutex<()>>;

/// At least so often the chief looks by itself: a wake-up may have gone with the step that took it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

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
        feeds.push((update.attempt, new_attempt().into()));
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

/// The number of an attempt that no other of any chief has had.
fn new_attempt() -> i64 {
    rand::random::<i64>() & i64::MAX
}

/// Who gets tokens; of a queue that all share, how many there are.
pub(super) fn receivers(sync: &SyncReplicas, workers: &[bool], tokens: usize) -> Result<(Output, Tensor)> {
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
    let SyncReplicas { roster, global_step, accumulated, .. } = sync;
    let looked_at = [*global_step, roster.pushed, roster.answered, *accumulated];
    let fetched = session.run(&[], &looked_at, &[])?;
    let numbers = |i: usize| fetched.get(i).map_or(Ok(Vec::new()), Tensor::to_i64s);
    let number = |i: usize| numbers(i).map(|n| n.first().copied().unwrap_or_default());
    let accumulated = match &sync.places {
        Places::InOrder(_) => None,
        Places::Accumulators(_) => Some(usize::try_from(number(3)?).unwrap_or(0)),
    };
    let own = sync.worker;
    Ok(Seen { step: number(0)?, own, pushed: numbers(1)?, answered: numbers(2)?, accumulated })
}

/// What a replica may ask of the job.
impl SyncReplicas {
    /// How many gradients of each worker have been dropped since the job began, as the parameter servers know.
    ///
    /// In accumulators a gradient counts where the step had gone on before it was pushed.
    pub fn dropped_by_worker(&self, session: &Session) -> Result<Vec<i64>> {
        Ok(session.run(&[], &[self.dropped], &[])?[0].to_i64s()?)
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
}
