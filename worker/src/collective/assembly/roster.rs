//! The workers of one job, kept by its leader: those in the present epoch, those that have finished in it, and those
//! that wait for the next one. The roster is a value without sockets and clocks: a call returns all answers that it
//! makes possible, and a caller whose answer is not yet possible is stored until a later call makes it possible.

use device::collective::AssemblyChange;
use graph::Code;
use proto::Status;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A worker that waits for the next epoch.
#[derive(Clone, Debug)]
pub(super) struct Arrival {
    /// The handle of the worker's own session.
    pub(super) session: Arc<str>,
    pub(super) worker: u32,
    pub(super) least: u32,
    pub(super) most: u32,
    pub(super) has_values: bool,
    /// The last epoch that the worker has been in, or 0.
    pub(super) epoch: i64,
}

/// A worker that watches its epoch.
#[derive(Clone, Debug)]
pub(super) struct Watcher {
    pub(super) session: Arc<str>,
    pub(super) worker: u32,
    pub(super) epoch: i64,
    /// The last change of the epoch that the worker has been told of.
    pub(super) known: i64,
}

/// A worker that has ended its training.
#[derive(Clone, Debug)]
pub(super) struct Finisher {
    pub(super) session: Arc<str>,
    pub(super) worker: u32,
    pub(super) epoch: i64,
    /// The worker's last step.
    pub(super) step: i64,
}

/// The number in the answer to a watcher that stands for the absence of finished workers; otherwise it is a step.
const NO_STEP: i64 = -1;

/// Answers that have become possible, each with its caller: an epoch with its workers, a change, or the workers that have
/// not finished.
pub(super) type Answers<W> = Vec<(W, Result<Vec<i64>, Status>)>;

/// The workers of a job. `W` is the type of the callers that wait.
#[derive(Debug)]
pub(super) struct Roster<W> {
    least: u32,
    most: u32,
    /// The number of the present epoch; 0 before the first.
    epoch: i64,
    /// The workers with which the present epoch began, in ascending order.
    workers: Vec<u32>,
    present: BTreeMap<u32, Present<W>>,
    /// The number of arrivals and losses so far.
    changes: u64,
    /// The number of calls so far.
    calls: u64,
}

/// A worker that the leader has not lost.
#[derive(Debug)]
struct Present<W> {
    session: Arc<str>,
    /// The number of the worker's last call.
    call: u64,
    /// The caller of the worker's open call; `None` between two calls.
    caller: Option<W>,
    place: Place,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// The worker is in the present epoch; `known` is the last change of the epoch that it has been told of.
    Member { known: i64 },
    /// The worker waits for the next epoch.
    Candidate { has_values: bool },
    /// The worker has ended its training in the present epoch, after step `step`.
    Finished { step: i64 },
}

impl<W> Default for Roster<W> {
    fn default() -> Roster<W> {
        Roster {
            least: 0,
            most: 0,
            epoch: 0,
            workers: Vec::new(),
            present: BTreeMap::new(),
            changes: 0,
            calls: 0,
        }
    }
}

impl<W> Roster<W> {
    /// Adds a worker that waits for the next epoch; the epoch begins at once if all workers wait for it. A worker with
    /// another session than before replaces the earlier one. Returns the number of the call.
    pub(super) fn join(&mut self, arrival: Arrival, caller: W) -> (u64, Answers<W>) {
        self.calls += 1;
        let Arrival { session, worker, least, most, has_values, epoch } = arrival;
        if let Some(present) = self.member(worker, &session)
            && epoch < self.epoch
        {
            // The call is repeated, because the answer to the earlier one was lost.
            let call = present.call;
            return (call, vec![(caller, Ok(self.membership()))]);
        }
        if let Err(status) = self.check(worker, least, most) {
            return (self.calls, vec![(caller, Err(status))]);
        }
        (self.least, self.most, self.epoch) = (least, most, self.epoch.max(epoch));
        let place = Place::Candidate { has_values };
        let present = Present { session: session.clone(), call: self.calls, caller: Some(caller), place };
        let mut answers = Vec::new();
        match self.present.insert(worker, present) {
            Some(before) if before.session == session && before.place == place => {}
            before => {
                self.changes += 1;
                let status = || Status::new(Code::Aborted, format!("worker {worker} has come again"));
                let caller = before.and_then(|before| before.caller);
                answers.extend(caller.map(|caller| (caller, Err(status()))));
            }
        }
        if self.ready() == most as usize {
            answers.extend(self.begin_epoch());
        } else {
            answers.extend(self.tell());
            answers.extend(self.release());
        }
        (self.calls, answers)
    }

