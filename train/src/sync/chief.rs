//! The chief's loop: waits for gradients, updates the variables, hands out tokens.

use super::decision::{SyncState, Verdict};
use super::replica::{GradientStore, SyncReplicas, UNSET};
use crate::error::{Error, Result};
use crate::readiness::missing;
use client::Session;
use graph::{Code, Output, Shape, Tensor};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The lock that the chief holds during an update: a holder of the lock reads all variables at one step.
pub(crate) type UpdateLock = Arc<Mutex<()>>;

/// The longest time between two reads of the job's state. The chief also reads without being woken, because a wake-up
/// is lost if the step that dequeued it fails.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The shortest time without an update after which the chief gives new tokens to workers whose late gradients
/// accumulators have dropped.
const QUIET_PERIOD: Duration = Duration::from_secs(2);

/// The time between two reads of the job's state if TensorFlow clients may push to accumulators: their pushes do not
/// wake the chief.
const ACCUMULATOR_POLL_INTERVAL: Duration = Duration::from_millis(25);
/// The time between two reads of the job's state if TensorFlow clients have pushed to accumulators.
const FOREIGN_POLL_INTERVAL: Duration = Duration::from_millis(2);

/// The numbers of updates made and of gradients dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SyncReport {
    /// The number of updates made by this chief.
    pub updates: u64,
    /// The number of gradients dropped because they came too late, by worker and by the step they were
    /// computed at.
    pub dropped: BTreeMap<(usize, i64), u64>,
}

/// The loop that the chief's thread runs.
#[derive(Debug)]
pub(crate) struct Aggregator<'a> {
    pub(crate) session: &'a Session,
    pub(crate) sync: &'a SyncReplicas,
    /// For each variable its name and a scalar `bool`: true if it has a value.
    pub(crate) probes: &'a [(String, Output)],
    pub(crate) lock: UpdateLock,
    pub(crate) report: Arc<Mutex<SyncReport>>,
    /// The longest time that a step may wait for gradients.
    pub(crate) deadline: Duration,
}

