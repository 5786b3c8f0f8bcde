//! Who has pushed, who is late, and whether that makes a step: a value, from what the chief sees.

use super::replica::{FINISHED, NOTHING};

/// What the chief sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) step: i64,
    /// Which worker looks.
    pub(super) own: usize,
    /// The last step that each worker has pushed gradients of, [`NOTHING`] or [`FINISHED`].
    pub(super) pushed: Vec<i64>,
    /// The last such step that each worker got a token for.
    pub(super) answered: Vec<i64>,
    /// What accumulators have; `None` where gradients wait in places.
    pub(super) accumulated: Option<usize>,
}

/// What follows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decision {
    /// Workers whose gradients are of another step, with that step: an earlier one, or one that the job has gone back
    /// from. In places they are dropped; accumulators have
    /// taken them or not.
    pub(super) late: Vec<(usize, i64)>,
    pub(super) verdict: Verdict,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Every worker has finished, as far as their rows tell.
    #[default]
    Finished,
    /// Enough gradients are there, those of these workers.
    /// `active` workers have not finished.
    Update { contributors: Vec<bool>, required: usize, active: usize },
    /// Too few are.
    Wait { have: usize, need: usize, missing: Vec<usize> },
}

/// How far updates have come, by the numbers of their attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Attempts {
    /// The last that each device has prepared, and committed.
    pub(super) prepared: Vec<i64>,
    pub(super) committed: Vec<i64>,
    /// The last that began to take gradients out of accumulators.
    pub(super) taking: i64,
}

/// Where an update was cut off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// Nowhere, or where it is as if it had not begun.
    No,
    /// Some accumulators have given their gradients, and not all next values are there.
    Taking,
    /// All next values are there, and some variables may have them.
    Commit,
}

impl Cut {
    /// A commit begins once all devices have prepared, and another attempt once it has ended.
    pub(super) fn find(attempts: &Attempts) -> Cut {
        let Attempts { prepared, committed, taking } = attempts;
        let last = prepared.first().copied().unwrap_or(NOTHING);
        let all_are_prepared = prepared.iter().all(|&attempt| attempt == last);
        if all_are_prepared && committed.iter().any(|&attempt| attempt != last) {
            return Cut::Commit;
        }
        let was_taken = *taking == NOTHING || (all_are_prepared && *taking == last);
        if was_taken { Cut::No } else { Cut::Taking }
    }
}