    /// Adds a worker that waits for a change of its epoch. Returns the number of the call.
    pub(super) fn watch(&mut self, watcher: Watcher, caller: W) -> (u64, Answers<W>) {
        self.calls += 1;
        let Watcher { session, worker, epoch, known } = watcher;
        let is_current = epoch == self.epoch && self.member(worker, &session).is_some();
        let present = self.present.get_mut(&worker).filter(|_| is_current);
        let Some(present) = present else {
            return (self.calls, vec![(caller, Ok(vec![AssemblyChange::Over as i64, NO_STEP]))]);
        };
        (present.call, present.caller, present.place) = (self.calls, Some(caller), Place::Member { known });
        (self.calls, self.tell())
    }

    /// Records that a worker has ended its training, and waits for the others. The call is answered when all workers of
    /// the epoch have ended their training or left, at once if the epoch is over. Returns the number of the call.
    pub(super) fn finish(&mut self, finisher: Finisher, caller: W) -> (u64, Answers<W>) {
        self.calls += 1;
        let Finisher { session, worker, epoch, step } = finisher;
        let is_current = epoch == self.epoch && self.is_of_epoch(worker, &session);
        let Some(present) = self.present.get_mut(&worker).filter(|_| is_current) else {
            return (self.calls, vec![(caller, Ok(Vec::new()))]);
        };
        present.call = self.calls;
        let mut answers = Vec::new();
        if let Some(before) = present.caller.replace(caller) {
            let over = match present.place {
                Place::Member { .. } => Ok(vec![AssemblyChange::Over as i64, NO_STEP]),
                _ => Err(Status::new(Code::Aborted, format!("worker {worker} has finished again"))),
            };
            answers.push((before, over));
        }
        present.place = Place::Finished { step };
        answers.extend(self.tell());
        answers.extend(self.release());
        (self.calls, answers)
    }

    /// Returns the number of changes so far, which grows with each arrival and loss.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Begins the next epoch with the workers that wait for it, because a grace period has passed since the change with
    /// the given number. No epoch begins if workers have arrived or are lost since then, if workers of the present
    /// epoch do not wait for the next one yet, or if the waiting workers are too few or none of them has values of the
    /// variables.
    pub(super) fn settle(&mut self, changes: u64) -> Answers<W> {
        let is_ready = self.present.len() == self.ready() + self.finished().count()
            && self.ready() >= self.least as usize;
        let has_values = |present: &Present<W>| present.place == Place::Candidate { has_values: true };
        if changes != self.changes || !is_ready || !self.present.values().any(has_values) {
            return Vec::new();
        }
        self.begin_epoch()
    }

    /// Records that a call has ended without its answer, because the worker has gone. Returns true if the worker is
    /// expected to call again, because it was told that its epoch ends; the caller then [removes](Roster::lose) it if
    /// it does not call in time.
    pub(super) fn leave(&mut self, worker: u32, call: u64) -> (bool, Answers<W>) {
        let of_call = self.present.get_mut(&worker).filter(|present| present.call == call);
        let Some(present) = of_call else { return (false, Vec::new()) };
        present.caller = None;
        match present.place {
            Place::Member { known } if known > AssemblyChange::None as i64 => (true, Vec::new()),
            _ => (false, self.lose(worker, call)),
        }
    }

    /// Removes a worker, unless it has called again after the call with the given number.
    pub(super) fn lose(&mut self, worker: u32, call: u64) -> Answers<W> {
        if self.present.get(&worker).is_none_or(|present| present.call != call) {
            return Vec::new();
        }
        self.present.remove(&worker);
        self.changes += 1;
        self.release()
    }

    /// Returns whether a worker has left the present epoch and waits for the next one.
    pub(super) fn has_left(&self) -> bool {
        self.change() == AssemblyChange::Left
    }

    /// Ends the call of a finished worker while other workers of its epoch have not finished. Returns those other
    /// workers.
    pub(super) fn give_up(&mut self, worker: u32, call: u64) -> Vec<i64> {
        if let Some(present) = self.present.get_mut(&worker).filter(|present| present.call == call) {
            present.caller = None;
        }
        self.unfinished()
    }

