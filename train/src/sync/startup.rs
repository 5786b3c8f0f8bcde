//! The start of a session of a synchronous job: the chief initialises the job's state, or takes over from one
//! that died, and every worker joins.

use super::chief::token_feed;
use super::decision::{AttemptNumbers, Interruption};
use super::queue::Queue;
use super::replica::{FINISHED, GradientStore, SyncReplicas, UNSET};
use super::roster::{EARLY, WorkerRow};
use super::two_phase::TwoPhaseUpdate;
use crate::error::Result;
use client::Session;
use graph::{Bool8, Code, NodeId, Output, Tensor};
use std::time::Duration;

/// The time limit of the first try to empty a queue.
const SHORTEST_DRAIN: Duration = Duration::from_millis(500);
/// A try to empty a queue that times out is repeated with twice the time limit, until the limit is at least this long.
const LONGEST_DRAIN: Duration = Duration::from_secs(60);

impl AttemptNumbers {
    /// Reads the attempt numbers of the last updates.
    fn of(session: &Session, update: &TwoPhaseUpdate) -> Result<AttemptNumbers> {
        let fetched = session.run(&[], &update.fetches(), &[])?;
        let numbers = |i: usize| fetched.get(i).map_or(Ok(Vec::new()), Tensor::to_i64s);
        let taking = numbers(2)?.first().copied().unwrap_or(UNSET);
        Ok(AttemptNumbers { prepared: numbers(0)?, committed: numbers(1)?, taking })
    }
}

/// The start of a session of a synchronous job.
impl SyncReplicas {
    /// Returns whether a chief has initialised the job's state.
    pub(crate) fn is_open(&self, session: &Session) -> Result<bool> {
        Ok(session.run(&[], &[self.is_open], &[])?[0].item::<Bool8>()?.get())
    }

    /// Makes workers that join wait until [`SyncReplicas::open`]. Returns the workers that left before the last step,
    /// or none if the roster has no value.
    pub(crate) fn shut(&self, session: &Session) -> Result<Vec<usize>> {
        let rows = if self.is_open(session)? { self.roster.read(session)? } else { Vec::new() };
        session.run(&[], &[], &[self.chief_nodes.shut])?;
        let has_left = |(worker, row): (usize, &WorkerRow)| (row.left == EARLY).then_some(worker);
        Ok(rows.iter().enumerate().filter_map(has_left).collect())
    }

    /// Initialises the job's state after the variables were initialised or restored, and lets workers join. Gradients
    /// that were pushed before are discarded, and workers that already wait for a token get one. The workers in `gone`
    /// have left, so updates do not wait for them.
    pub(crate) fn open(&self, session: &Session, gone: &[usize]) -> Result<()> {
        self.clear(session)?;
        session.run(&[], &[], &[self.chief_nodes.initialize])?;
        self.release_all(session)?;
        session.run(&[], &[], &[self.chief_nodes.open])?;
        self.roster.mark_gone(session, gone)
    }

    /// Resumes a job whose chief has died or whose update was interrupted. With buffers, every unanswered push is
    /// answered by the next update. Accumulators do not record the workers that pushed, so all workers get tokens
    /// unless tokens are left in the queue.
    pub(crate) fn take_over(&self, session: &Session) -> Result<()> {
        let interruption = Interruption::of(&AttemptNumbers::of(session, &self.chief_nodes.update)?);
        if interruption == Interruption::Commit {
            tracing::info!("an update was interrupted while it was committed: it is resumed");
            session.run(&[], &[], &[self.chief_nodes.update.commit])?;
        }
        self.reset_returning(session)?;
        let GradientStore::Accumulators(accumulators) = &self.gradients else { return Ok(()) };
        if interruption == Interruption::Taking {
            tracing::info!(
                "an update was interrupted while it took gradients: they are lost, and new ones are computed"
            );
            self.clear(session)?;
        }
        session.run(&[], &[], &[accumulators.set_steps])?;
        if interruption == Interruption::Taking {
            // All workers get tokens, because a worker that has just pushed waits for one. A surplus token only lets a
            // worker push once more.
            self.give_to_all(session)?;
            session.run(&[], &[], &[self.chief_nodes.update.forget_taking])?;
        } else if session.run(&[], &[self.worker_nodes.tokens.size], &[])?[0].item::<i32>()? == 0 {
            self.release_all(session)?;
        }
        Ok(())
    }

