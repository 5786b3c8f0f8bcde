//! The end of a step that runs on several workers: which failure is reported, when the remaining workers are
//! cancelled, and which tasks a timeout names. This module reads no clock and makes no calls: it gets events
//! and times, and returns the next action.

use graph::{Code, TaskName};
use proto::Status;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The time for which a step waits for the root failure if all failures so far are derived, which means that each
/// is the consequence of another failure.
const CAUSE_GRACE: Duration = Duration::from_secs(1);

/// The longest time by which the workers' deadline precedes the step's deadline, so that their errors, which
/// name the nodes that they wait for, arrive in time.
const WORKERS_MARGIN: Duration = Duration::from_millis(50);

/// The longest time before the step's deadline in which a worker's `DeadlineExceeded` counts as the timeout
/// of the step, because the workers' deadline is earlier.
const SHORTLY: Duration = Duration::from_millis(300);

/// The state of a step in flight.
#[derive(Debug)]
pub(crate) struct StepRun<'a> {
    session: Arc<str>,
    partitions: Vec<PartitionRun<'a>>,
    deadline: Option<Instant>,
    /// The deadline that is sent to the workers. It precedes `deadline`, the step's own deadline, so that the
    /// workers' timeout errors reach the master before the step ends.
    workers_deadline: Option<Instant>,
    /// The time from which a worker's `DeadlineExceeded` counts as the timeout of the step.
    late_from: Option<Instant>,
    /// The first derived failure, which is the consequence of a failure elsewhere, and the time when it was
    /// reported.
    derived: Option<(Status, Instant)>,
}

#[derive(Debug)]
struct PartitionRun<'a> {
    task: &'a TaskName,
    state: PartitionState,
}

/// The state of one worker's partition.
#[derive(Debug, PartialEq)]
enum PartitionState {
    Running,
    Ended,
    /// The partition failed with `DeadlineExceeded` at or after the time `late_from` of the step, as happens
    /// at the workers' deadline. The text is its error message, which names the nodes that it waited for.
    Late(String),
}

/// The next action of the code that sends the step's partitions to the workers and receives their answers.
#[derive(Debug, PartialEq)]
pub(crate) enum NextAction {
    /// Wait for more answers of the workers, but call [`StepRun::next_action`] at the time `until`, if it is set.
    Wait { until: Option<Instant> },
    /// End the step successfully, because all partitions have succeeded.
    Succeed,
    /// Cancel the partitions that still run, and report this status.
    Fail(Status),
}

impl<'a> StepRun<'a> {
    /// Starts a step at the time `now` with one partition on each task.
    pub(crate) fn new(
        session: Arc<str>,
        tasks: impl IntoIterator<Item = &'a TaskName>,
        deadline: Option<Instant>,
        now: Instant,
    ) -> StepRun<'a> {
        let before = |d: Instant, margin: Duration, divisor| {
            d - margin.min(d.saturating_duration_since(now) / divisor)
        };
        let workers_deadline = deadline.map(|d| before(d, WORKERS_MARGIN, 10));
        let late_from = deadline.map(|d| before(d, SHORTLY, 4));
        let partitions =
            tasks.into_iter().map(|task| PartitionRun { task, state: PartitionState::Running }).collect();
        StepRun { session, partitions, deadline, workers_deadline, late_from, derived: None }
    }

    /// Returns the deadline to send to the workers, which precedes the step's own deadline by at most
    /// [`WORKERS_MARGIN`].
    pub(crate) fn workers_deadline(&self) -> Option<Instant> {
        self.workers_deadline
    }

    /// Records the end of a partition at the time `now`. Returns the next action. If the step runs on several
    /// tasks, the message of a root failure, which no other failure has caused, is prefixed with the task's name.
    pub(crate) fn partition_ended(
        &mut self,
        partition: usize,
        result: Result<(), Status>,
        now: Instant,
    ) -> NextAction {
        let is_late = self.late_from.is_some_and(|d| now >= d);
        self.partitions[partition].state = PartitionState::Ended;
        match result {
            Ok(()) => {}
            Err(status) if is_late && status.code == Code::DeadlineExceeded => {
                self.partitions[partition].state = PartitionState::Late(status.message);
            }
            Err(status) if is_derived(&status) => {
                self.derived.get_or_insert((status, now));
            }
            Err(mut cause) => {
                if self.partitions.len() > 1 {
                    cause.message = format!("From {}:\n{}", self.partitions[partition].task, cause.message);
                }
                return NextAction::Fail(cause);
            }
        }
        self.next_action(now)
    }

    /// Returns the next action at the time `now`.
    pub(crate) fn next_action(&self, now: Instant) -> NextAction {
        let runs = self.partitions.iter().any(|p| p.state == PartitionState::Running);
        let is_late = self.partitions.iter().any(|p| matches!(p.state, PartitionState::Late(_)));
        let is_over = !runs || self.deadline.is_some_and(|d| now >= d);
        if is_over && (runs || is_late) {
            return NextAction::Fail(self.timeout_error());
        }
        match &self.derived {
            None if !runs => NextAction::Succeed,
            None => NextAction::Wait { until: self.deadline },
            // A derived failure is the consequence of another failure. If a partition is `Late`, the step fails
            // with the timeout error instead: once all partitions have ended or the step's deadline has passed,
            // because the timeout error has the messages of all partitions that are `Late` by then.
            Some((_, since)) if runs && (is_late || now < *since + CAUSE_GRACE) => {
                let grace = *since + CAUSE_GRACE;
                let until = self.deadline.map_or(grace, |d| if is_late { d } else { d.min(grace) });
                NextAction::Wait { until: Some(until) }
            }
            Some((status, _)) => NextAction::Fail(status.clone()),
        }
    }

    /// Returns the timeout error, with the tasks that the step waits for and the messages of the partitions
    /// that are `Late`.
    fn timeout_error(&self) -> Status {
        let tasks =
            self.partitions.iter().filter(|p| p.state != PartitionState::Ended).map(|p| p.task.to_string());
        let messages = self.partitions.iter().filter_map(|p| match &p.state {
            PartitionState::Late(text) => Some(format!("\n{text}")),
            _ => None,
        });
        let text = format!(
            "The step did not end by its deadline; session {}; it waits for {}{}",
            self.session,
            tasks.collect::<Vec<_>>().join(", "),
            messages.collect::<String>()
        );
        Status::new(Code::DeadlineExceeded, text)
    }
}