    /// Removes the caller of a call whose deadline has passed. Returns the answer to the call.
    pub(super) fn expire(&mut self, worker: u32, call: u64) -> Result<Vec<i64>, Status> {
        let late = Status::new(Code::DeadlineExceeded, self.status());
        let of_call = self.present.get_mut(&worker).filter(|present| present.call == call);
        let Some(present) = of_call else { return Err(late) };
        present.caller = None;
        match present.place {
            Place::Member { .. } => Ok(self.news()),
            Place::Candidate { .. } => Err(late),
            Place::Finished { .. } => Err(Status::new(Code::DeadlineExceeded, self.unfinished_status())),
        }
    }

    /// Returns a description of the workers that wait for the next epoch and of those that are missing.
    fn status(&self) -> String {
        let has_come = |worker: &u32| self.is_candidate(*worker);
        let come: Vec<u32> = self.present.keys().copied().filter(has_come).collect();
        let missing: Vec<u32> = (0..self.most).filter(|worker| !has_come(worker)).collect();
        let names = |workers: &[u32]| workers.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
        let mut text = format!("have {}, need {} workers: ", come.len(), self.least);
        text.push_str(&format!("{} have come, {} are missing", names(&come), names(&missing)));
        let in_epoch: Vec<u32> =
            self.present.keys().copied().filter(|worker| self.is_member(*worker)).collect();
        if !in_epoch.is_empty() {
            text.push_str(&format!("; epoch {} has not ended on {}", self.epoch, names(&in_epoch)));
        }
        let has_values = |present: &Present<W>| {
            matches!(present.place, Place::Member { .. } | Place::Candidate { has_values: true })
        };
        if !self.present.values().any(has_values) {
            text.push_str("; none has variables, is the chief running?");
        }
        text
    }

    /// Returns a description of the workers of the present epoch that have not finished.
    fn unfinished_status(&self) -> String {
        let names: Vec<String> = self.unfinished().iter().map(i64::to_string).collect();
        format!("these workers of epoch {} have not finished: {}", self.epoch, names.join(", "))
    }

    /// Checks that a worker has the same bounds of the number of workers as those that wait with it.
    fn check(&self, worker: u32, least: u32, most: u32) -> Result<(), Status> {
        let mut others = self.present.keys().filter(|other| **other != worker && self.is_candidate(**other));
        match others.next() {
            Some(other) if (least, most) != (self.least, self.most) => Err(Status::invalid(format!(
                "worker {worker} is of a job of {least} to {most} workers, but worker {other} waits for {} to {}",
                self.least, self.most
            ))),
            _ => Ok(()),
        }
    }

    fn is_candidate(&self, worker: u32) -> bool {
        let present = self.present.get(&worker);
        present.is_some_and(|present| matches!(present.place, Place::Candidate { .. }))
    }

    fn is_member(&self, worker: u32) -> bool {
        self.present.get(&worker).is_some_and(|present| matches!(present.place, Place::Member { .. }))
    }

    /// Returns whether a session is that of a worker that is in the present epoch or has finished in it.
    fn is_of_epoch(&self, worker: u32, session: &str) -> bool {
        let present = self.present.get(&worker).filter(|present| *present.session == *session);
        present.is_some_and(|present| !matches!(present.place, Place::Candidate { .. }))
    }

    /// Returns the last steps of the workers that have finished and are not lost.
    fn finished(&self) -> impl Iterator<Item = i64> {
        self.present.values().filter_map(|present| match present.place {
            Place::Finished { step } => Some(step),
            _ => None,
        })
    }

    /// Returns the workers of the present epoch that are still in it, or have left it for the next one.
    fn unfinished(&self) -> Vec<i64> {
        let of_epoch = self.workers.iter().copied();
        of_epoch
            .filter(|worker| self.is_member(*worker) || self.is_candidate(*worker))
            .map(i64::from)
            .collect()
    }

    /// Returns a worker of the present epoch.
    fn member(&self, worker: u32, session: &str) -> Option<&Present<W>> {
        let present = self.present.get(&worker);
        present
            .filter(|present| *present.session == *session && matches!(present.place, Place::Member { .. }))
    }

    /// Returns the number of workers whose calls wait for the next epoch.
    fn ready(&self) -> usize {
        let is_ready = |present: &&Present<W>| {
            present.caller.is_some() && matches!(present.place, Place::Candidate { .. })
        };
        self.present.values().filter(is_ready).count()
    }

    /// Returns the change that makes the present epoch end.
    fn change(&self) -> AssemblyChange {
        let mut change = AssemblyChange::None;
        for (worker, present) in &self.present {
            change = change.max(match present.place {
                Place::Member { .. } => AssemblyChange::None,
                Place::Finished { .. } => AssemblyChange::Finished,
                Place::Candidate { .. } if self.workers.contains(worker) => AssemblyChange::Left,
                Place::Candidate { .. } => AssemblyChange::Newcomer,
            });
        }
        change
    }