impl Aggregator<'_> {
    /// Updates the variables until every worker has finished or `should_stop` returns true.
    ///
    /// # Errors
    /// `Stalled` with the workers that are missing, or the failure of a step.
    pub(crate) fn run(&self, should_stop: impl Fn() -> bool) -> Result<()> {
        let (mut progress, mut checked) = (Instant::now(), Instant::now());
        let mut has_foreign = false;
        let mut longest = Duration::ZERO;
        while !should_stop() {
            let state = self.read_state()?;
            let decision = state.decide(self.sync.replicas_to_aggregate);
            if !decision.late.is_empty() && state.accumulated.is_none() {
                self.release_late(&state, &decision.late)?;
                // `state` is read again, because the vector of answered steps has changed.
                continue;
            }
            match decision.verdict {
                Verdict::Finished => break,
                Verdict::Update { contributors, required, active } => {
                    let own = contributors.iter().filter(|c| **c).count();
                    has_foreign =
                        state.accumulated.is_some() && own < required && state.pushed.contains(&UNSET);
                    self.update(&state, &contributors, required, active)?;
                    longest = longest.max(progress.elapsed());
                    progress = Instant::now();
                }
                Verdict::Wait { have, need, missing } => {
                    let waited = progress.elapsed();
                    if waited > self.deadline {
                        return Err(Error::Stalled { step: state.step, have, need, missing, waited });
                    }
                    let pause = match state.accumulated {
                        None => POLL_INTERVAL,
                        Some(_) if has_foreign => FOREIGN_POLL_INTERVAL,
                        Some(_) => ACCUMULATOR_POLL_INTERVAL,
                    };
                    let was_woken = self.wait(need.saturating_sub(have).max(1), pause.min(self.deadline))?;
                    if !was_woken && checked.elapsed() >= POLL_INTERVAL {
                        self.check_variables()?;
                        checked = Instant::now();
                    }
                    let is_late = |worker: &usize| decision.late.iter().any(|(late, _)| late == worker);
                    // No push is expected soon if all missing workers are late, or if the last update was longer ago
                    // than both `QUIET_PERIOD` and three times the longest time between updates.
                    let is_quiet = missing.iter().all(is_late) || waited > QUIET_PERIOD.max(3 * longest);
                    if !was_woken && is_quiet && state.accumulated.is_some() && !decision.late.is_empty() {
                        self.wake_late(&state, &decision.late)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Reads the state of the synchronous job from the parameter servers.
    fn read_state(&self) -> Result<SyncState> {
        read_state(self.session, self.sync)
    }

    /// Checks that all variables have values. The check contacts every task that holds variables, so that a chief that
    /// waits for gradients notices a task that has died.
    fn check_variables(&self) -> Result<()> {
        let names = missing(self.session, self.probes)?;
        if names.is_empty() {
            return Ok(());
        }
        let message = format!("these variables have lost their values: {}", names.join(", "));
        Err(client::Error::Status(proto::Status::new(Code::Aborted, message)).into())
    }

    /// Makes one update with the gradients of `contributors`.
    fn update(&self, state: &SyncState, contributors: &[bool], required: usize, active: usize) -> Result<()> {
        let mut feeds = self.answer_feeds(state, contributors, active)?;
        if let GradientStore::Accumulators(accumulators) = &self.sync.gradients {
            let required = i32::try_from(required).unwrap_or(i32::MAX);
            feeds.push((accumulators.required, required.into()));
        }
        let update = &self.sync.chief_nodes.update;
        feeds.push((update.attempt, new_attempt().into()));
        let _guard = self.lock.lock();
        self.session.run(&feeds, &[], &[update.prepare])?;
        self.session.run(&[], &[], &[update.commit])?;
        self.report.lock().updates += 1;
        Ok(())
    }

    /// Counts the gradients of `late` workers as dropped, and gives these workers tokens with the current
    /// step.
    fn release_late(&self, state: &SyncState, late: &[(usize, i64)]) -> Result<()> {
        let mut is_late = vec![false; state.pushed.len()];
        let mut counts = vec![0i64; state.pushed.len()];
        for (worker, _) in late {
            is_late[*worker] = true;
            counts[*worker] = 1;
        }
        let mut feeds = self.answer_feeds(state, &is_late, late.len())?;
        feeds.push((self.sync.chief_nodes.drops.increments, Tensor::vector(&counts)?));
        self.session.run(&feeds, &[], &[self.sync.chief_nodes.release, self.sync.chief_nodes.drops.add])?;
        let mut report = self.report.lock();
        late.iter().for_each(|late| *report.dropped.entry(*late).or_default() += 1);
        Ok(())
    }

    /// Gives tokens to workers whose late gradients were dropped by accumulators, if the shared token queue is empty
    /// because other workers have dequeued all tokens. Without new tokens the late workers would never push again.
    fn wake_late(&self, state: &SyncState, late: &[(usize, i64)]) -> Result<()> {
        if self.session.run(&[], &[self.sync.worker_nodes.tokens.size], &[])?[0].item::<i32>()? > 0 {
            return Ok(());
        }
        let mut is_late = vec![false; state.pushed.len()];
        late.iter().for_each(|(worker, _)| is_late[*worker] = true);
        self.session.run(
            &self.answer_feeds(state, &is_late, late.len())?,
            &[],
            &[self.sync.chief_nodes.release],
        )?;
        Ok(())
    }

    /// Returns the feeds for handing out tokens, with or without an update: the next value of `sync_rep_answered`, and
    /// the workers that get tokens or the number of tokens.
    fn answer_feeds(
        &self,
        state: &SyncState,
        workers: &[bool],
        tokens: usize,
    ) -> Result<Vec<(Output, Tensor)>> {
        let answered = Tensor::vector(&state.answered_after(workers))?;
        Ok(vec![(self.sync.chief_nodes.next_answered, answered), token_feed(self.sync, workers, tokens)?])
    }

    /// Waits for at most `pause` until `count` workers have reported a push or their end. Returns whether they have
    /// reported.
    fn wait(&self, count: usize, pause: Duration) -> Result<bool> {
        let count = i32::try_from(count).unwrap_or(i32::MAX);
        let arrivals = &self.sync.chief_nodes.arrivals;
        let step = self.session.step().feed(arrivals.count, count).fetch(arrivals.dequeued);
        match step.timeout(pause).run() {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Code::DeadlineExceeded => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns a random number for an attempt at an update: its 63 bits make equal numbers of two attempts improbable.
fn new_attempt() -> i64 {
    rand::random::<i64>() & i64::MAX
}

/// Returns the feed that selects the workers that get tokens or, if all workers share one token queue, gives the number
/// of tokens.
pub(super) fn token_feed(sync: &SyncReplicas, workers: &[bool], tokens: usize) -> Result<(Output, Tensor)> {
    Ok(match &sync.gradients {
        GradientStore::InOrder(buffers) => {
            (buffers.contributors, Tensor::bools(workers, Shape::new(&[workers.len()])?)?)
        }
        GradientStore::Accumulators(accumulators) => {
            (accumulators.tokens, Tensor::vector(&[i32::try_from(tokens).unwrap_or(i32::MAX)])?)
        }
    })
}

/// Reads the state of the job in one step.
fn read_state(session: &Session, sync: &SyncReplicas) -> Result<SyncState> {
    let SyncReplicas { roster, global_step, chief_nodes, .. } = sync;
    let outputs = [*global_step, roster.pushed, roster.answered, chief_nodes.accumulated];
    let fetched = session.run(&[], &outputs, &[])?;
    let numbers = |i: usize| fetched.get(i).map_or(Ok(Vec::new()), Tensor::to_i64s);
    let number = |i: usize| numbers(i).map(|n| n.first().copied().unwrap_or_default());
    let accumulated = match &sync.gradients {
        GradientStore::InOrder(_) => None,
        GradientStore::Accumulators(_) => Some(usize::try_from(number(3)?).unwrap_or(0)),
    };
    let own = sync.worker;
    Ok(SyncState { step: number(0)?, own, pushed: numbers(1)?, answered: numbers(2)?, accumulated })
}

/// Queries of the state of a synchronous job.
impl SyncReplicas {
    /// Returns the number of dropped gradients by worker since the job began, as counted on the parameter servers.
    ///
    /// A gradient pushed to an accumulator counts as dropped if it was computed at an earlier step than the global step
    /// at the push.
    pub fn dropped_by_worker(&self, session: &Session) -> Result<Vec<i64>> {
        Ok(session.run(&[], &[self.chief_nodes.drops.counts], &[])?[0].to_i64s()?)
    }

    /// Returns the error `Stalled` with the workers that the current step waits for, or `None` if the step does not
    /// wait.
    pub(crate) fn stalled(&self, session: &Session, waited: Duration) -> Result<Option<Error>> {
        let state = read_state(session, self)?;
        Ok(match state.decide(self.replicas_to_aggregate).verdict {
            Verdict::Wait { have, need, missing } => {
                Some(Error::Stalled { step: state.step, have, need, missing, waited })
            }
            Verdict::Update { .. } | Verdict::Finished => None,
        })
    }
}
