//! The chief's decision from the state of a synchronous job: which workers have pushed, which are late, and
//! whether the gradients suffice for an update.

use super::replica::{FINISHED, UNSET};

/// The state of a synchronous job, read by the chief in one step of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SyncState {
    pub(super) step: i64,
    /// The index of the chief's own worker.
    pub(super) own: usize,
    /// The last step that each worker has pushed gradients of, [`UNSET`] or [`FINISHED`].
    pub(super) pushed: Vec<i64>,
    /// The last pushed step for which each worker got a token.
    pub(super) answered: Vec<i64>,
    /// The smallest number of gradients in any accumulator; `None` if gradients are in buffers.
    pub(super) accumulated: Option<usize>,
}

/// The chief's decision: the late workers, and the next action.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// The workers whose gradients were computed at another step, with that step: it is earlier than the current one,
    /// or later if the job has returned to an earlier step. The chief drops such gradients in buffers; accumulators
    /// drop gradients of earlier steps themselves.
    pub(super) late: Vec<(usize, i64)>,
    pub(super) verdict: Verdict,
}

/// The next action of the chief.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Stop: every worker that has pushed gradients has finished.
    #[default]
    Finished,
    /// Update with the gradients of the workers that `contributors` marks; `required` gradients suffice. `active` is
    /// the number of workers that have not finished.
    Update { contributors: Vec<bool>, required: usize, active: usize },
    /// Wait: `have` of the `need` gradients of this step have been pushed; the workers `missing` have not pushed one.
    Wait { have: usize, need: usize, missing: Vec<usize> },
}

/// The numbers of the last attempts at a two-phase update, by phase and device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AttemptNumbers {
    /// The number of the last attempt that each device has prepared.
    pub(super) prepared: Vec<i64>,
    /// The number of the last attempt that each device has committed.
    pub(super) committed: Vec<i64>,
    /// The number of the last attempt that began to take gradients out of accumulators.
    pub(super) taking: i64,
}

/// The phase in which an update was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Interruption {
    /// No phase was interrupted, or only a preparation, which has had no lasting effect.
    None,
    /// Preparation: some accumulators have been emptied, and some staged values are missing.
    Taking,
    /// Commit: all values are staged, and some variables may have them already.
    Commit,
}

impl Interruption {
    /// Returns the phase in which the last update was interrupted. A commit begins when all devices have
    /// prepared, and another attempt begins when the commit has ended.
    pub(super) fn of(attempts: &AttemptNumbers) -> Interruption {
        let AttemptNumbers { prepared, committed, taking } = attempts;
        let last = prepared.first().copied().unwrap_or(UNSET);
        let all_are_prepared = prepared.iter().all(|&attempt| attempt == last);
        if all_are_prepared && committed.iter().any(|&attempt| attempt != last) {
            return Interruption::Commit;
        }
        let was_taken = *taking == UNSET || (all_are_prepared && *taking == last);
        if was_taken { Interruption::None } else { Interruption::Taking }
    }
}

impl SyncState {
    /// Returns the decision for updates that need `replicas_to_aggregate` gradients.
    pub(super) fn decide(&self, replicas_to_aggregate: usize) -> Decision {
        let workers = || self.pushed.iter().zip(&self.answered).enumerate();
        // A push is unanswered if its step differs from the last answered step. The pushed step may be the smaller one:
        // after a job has gone back to a checkpoint, workers push earlier steps again.
        let is_unanswered = |pushed: i64, answered: i64| ![FINISHED, UNSET, answered].contains(&pushed);
        let active = self.pushed.iter().filter(|&&pushed| pushed != FINISHED).count();
        let need = replicas_to_aggregate.min(active);
        // TensorFlow clients push to accumulators without an entry in `pushed`; the job ends when the last worker with
        // an entry has finished.
        let is_foreign = |pushed: i64| self.accumulated.is_some() && pushed == UNSET;
        let others_are_foreign = self.pushed.iter().all(|&p| p == FINISHED || is_foreign(p));
        // While the chief's own worker still trains, the job does not end, because workers without an entry may still
        // join.
        if need == 0 || (others_are_foreign && self.pushed.get(self.own) == Some(&FINISHED)) {
            return Decision::default();
        }
        let contributors: Vec<bool> =
            workers().map(|(_, (&p, &a))| is_unanswered(p, a) && p == self.step).collect();
        let late = workers()
            .filter(|(_, (p, a))| is_unanswered(**p, **a) && **p != self.step)
            .map(|(worker, (p, _))| (worker, *p))
            .collect();
        let have = self.accumulated.unwrap_or_else(|| contributors.iter().filter(|c| **c).count());
        let verdict = if have >= need {
            Verdict::Update { contributors, required: need, active }
        } else {
            let is_missing = |(worker, contributes): (usize, &bool)| {
                (!contributes && self.pushed[worker] != FINISHED).then_some(worker)
            };
            let missing = contributors.iter().enumerate().filter_map(is_missing).collect();
            Verdict::Wait { have, need, missing }
        };
        Decision { late, verdict }
    }

