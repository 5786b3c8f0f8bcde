//! Who of a cluster takes part in a session: those whom it needs are waited for, others only for a moment. No
//! clocks and no calls here: answers and the time come in, the decision goes out.

use graph::{Code, DeviceAttributes, TaskName};
use proto::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// Once those that are needed have answered, the others have so long since the start.
const OTHERS_GRACE: Duration = Duration::from_millis(500);

/// Who is missing is logged at first after so long, and then as often.
const REPORT_EVERY: Duration = Duration::from_secs(10);
const FIRST_REPORT: Duration = Duration::from_secs(2);

/// Tasks that were asked for their devices.
#[derive(Debug)]
pub(crate) struct RollCall {
    since: Instant,
    needed: BTreeSet<TaskName>,
    silent: BTreeSet<TaskName>,
    present: BTreeMap<TaskName, Vec<DeviceAttributes>>,
    /// With the reason.
    missing: BTreeMap<TaskName, String>,
    next_report: Instant,
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub(crate) enum Roll {
    /// Wait for answers until then at most.
    Wait {
        until: Instant,
    },
    /// Say who has not answered, and ask again.
    Report(Vec<TaskName>),
    Complete,
}

impl RollCall {
    pub(crate) fn new(
        asked: impl IntoIterator<Item = TaskName>,
        is_needed: impl Fn(&TaskName) -> bool,
        now: Instant,
    ) -> RollCall {
        let silent: BTreeSet<TaskName> = asked.into_iter().collect();
        RollCall {
            since: now,
            needed: silent.iter().filter(|t| is_needed(t)).cloned().collect(),
            silent,
            present: BTreeMap::new(),
            missing: BTreeMap::new(),
            next_report: now + FIRST_REPORT,
        }
    }

    /// A task has answered, or cannot.
    pub(crate) fn answered(&mut self, task: TaskName, answer: Result<Vec<DeviceAttributes>, String>) {
        self.silent.remove(&task);
        match answer {
            Ok(devices) => drop(self.present.insert(task, devices)),
            Err(reason) => drop(self.missing.insert(task, reason)),
        }
    }

    pub(crate) fn at(&mut self, now: Instant) -> Roll {
        let waits_for_needed = self.silent.iter().any(|t| self.needed.contains(t));
        let grace = self.since + OTHERS_GRACE;
        if self.silent.is_empty() || !waits_for_needed && now >= grace {
            return Roll::Complete;
        }
        if now >= self.next_report {
            self.next_report = now + REPORT_EVERY;
            return Roll::Report(self.silent.intersection(&self.needed).cloned().collect());
        }
        Roll::Wait { until: if waits_for_needed { self.next_report } else { grace } }
    }

    /// The devices of those who are there.
    ///
    /// # Errors
    /// `Unavailable` naming every task that is needed and is not there, and why.
    pub(crate) fn close(self) -> Result<BTreeMap<TaskName, Vec<DeviceAttributes>>, Status> {
        let lacking = |task: &&TaskName| !self.present.contains_key(*task);
        let lines: Vec<String> = self
            .needed
            .iter()
            .filter(lacking)
            .map(|task| format!("{task}: {}", self.missing.get(task).map_or("no answer", String::as_str)))
            .collect();
        if lines.is_empty() {
            return Ok(self.present);
        }
        let (missing, needed) = (lines.len(), self.needed.len());
        let text = format!(
            "{missing} of the {needed} tasks that the session uses cannot be reached; start them, or leave them \
             out by device_filters:\n{}",
            lines.join("\n")
        );
        Err(Status::new(Code::Unavailable, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(index: u32) -> TaskName {
        TaskName::new("w", index)
    }

    #[test]
    fn those_who_are_needed_are_waited_for_and_others_for_a_moment() -> Result<(), Status> {
        let start = Instant::now();
        let mut roll = RollCall::new((0..3).map(task), |t| t.task < 2, start);
        roll.answered(task(0), Ok(Vec::new()));
        assert_eq!(roll.at(start), Roll::Wait { until: start + FIRST_REPORT });
        assert_eq!(roll.at(start + FIRST_REPORT), Roll::Report(vec![task(1)]));
        let next = start + FIRST_REPORT + REPORT_EVERY;
        assert_eq!(roll.at(start + FIRST_REPORT), Roll::Wait { until: next });
        roll.answered(task(1), Ok(Vec::new()));
        assert_eq!(roll.at(start), Roll::Wait { until: start + OTHERS_GRACE });
        assert_eq!(roll.at(start + OTHERS_GRACE), Roll::Complete);
        assert_eq!(roll.close()?.into_keys().collect::<Vec<_>>(), [task(0), task(1)]);
        Ok(())
    }

    #[test]
    fn who_is_needed_and_missing_is_named_with_the_reason() {
        let start = Instant::now();
        let mut roll = RollCall::new((0..3).map(task), |t| t.task < 2, start);
        roll.answered(task(0), Err("refused".into()));
        roll.answered(task(2), Err("unwanted".into()));
        roll.answered(task(1), Ok(Vec::new()));
        assert_eq!(roll.at(start), Roll::Complete);
        let failed = roll.close().err();
        let text = failed.as_ref().map_or("", |s| &s.message);
        assert!(
            text.contains("1 of the 2") && text.contains("task:0: refused") && !text.contains("unwanted")
        );
        assert_eq!(failed.as_ref().map(|s| s.code), Some(Code::Unavailable));
    }
}