    /// Returns the answer to a worker of the present epoch that watches it.
    fn news(&self) -> Vec<i64> {
        vec![self.change() as i64, self.finished().min().unwrap_or(NO_STEP)]
    }

    /// Returns the answers to the workers of the present epoch that have not been told of its change.
    fn tell(&mut self) -> Answers<W> {
        let (change, news) = (self.change() as i64, self.news());
        let tell = |present: &mut Present<W>| match present.place {
            Place::Member { known } if change > known => {
                present.caller.take().map(|caller| (caller, Ok(news.clone())))
            }
            _ => None,
        };
        self.present.values_mut().filter_map(tell).collect()
    }

    /// Returns the answers to the finished workers, if all workers of the present epoch have finished or are lost.
    fn release(&mut self) -> Answers<W> {
        if self.unfinished().is_empty() { self.answer_finished() } else { Vec::new() }
    }

    /// Returns the answers to the finished workers: the list of the workers that have not finished.
    fn answer_finished(&mut self) -> Answers<W> {
        let unfinished = self.unfinished();
        let answer = |present: &mut Present<W>| match present.place {
            Place::Finished { .. } => present.caller.take().map(|caller| (caller, Ok(unfinished.clone()))),
            _ => None,
        };
        self.present.values_mut().filter_map(answer).collect()
    }

    /// Begins an epoch with the workers that wait for it, and answers the workers that have finished in the last one.
    fn begin_epoch(&mut self) -> Answers<W> {
        let mut answers = self.answer_finished();
        self.present.retain(|_, present| matches!(present.place, Place::Candidate { .. }));
        self.epoch += 1;
        self.workers = self.present.keys().copied().collect();
        let membership = self.membership();
        let begin = |present: &mut Present<W>| {
            present.place = Place::Member { known: AssemblyChange::None as i64 };
            present.caller.take().map(|caller| (caller, Ok(membership.clone())))
        };
        answers.extend(self.present.values_mut().filter_map(begin));
        answers
    }