    /// Returns the value of `answered` after the workers that `workers` marks have got their tokens.
    pub(super) fn answered_after(&self, workers: &[bool]) -> Vec<i64> {
        let of_worker = |((&answered, &pushed), &gets): ((&i64, &i64), &bool)| {
            if gets && pushed != FINISHED { pushed } else { answered }
        };
        self.answered.iter().zip(&self.pushed).zip(workers).map(of_worker).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(step: i64, pushed: &[i64], answered: &[i64]) -> SyncState {
        let (pushed, answered) = (pushed.to_vec(), answered.to_vec());
        SyncState { step, own: 0, pushed, answered, accumulated: None }
    }

    #[test]
    fn without_backups_an_update_needs_all_workers() {
        let two_of_three = state(5, &[5, 4, 5], &[4, 4, 4]).decide(3);
        assert_eq!(two_of_three.verdict, Verdict::Wait { have: 2, need: 3, missing: vec![1] });
        let all = state(5, &[5, 5, 5], &[4, 4, 4]).decide(3);
        assert_eq!(all.verdict, Verdict::Update { contributors: vec![true; 3], required: 3, active: 3 });
        assert_eq!(state(5, &[5, 5, 5], &[4, 4, 4]).answered_after(&[true; 3]), [5, 5, 5]);
    }

    #[test]
    fn with_a_backup_the_slowest_gradient_is_late() {
        let first = state(5, &[5, 4, 5], &[4, 4, 4]).decide(2);
        assert_eq!(
            first.verdict,
            Verdict::Update { contributors: vec![true, false, true], required: 2, active: 3 }
        );
        assert!(first.late.is_empty());
        // Worker 1 pushes gradients of step 5 when the others are at step 6.
        let late = state(6, &[5, 5, 6], &[5, 4, 5]).decide(2);
        assert_eq!(late.late, [(1, 5)]);
        assert_eq!(late.verdict, Verdict::Wait { have: 1, need: 2, missing: vec![0, 1] });
        assert_eq!(state(6, &[5, 5, 6], &[5, 4, 5]).answered_after(&[false, true, false]), [5, 5, 5]);
    }

    #[test]
    fn finished_workers_are_not_waited_for() {
        let one = state(5, &[5, FINISHED, FINISHED], &[4, 4, 4]).decide(3);
        assert_eq!(
            one.verdict,
            Verdict::Update { contributors: vec![true, false, false], required: 1, active: 1 }
        );
        assert_eq!(state(5, &[FINISHED; 3], &[4; 3]).decide(3), Decision::default());
        assert_eq!(
            state(0, &[UNSET, FINISHED], &[UNSET, UNSET]).decide(2).verdict,
            Verdict::Wait { have: 0, need: 1, missing: vec![0] }
        );
    }

    #[test]
    fn gradients_of_a_rolled_back_step_are_late() {
        let back = state(3, &[3, 5], &[UNSET, UNSET]).decide(2);
        assert_eq!(back.late, [(1, 5)]);
        assert_eq!(back.verdict, Verdict::Wait { have: 1, need: 2, missing: vec![1] });
        // Worker 1 has got a token, and pushes gradients of the current step.
        let again = state(3, &[3, 3], &[UNSET, 5]).decide(2);
        assert_eq!(again.verdict, Verdict::Update { contributors: vec![true; 2], required: 2, active: 2 });
    }

    #[test]
    fn the_chief_waits_for_new_workers_while_it_trains() {
        let first = SyncState { accumulated: Some(0), ..state(0, &[UNSET, FINISHED, UNSET], &[UNSET; 3]) };
        assert_eq!(first.decide(3).verdict, Verdict::Wait { have: 0, need: 2, missing: vec![0, 2] });
    }

    #[test]
    fn gradients_in_accumulators_count_without_an_entry_in_pushed() {
        let foreign = SyncState { accumulated: Some(2), ..state(5, &[5, UNSET], &[4, UNSET]) };
        assert!(matches!(foreign.decide(2).verdict, Verdict::Update { required: 2, .. }));
        let foreign = SyncState { accumulated: Some(1), ..foreign };
        assert_eq!(foreign.decide(2).verdict, Verdict::Wait { have: 1, need: 2, missing: vec![1] });
        let foreign = SyncState { pushed: vec![FINISHED, UNSET], ..foreign };
        assert_eq!(foreign.decide(2).verdict, Verdict::Finished);
    }

    #[test]
    fn interrupted_phases_are_recognised() {
        let of = |prepared: &[i64], committed: &[i64], taking: i64| {
            Interruption::of(&AttemptNumbers {
                prepared: prepared.to_vec(),
                committed: committed.to_vec(),
                taking,
            })
        };
        // No interruption: no update has begun, the last update is committed, or an update from buffers was interrupted
        // in its preparation, which has had no lasting effect.
        for (prepared, committed) in [([UNSET; 2], [UNSET; 2]), ([7, 7], [7, 7]), ([8, 7], [7, 7])] {
            assert_eq!(of(&prepared, &committed, UNSET), Interruption::None, "{prepared:?}");
        }
        // Interrupted during the commit, when one device or none had committed.
        assert_eq!(of(&[8, 8], &[8, 7], UNSET), Interruption::Commit);
        assert_eq!(of(&[8, 8], &[7, 7], 8), Interruption::Commit);
        // Interrupted while gradients were taken, when the accumulators of one device or of none had been emptied.
        assert_eq!(of(&[8, 7], &[7, 7], 8), Interruption::Taking);
        assert_eq!(of(&[7, 7], &[7, 7], 8), Interruption::Taking);
        assert_eq!(of(&[7, 7], &[7, 7], 7), Interruption::None);
    }
}