    /// Resets the rows of workers that left the job at its last step. The job continues, because it has a later last
    /// step or because its chief died at the end. With gradient buffers these workers also get tokens, because they may
    /// have pushed again already.
    fn reset_returning(&self, session: &Session) -> Result<()> {
        let mut rows = self.roster.read(session)?;
        let is_returning: Vec<bool> = rows.iter().map(|e| e.pushed == FINISHED && e.left >= 0).collect();
        let returning: Vec<usize> =
            is_returning.iter().enumerate().filter_map(|(w, returning)| returning.then_some(w)).collect();
        self.roster.reset(session, &returning)?;
        returning.iter().for_each(|&worker| rows[worker] = WorkerRow::NEW);
        match self.gradients {
            GradientStore::InOrder(_) if !returning.is_empty() => {
                self.give_tokens(session, &rows, &is_returning)
            }
            _ => Ok(()),
        }
    }

    /// Gives a token to each worker that is in a step when the job ends, so that the worker finds that the job has
    /// ended.
    pub(super) fn release_others(&self, session: &Session) -> Result<()> {
        let rows = self.roster.read(session)?;
        let others: Vec<bool> = rows.iter().map(|row| row.pushed != FINISHED).collect();
        if others.contains(&true) { self.give_tokens(session, &rows, &others) } else { Ok(()) }
    }

    /// Gives each worker a token.
    fn give_to_all(&self, session: &Session) -> Result<()> {
        self.give_tokens(session, &vec![WorkerRow::NEW; self.workers], &vec![true; self.workers])
    }

    /// Gives tokens to the workers that `gets` marks or, if all workers share one queue, enqueues as many tokens. The
    /// vector `sync_rep_answered` is set to the answered steps in `rows`.
    fn give_tokens(&self, session: &Session, rows: &[WorkerRow], gets: &[bool]) -> Result<()> {
        let answered: Vec<i64> = rows.iter().map(|row| row.answered).collect();
        let tokens = gets.iter().filter(|gets| **gets).count();
        let feeds =
            [(self.chief_nodes.next_answered, Tensor::vector(&answered)?), token_feed(self, gets, tokens)?];
        session.run(&feeds, &[], &[self.chief_nodes.release])?;
        Ok(())
    }

    /// Gives each worker a token, and removes tokens that no worker waits for.
    fn release_all(&self, session: &Session) -> Result<()> {
        self.give_to_all(session)?;
        // Each worker that waited has dequeued its token; tokens left in the shared queue must not reach workers that
        // did not wait.
        if let GradientStore::Accumulators(_) = &self.gradients {
            self.drain(session, &self.worker_nodes.tokens)?;
        }
        Ok(())
    }

    /// Removes the reports of pushes from `sync_rep_arrivals`, and pushed gradients from accumulators.
    fn clear(&self, session: &Session) -> Result<()> {
        self.drain(session, &self.chief_nodes.arrivals)?;
        if let GradientStore::Accumulators(accumulators) = &self.gradients {
            let (counts, clears): (Vec<Output>, Vec<NodeId>) =
                accumulators.counts_and_clears().into_iter().unzip();
            let counts = session.run(&[], &counts, &[])?;
            let mut full = Vec::new();
            for (count, clear) in counts.iter().zip(clears) {
                if count.item::<i32>()? > 0 {
                    full.push(clear);
                }
            }
            if !full.is_empty() {
                session.run(&[], &[], &full)?;
            }
        }
        Ok(())
    }

    /// Empties a queue. The elements are counted again after each timeout, because other clients may dequeue some of
    /// them meanwhile.
    fn drain(&self, session: &Session, queue: &Queue) -> Result<()> {
        let mut time_limit = SHORTEST_DRAIN;
        loop {
            let size = session.run(&[], &[queue.size], &[])?.remove(0);
            if size.item::<i32>()? == 0 {
                return Ok(());
            }
            match session.step().feed(queue.count, size).target(queue.dequeued).timeout(time_limit).run() {
                Ok(_) => {}
                // A dequeue that times out puts the elements that it had taken back into the queue.
                Err(error) if error.code() == Code::DeadlineExceeded && time_limit < LONGEST_DRAIN => {
                    time_limit *= 2;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Lets this worker join the job at the global step: its row in the roster is reset, and old tokens in its queue
    /// are removed.
    pub(crate) fn join(&self, session: &Session) -> Result<()> {
        // A chief that is a TensorFlow client does not initialise the roster.
        if self.is_open(session)? {
            self.roster.reset(session, &[self.worker])?;
        }
        if matches!(self.gradients, GradientStore::InOrder(_)) {
            self.drain(session, &self.worker_nodes.tokens)?;
        }
        session.run(&[], &[], &[self.worker_nodes.adopt_step])?;
        Ok(())
    }
}
