//! The start of a session of a synchronous job: the chief makes all ready, or takes over from one that died, and every
//! worker joins.

use super::chief::receivers;
use super::decision::{Attempts, Cut};
use super::queue::Queue;
use super::replica::{FINISHED, NOTHING, Phases, Places, SyncReplicas};
use super::roster::{EARLY, Entry};
use crate::error::Result;
use client::Session;
use graph::{Bool8, Code, NodeId, Output, Tensor};
use std::time::Duration;

/// What one step of emptying a queue may take at first, and at last.
const SHORTEST_DRAIN: Duration = Duration::from_millis(500);
const LONGEST_DRAIN: Duration = Duration::from_secs(60);

impl Attempts {
    fn of(session: &Session, update: &Phases) -> Result<Attempts> {
        let fetched = session.run(&[], &update.fetches(), &[])?;
        let numbers = |i: usize| fetched.get(i).map_or(Ok(Vec::new()), Tensor::to_i64s);
        let taking = numbers(2)?.first().copied().unwrap_or(NOTHING);
        Ok(Attempts { prepared: numbers(0)?, committed: numbers(1)?, taking })
    }
}

/// What replicas do at the start of a session, and the chief for all.
impl SyncReplicas {
    /// Whether another chief has made everything ready before.
    pub(crate) fn is_open(&self, session: &Session) -> Result<bool> {
        Ok(session.run(&[], &[self.is_open], &[])?[0].item::<Bool8>()?.get())
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
        let mut known = self.roster.read(session)?;
        let is_back: Vec<bool> = known.iter().map(|e| e.pushed == FINISHED && e.left >= 0).collect();
        let back: Vec<usize> = is_back.iter().enumerate().filter_map(|(w, back)| back.then_some(w)).collect();
        self.roster.renew(session, &back)?;
        back.iter().for_each(|&worker| known[worker] = Entry::NEW);
        match self.places {
            Places::InOrder(_) if !back.is_empty() => self.give(session, &known, &is_back),
            _ => Ok(()),
        }
    }

    /// Who is in a step when the job is over learns it by a token.
    pub(super) fn release_others(&self, session: &Session) -> Result<()> {
        let known = self.roster.read(session)?;
        let others: Vec<bool> = known.iter().map(|entry| entry.pushed != FINISHED).collect();
        if others.contains(&true) { self.give(session, &known, &others) } else { Ok(()) }
    }

    fn give_to_all(&self, session: &Session) -> Result<()> {
        self.give(session, &vec![Entry::NEW; self.workers], &vec![true; self.workers])
    }

    /// Gives these workers tokens, or as many to all who share a queue. What is known of them stays.
    fn give(&self, session: &Session, known: &[Entry], gets: &[bool]) -> Result<()> {
        let answered: Vec<i64> = known.iter().map(|entry| entry.answered).collect();
        let tokens = gets.iter().filter(|gets| **gets).count();
        let feeds = [(self.answered, Tensor::vector(&answered)?), receivers(self, gets, tokens)?];
        session.run(&feeds, &[], &[self.release])?;
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
        let mut patience = SHORTEST_DRAIN;
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
