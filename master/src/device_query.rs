//! The query of the cluster's tasks for their devices at the start of a session, which waits for the tasks
//! that the session needs, and only briefly for all other tasks. This module reads no clock and makes no
//! calls: the caller passes in answers and times, and gets the next action.

use graph::{Code, DeviceAttributes, TaskName};
use proto::Status;
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

/// The time after the start of a query at which it stops waiting for tasks that the session does not need.
const OTHERS_GRACE: Duration = Duration::from_millis(500);

/// The time between two log messages about missing tasks.
const REPORT_EVERY: Duration = Duration::from_secs(10);
/// The time from the start of a query to the first log message about missing tasks.
const FIRST_REPORT: Duration = Duration::from_secs(2);

/// The state of a query of tasks for their devices.
#[derive(Debug)]
pub(crate) struct DeviceQuery {
    since: Instant,
    /// The tasks that the session needs.
    needed: BTreeSet<TaskName>,
    /// The tasks that have not answered yet.
    silent: BTreeSet<TaskName>,
    /// The devices of the tasks that have answered.
    present: BTreeMap<TaskName, Vec<DeviceAttributes>>,
    /// The tasks that cannot be reached, with the reason.
    missing: BTreeMap<TaskName, String>,
    next_report: Instant,
}

/// The next action of the caller.
#[derive(Debug, PartialEq)]
pub(crate) enum QueryAction {
    /// Wait for answers, at most until the time `until`.
    Wait { until: Instant },
    /// Log the needed tasks that have not answered, and ask for the next action again.
    Report(Vec<TaskName>),
    /// End the query: no further answers are awaited.
    Complete,
}

impl DeviceQuery {
    /// Starts a query of `tasks`.
    pub(crate) fn new(
        tasks: impl IntoIterator<Item = TaskName>,
        is_needed: impl Fn(&TaskName) -> bool,
        now: Instant,
    ) -> DeviceQuery {
        let silent: BTreeSet<TaskName> = tasks.into_iter().collect();
        DeviceQuery {
            since: now,
            needed: silent.iter().filter(|t| is_needed(t)).cloned().collect(),
            silent,
            present: BTreeMap::new(),
            missing: BTreeMap::new(),
            next_report: now + FIRST_REPORT,
        }
    }

    /// Records a task's devices, or the reason why it cannot answer.
    pub(crate) fn record(&mut self, task: TaskName, answer: Result<Vec<DeviceAttributes>, String>) {
        self.silent.remove(&task);
        match answer {
            Ok(devices) => drop(self.present.insert(task, devices)),
            Err(reason) => drop(self.missing.insert(task, reason)),
        }
    }

    /// Returns the next action at the time `now`.
    pub(crate) fn next_action(&mut self, now: Instant) -> QueryAction {
        let waits_for_needed = self.silent.iter().any(|t| self.needed.contains(t));
        let grace = self.since + OTHERS_GRACE;
        if self.silent.is_empty() || !waits_for_needed && now >= grace {
            return QueryAction::Complete;
        }
        if now >= self.next_report {
            self.next_report = now + REPORT_EVERY;
            return QueryAction::Report(self.silent.intersection(&self.needed).cloned().collect());
        }
        QueryAction::Wait { until: if waits_for_needed { self.next_report } else { grace } }
    }

    /// Returns the devices of the tasks that have answered.
    ///
    /// # Errors
    /// `Unavailable` with every needed task that has not answered, and the reason.
    pub(crate) fn finish(self) -> Result<BTreeMap<TaskName, Vec<DeviceAttributes>>, Status> {
        let is_missing = |task: &&TaskName| !self.present.contains_key(*task);
        let lines: Vec<String> = self
            .needed
            .iter()
            .filter(is_missing)
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
    fn needed_tasks_are_waited_for_and_others_only_briefly() -> Result<(), Status> {
        let start = Instant::now();
        let mut query = DeviceQuery::new((0..3).map(task), |t| t.task < 2, start);
        query.record(task(0), Ok(Vec::new()));
        assert_eq!(query.next_action(start), QueryAction::Wait { until: start + FIRST_REPORT });
        assert_eq!(query.next_action(start + FIRST_REPORT), QueryAction::Report(vec![task(1)]));
        let next = start + FIRST_REPORT + REPORT_EVERY;
        assert_eq!(query.next_action(start + FIRST_REPORT), QueryAction::Wait { until: next });
        query.record(task(1), Ok(Vec::new()));
        assert_eq!(query.next_action(start), QueryAction::Wait { until: start + OTHERS_GRACE });
        assert_eq!(query.next_action(start + OTHERS_GRACE), QueryAction::Complete);
        assert_eq!(query.finish()?.into_keys().collect::<Vec<_>>(), [task(0), task(1)]);
        Ok(())
    }

    #[test]
    fn missing_needed_tasks_are_named_with_the_reason() {
        let start = Instant::now();
        let mut query = DeviceQuery::new((0..3).map(task), |t| t.task < 2, start);
        query.record(task(0), Err("refused".into()));
        query.record(task(2), Err("unwanted".into()));
        query.record(task(1), Ok(Vec::new()));
        assert_eq!(query.next_action(start), QueryAction::Complete);
        let failed = query.finish().err();
        let text = failed.as_ref().map_or("", |s| &s.message);
        assert!(
            text.contains("1 of the 2") && text.contains("task:0: refused") && !text.contains("unwanted")
        );
        assert_eq!(failed.as_ref().map(|s| s.code), Some(Code::Unavailable));
    }
}