    /// Returns the number of the present epoch and its workers.
    fn membership(&self) -> Vec<i64> {
        std::iter::once(self.epoch).chain(self.workers.iter().map(|&worker| i64::from(worker))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEWCOMER: i64 = AssemblyChange::Newcomer as i64;
    const FINISHED: i64 = AssemblyChange::Finished as i64;
    const LEFT: i64 = AssemblyChange::Left as i64;
    const OVER: i64 = AssemblyChange::Over as i64;

    /// A job of 2 to 4 workers.
    #[derive(Default)]
    struct Job {
        roster: Roster<u32>,
    }

    impl Job {
        fn arrival(worker: u32, session: &str, epoch: i64) -> Arrival {
            Arrival { session: session.into(), worker, least: 2, most: 4, has_values: true, epoch }
        }

        /// Joins a worker, whose index is its caller. Returns the number of the call and the answers.
        fn join(&mut self, worker: u32, session: &str, epoch: i64) -> (u64, Answers<u32>) {
            self.roster.join(Job::arrival(worker, session, epoch), worker)
        }

        fn watch(&mut self, worker: u32, session: &str, (epoch, known): (i64, i64)) -> (u64, Answers<u32>) {
            self.roster.watch(Watcher { session: session.into(), worker, epoch, known }, worker)
        }

        /// Ends the training of a worker in epoch 1.
        fn finish(&mut self, worker: u32, step: i64) -> (u64, Answers<u32>) {
            self.roster.finish(Finisher { session: "s".into(), worker, epoch: 1, step }, worker)
        }

        fn settle(&mut self) -> Answers<u32> {
            self.roster.settle(self.roster.changes())
        }

        /// Returns a job whose first epoch consists of the given workers, which all have session "s" and watch the
        /// epoch.
        fn in_epoch(workers: &[u32]) -> Job {
            let mut job = Job::default();
            for &worker in workers {
                job.join(worker, "s", 0);
            }
            job.settle();
            for &worker in workers {
                assert_eq!(job.watch(worker, "s", (1, 0)).1, []);
            }
            job
        }
    }

    fn all(workers: &[u32], numbers: &[i64]) -> Answers<u32> {
        workers.iter().map(|&worker| (worker, Ok(numbers.to_vec()))).collect()
    }

    #[test]
    fn an_epoch_begins_with_all_workers_at_once_and_with_enough_after_a_grace_period() {
        let mut job = Job::default();
        for worker in [2, 0, 3] {
            assert_eq!(job.join(worker, "s", 0).1, []);
        }
        assert_eq!(job.join(1, "s", 0).1, all(&[0, 1, 2, 3], &[1, 0, 1, 2, 3]));

        let mut job = Job::default();
        job.join(3, "s", 0);
        assert_eq!(job.settle(), []);
        let before = job.roster.changes();
        job.join(1, "s", 0);
        // A worker has joined since the grace period began.
        assert_eq!(job.roster.settle(before), []);
        assert_eq!(job.settle(), all(&[1, 3], &[1, 1, 3]));
    }

    #[test]
    fn a_job_shrinks_when_a_worker_is_lost() {
        let mut job = Job::in_epoch(&[0, 1, 2, 3]);
        let (lost, _) = job.watch(3, "s", (1, 0));
        let told = job.join(0, "t", 1).1;
        // The session of worker 0 has ended, so no step of the others can end.
        let of_old_session = matches!(&told[0], (0, Err(status)) if status.code == Code::Aborted);
        assert!(of_old_session, "{told:?}");
        assert_eq!(told[1..], all(&[1, 2, 3], &[LEFT, NO_STEP]));
        job.join(1, "t", 1);
        job.join(2, "t", 1);
        // The other workers wait for worker 3 until it is lost.
        assert_eq!(job.settle(), []);
        job.roster.lose(3, lost);
        assert_eq!(job.settle(), all(&[0, 1, 2], &[2, 0, 1, 2]));
    }

    #[test]
    fn a_worker_that_is_lost_while_it_watches_is_not_waited_for_but_one_that_was_told_is() {
        for (known, waits) in [(0, false), (1, true)] {
            let mut job = Job::in_epoch(&[0, 1]);
            let (call, _) = job.watch(1, "s", (1, known));
            assert_eq!(job.roster.leave(1, call), (waits, Vec::new()));
            job.join(0, "t", 1);
            job.join(2, "s", 0);
            assert_eq!(job.settle().is_empty(), waits, "{known}");
            job.roster.lose(1, call);
            assert_eq!(job.settle().is_empty(), !waits, "{known}");
        }
    }

    #[test]
    fn a_newcomer_waits_until_the_epoch_ends_for_all() {
        let mut job = Job::in_epoch(&[0, 1]);
        assert_eq!(job.join(2, "s", 0).1, all(&[0, 1], &[NEWCOMER, NO_STEP]));
        assert_eq!(job.settle(), []);
        // Workers that have been told of the newcomer are not told again; a worker that has not been told is told.
        assert_eq!(job.watch(0, "s", (1, 1)).1, []);
        assert_eq!(job.watch(1, "s", (1, 0)).1, all(&[1], &[NEWCOMER, NO_STEP]));
        let told = job.join(1, "t", 1).1;
        assert_eq!(told, all(&[0], &[LEFT, NO_STEP]));
        job.join(0, "t", 1);
        assert_eq!(job.settle(), all(&[0, 1, 2], &[2, 0, 1, 2]));
        assert_eq!(job.watch(0, "t", (1, 0)).1, all(&[0], &[OVER, NO_STEP]));
        assert_eq!(job.watch(0, "s", (2, 0)).1, all(&[0], &[OVER, NO_STEP]));
    }

    #[test]
    fn workers_without_values_wait_for_one_that_has_some_or_for_all() {
        let without = |worker| Arrival { has_values: false, ..Job::arrival(worker, "s", 0) };
        let mut job = Job::default();
        for worker in 0..3 {
            assert_eq!(job.roster.join(without(worker), worker).1, []);
        }
        assert_eq!(job.settle(), []);
        assert_eq!(job.roster.join(without(3), 3).1.len(), 4);
        let mut job = Job::default();
        job.roster.join(without(1), 1);
        let (call, _) = job.join(0, "s", 0);
        assert!(job.roster.expire(0, call).is_err_and(|late| late.message.starts_with("have 2, need 2")));
        // Worker 0 has been answered and has not called again.
        assert_eq!(job.settle(), []);
        job.join(0, "s", 0);
        assert_eq!(job.settle(), all(&[0, 1], &[1, 0, 1]));
    }

    #[test]
    fn a_late_worker_is_named_and_epochs_count_on_after_a_restart_of_the_leader() {
        let mut job = Job::in_epoch(&[1, 2]);
        let (call, _) = job.join(0, "s", 0);
        let late = job.roster.expire(0, call).err().map(|status| status.message).unwrap_or_default();
        assert_eq!(
            late,
            "have 1, need 2 workers: 0 have come, 1, 2, 3 are missing; epoch 1 has not ended on 1, 2"
        );
        let mut restarted = Job::default();
        assert_eq!(restarted.watch(1, "s", (7, 0)).1, all(&[1], &[OVER, NO_STEP]));
        restarted.join(1, "t", 7);
        restarted.join(2, "t", 6);
        assert_eq!(restarted.settle(), all(&[1, 2], &[8, 1, 2]));
        // The answer is repeated, because the first one was lost.
        assert_eq!(restarted.join(2, "t", 6).1, all(&[2], &[8, 1, 2]));
    }

    #[test]
    fn a_second_session_takes_the_place_of_the_first_and_other_bounds_are_refused() {
        let mut job = Job::default();
        job.join(1, "s", 0);
        let answers = job.join(1, "t", 0).1;
        assert!(matches!(&answers[..], [(1, Err(status))] if status.code == Code::Aborted), "{answers:?}");
        let other = Arrival { least: 3, ..Job::arrival(2, "s", 0) };
        let (_, answers) = job.roster.join(other, 2);
        let [(2, Err(status))] = &answers[..] else { panic!("{answers:?}") };
        assert!(status.message.contains("worker 2 is of a job of 3 to 4 workers"), "{status}");
    }

    #[test]
    fn workers_that_finish_wait_for_each_other_and_for_no_lost_worker() {
        let mut job = Job::in_epoch(&[0, 1, 2, 3]);
        // The call of worker 0 that watched the epoch is over; the other workers are told its last step.
        let (_, told) = job.finish(0, 40);
        assert_eq!(told[..1], all(&[0], &[OVER, NO_STEP]));
        assert_eq!(told[1..], all(&[1, 2, 3], &[FINISHED, 40]));
        assert_eq!(job.watch(0, "s", (1, 0)).1, all(&[0], &[OVER, NO_STEP]));
        let (call, _) = job.watch(1, "s", (1, FINISHED));
        assert_eq!(job.roster.expire(1, call), Ok(vec![FINISHED, 40]));
        assert_eq!(job.finish(1, 40).1, []);
        let (lost, _) = job.watch(3, "s", (1, 0));
        assert_eq!(job.finish(2, 40).1, []);
        assert_eq!(job.roster.lose(3, lost), all(&[0, 1, 2], &[]));
        assert_eq!(job.finish(2, 40).1, all(&[2], &[]));
    }

    #[test]
    fn a_worker_that_finishes_late_is_named_and_its_call_may_be_repeated() {
        let mut job = Job::in_epoch(&[0, 1, 2]);
        let (call, _) = job.finish(0, 7);
        let late = job.roster.expire(0, call).err().map(|late| late.message).unwrap_or_default();
        assert_eq!(late, "these workers of epoch 1 have not finished: 1, 2");
        let (again, answers) = job.finish(0, 7);
        assert!(again > call && answers.is_empty());
        job.finish(1, 7);
        assert_eq!(job.finish(2, 7).1, all(&[0, 1, 2], &[]));
    }

    #[test]
    fn a_worker_that_leaves_for_the_next_epoch_is_reported_to_those_who_have_finished() {
        let mut job = Job::in_epoch(&[0, 1, 2]);
        let (call, _) = job.finish(0, 7);
        assert!(!job.roster.has_left());
        job.join(1, "t", 1);
        assert!(job.roster.has_left());
        assert_eq!(job.roster.give_up(0, call), [1, 2]);
        assert_eq!(job.settle(), []);
        job.join(2, "t", 1);
        // The next epoch does not wait for worker 0, which is still in the roster.
        assert_eq!(job.settle(), all(&[1, 2], &[2, 1, 2]));
        assert_eq!(job.finish(0, 7).1, all(&[0], &[]));
    }

    #[test]
    fn the_next_epoch_answers_those_who_have_finished_in_the_last_one() {
        let mut job = Job::in_epoch(&[0, 1, 2]);
        job.finish(0, 7);
        job.join(1, "t", 1);
        job.join(2, "t", 1);
        let mut expected = all(&[0], &[1, 2]);
        expected.extend(all(&[1, 2], &[2, 1, 2]));
        assert_eq!(job.settle(), expected);
        let mut restarted = Job::default();
        assert_eq!(restarted.finish(0, 7).1, all(&[0], &[]));
    }
}