/// Returns whether a failure is the consequence of another failure, as every cancellation by a worker is.
fn is_derived(status: &Status) -> bool {
    status.derived || status.code == Code::Cancelled
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    fn root() -> Status {
        Status::invalid("the cause")
    }

    fn run(partitions: usize, deadline: Option<Instant>, now: Instant) -> StepRun<'static> {
        static TASKS: LazyLock<[TaskName; 3]> = LazyLock::new(|| [0, 1, 2].map(|i| TaskName::new("w", i)));
        StepRun::new("s".into(), TASKS.iter().take(partitions), deadline, now)
    }

    #[test]
    fn a_root_failure_is_reported_at_once_with_its_task() {
        let now = Instant::now();
        let named = Status::invalid("From /job:w/replica:0/task:2:\nthe cause");
        assert_eq!(run(3, None, now).partition_ended(2, Err(root()), now), NextAction::Fail(named));
        assert_eq!(run(1, None, now).partition_ended(0, Err(root()), now), NextAction::Fail(root()));
    }

    #[test]
    fn a_derived_failure_waits_for_its_cause() {
        let start = Instant::now();
        let consequence = Status::new(Code::Aborted, "followed").derived();
        let mut steady = run(3, None, start);
        let until = Some(start + CAUSE_GRACE);
        assert_eq!(steady.partition_ended(0, Err(consequence.clone()), start), NextAction::Wait { until });
        assert_eq!(steady.partition_ended(1, Ok(()), start), NextAction::Wait { until });
        let mut other = run(3, None, start);
        other.partition_ended(0, Err(consequence.clone()), start);
        assert!(
            matches!(other.partition_ended(1, Err(root()), start), NextAction::Fail(s) if s.code == root().code)
        );
        assert_eq!(steady.next_action(start + CAUSE_GRACE), NextAction::Fail(consequence));
    }

    #[test]
    fn success_needs_every_partition() {
        let now = Instant::now();
        let mut run = run(2, None, now);
        assert_eq!(run.partition_ended(1, Ok(()), now), NextAction::Wait { until: None });
        assert_eq!(run.partition_ended(0, Ok(()), now), NextAction::Succeed);
    }

    #[test]
    fn if_all_failures_are_derived_the_first_is_reported() {
        let now = Instant::now();
        let cancelled = Status::new(Code::Cancelled, "cancelled");
        let mut run = run(2, None, now);
        run.partition_ended(0, Err(cancelled.clone()), now);
        assert_eq!(run.partition_ended(1, Ok(()), now), NextAction::Fail(cancelled));
    }

    #[test]
    fn the_timeout_names_the_outstanding_tasks_and_their_messages() -> Result<(), NextAction> {
        let start = Instant::now();
        let deadline = start + Duration::from_secs(10);
        let mut run = run(3, Some(deadline), start);
        let workers = run.workers_deadline().unwrap_or(start);
        assert!(workers < deadline);
        assert_eq!(run.partition_ended(0, Ok(()), start), NextAction::Wait { until: Some(deadline) });
        let timeout_error = Status::new(Code::DeadlineExceeded, "it waits for x");
        assert_eq!(
            run.partition_ended(1, Err(timeout_error.clone()), workers),
            NextAction::Wait { until: Some(deadline) }
        );
        let failed = match run.next_action(deadline) {
            NextAction::Fail(status) => status,
            other => return Err(other),
        };
        assert_eq!(failed.code, Code::DeadlineExceeded);
        let text = "The step did not end by its deadline; session s; it waits for /job:w/replica:0/task:1, \
                    /job:w/replica:0/task:2\nit waits for x";
        assert_eq!(failed.message, text);
        // The step ends when its last worker has timed out. A `DeadlineExceeded` long before the deadline is
        // an ordinary failure.
        assert!(matches!(run.partition_ended(2, Err(timeout_error.clone()), workers), NextAction::Fail(_)));
        let mut early = self::run(2, Some(deadline), start);
        assert!(
            matches!(early.partition_ended(0, Err(timeout_error), start), NextAction::Fail(s) if s.message.contains("From "))
        );
        Ok(())
    }
}