impl Seen {
    pub(super) fn decide(&self, replicas_to_aggregate: usize) -> Decision {
        let workers = || self.pushed.iter().zip(&self.answered).enumerate();
        // Not more: a job that has gone back pushes steps again that are before those it was answered.
        let waits = |pushed: i64, answered: i64| ![FINISHED, NOTHING, answered].contains(&pushed);
        let active = self.pushed.iter().filter(|&&pushed| pushed != FINISHED).count();
        let need = replicas_to_aggregate.min(active);
        // Foreign clients push to accumulators without saying so; they end with the last of those that do.
        let is_foreign = |pushed: i64| self.accumulated.is_some() && pushed == NOTHING;
        let others_are_foreign = self.pushed.iter().all(|&p| p == FINISHED || is_foreign(p));
        // While the chief trains, others that were there before it are to come still.
        if need == 0 || (others_are_foreign && self.pushed.get(self.own) == Some(&FINISHED)) {
            return Decision::default();
        }
        let contributors: Vec<bool> = workers().map(|(_, (&p, &a))| waits(p, a) && p == self.step).collect();
        let late = workers()
            .filter(|(_, (p, a))| waits(**p, **a) && **p != self.step)
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

    /// What is answered once these workers have their tokens.
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

    fn seen(step: i64, pushed: &[i64], answered: &[i64]) -> Seen {
        let (pushed, answered) = (pushed.to_vec(), answered.to_vec());
        Seen { step, own: 0, pushed, answered, accumulated: None }
    }

    #[test]
    fn all_are_waited_for_without_backups() {
        let two_of_three = seen(5, &[5, 4, 5], &[4, 4, 4]).decide(3);
        assert_eq!(two_of_three.verdict, Verdict::Wait { have: 2, need: 3, missing: vec![1] });
        let all = seen(5, &[5, 5, 5], &[4, 4, 4]).decide(3);
        assert_eq!(all.verdict, Verdict::Update { contributors: vec![true; 3], required: 3, active: 3 });
        assert_eq!(seen(5, &[5, 5, 5], &[4, 4, 4]).answered_after(&[true; 3]), [5, 5, 5]);
    }

    #[test]
    fn with_a_backup_the_slowest_is_late() {
        let first = seen(5, &[5, 4, 5], &[4, 4, 4]).decide(2);
        assert_eq!(
            first.verdict,
            Verdict::Update { contributors: vec![true, false, true], required: 2, active: 3 }
        );
        assert!(first.late.is_empty());
        // It pushes gradients of step 5 when the others are at 6.
        let late = seen(6, &[5, 5, 6], &[5, 4, 5]).decide(2);
        assert_eq!(late.late, [(1, 5)]);
        assert_eq!(late.verdict, Verdict::Wait { have: 1, need: 2, missing: vec![0, 1] });
        assert_eq!(seen(6, &[5, 5, 6], &[5, 4, 5]).answered_after(&[false, true, false]), [5, 5, 5]);
    }

    #[test]
    fn who_has_finished_is_not_waited_for() {
        let one = seen(5, &[5, FINISHED, FINISHED], &[4, 4, 4]).decide(3);
        assert_eq!(
            one.verdict,
            Verdict::Update { contributors: vec![true, false, false], required: 1, active: 1 }
        );
        assert_eq!(seen(5, &[FINISHED; 3], &[4; 3]).decide(3), Decision::default());
        assert_eq!(
            seen(0, &[NOTHING, FINISHED], &[NOTHING, NOTHING]).decide(2).verdict,
            Verdict::Wait { have: 0, need: 1, missing: vec![0] }
        );
    }

    #[test]
    fn gradients_of_a_step_that_the_job_has_gone_back_from_are_late() {
        let back = seen(3, &[3, 5], &[NOTHING, NOTHING]).decide(2);
        assert_eq!(back.late, [(1, 5)]);
        assert_eq!(back.verdict, Verdict::Wait { have: 1, need: 2, missing: vec![1] });
        // It has been told, and pushes for the step that is.
        let again = seen(3, &[3, 3], &[NOTHING, 5]).decide(2);
        assert_eq!(again.verdict, Verdict::Update { contributors: vec![true; 2], required: 2, active: 2 });
    }

    #[test]
    fn a_chief_that_trains_is_not_told_that_all_is_over() {
        let first = Seen { accumulated: Some(0), ..seen(0, &[NOTHING, FINISHED, NOTHING], &[NOTHING; 3]) };
        assert_eq!(first.decide(3).verdict, Verdict::Wait { have: 0, need: 2, missing: vec![0, 2] });
    }

    #[test]
    fn accumulators_say_themselves_what_they_have() {
        let foreign = Seen { accumulated: Some(2), ..seen(5, &[5, NOTHING], &[4, NOTHING]) };
        assert!(matches!(foreign.decide(2).verdict, Verdict::Update { required: 2, .. }));
        let foreign = Seen { accumulated: Some(1), ..foreign };
        assert_eq!(foreign.decide(2).verdict, Verdict::Wait { have: 1, need: 2, missing: vec![1] });
        let foreign = Seen { pushed: vec![FINISHED, NOTHING], ..foreign };
        assert_eq!(foreign.decide(2).verdict, Verdict::Finished);
    }

    #[test]
    fn what_was_cut_off_is_seen() {
        let of = |prepared: &[i64], committed: &[i64], taking: i64| {
            Cut::find(&Attempts { prepared: prepared.to_vec(), committed: committed.to_vec(), taking })
        };
        // Nothing has begun; all is done; gradients wait in places and were read there.
        for (prepared, committed) in [([NOTHING; 2], [NOTHING; 2]), ([7, 7], [7, 7]), ([8, 7], [7, 7])] {
            assert_eq!(of(&prepared, &committed, NOTHING), Cut::No, "{prepared:?}");
        }
        // Some devices have committed, or none.
        assert_eq!(of(&[8, 8], &[8, 7], NOTHING), Cut::Commit);
        assert_eq!(of(&[8, 8], &[7, 7], 8), Cut::Commit);
        // The accumulators of one device, or of none, have given what they had.
        assert_eq!(of(&[8, 7], &[7, 7], 8), Cut::Taking);
        assert_eq!(of(&[7, 7], &[7, 7], 8), Cut::Taking);
        assert_eq!(of(&[7, 7], &[7, 7], 7), Cut::No);
    }
}
