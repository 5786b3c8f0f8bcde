//! How a step that runs on several workers ends: which of their failures is reported, when the others are given
//! up, and who is named when time runs out. No clocks and no calls here: events and the time come in, the decision
//! goes out.

use graph::{Code, TaskName};
use proto::Status;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// After a failure that only follows from another, its cause may take this long to arrive.
const CAUSE_GRACE: Duration = Duration::from_secs(1);

/// Workers end so much earlier than their master, at most: they know what they still wait for.
const WORKERS_MARGIN: Duration = Duration::from_millis(50);

/// A worker that says so shortly before the deadline that its time is up means this deadline: it leaves time for
/// its answer's way.
const SHORTLY: Duration = Duration::from_millis(300);

/// One step in flight.
#[derive(Debug)]
pub(crate) struct StepRun<'a> {
    session: Arc<str>,
    parts: Vec<Part<'a>>,
    deadline: Option<Instant>,
    /// When workers are to end what has not ended.
    workers_deadline: Option<Instant>,
    /// From when on workers may have run out of time.
    late_from: Option<Instant>,
    /// The first consequence seen, and since when its cause is awaited.
    derived: Option<(Status, Instant)>,
}

#[derive(Debug)]
struct Part<'a> {
    task: &'a TaskName,
    state: State,
}

#[derive(Debug, PartialEq)]
enum State {
    Running,
    Ended,
    /// It ended by its deadline, and said what it did until then.
    Late(String),
}

/// What to do next.
#[derive(Debug, PartialEq)]
pub(crate) enum Verdict {
    /// Wait for more answers; at `until`, if there is one, ask again.
    Wait { until: Option<Instant> },
    /// All parts have ended well.
    Succeed,
    /// Cancel what still runs and report this.
    Fail(Status),
}

impl<'a> StepRun<'a> {
    /// A step that starts `now` on these tasks.
    pub(crate) fn new(
        session: Arc<str>,
        tasks: impl IntoIterator<Item = &'a TaskName>,
        deadline: Option<Instant>,
        now: Instant,
    ) -> StepRun<'a> {
        let before =
            |d: Instant, margin: Duration, part| d - margin.min(d.saturating_duration_since(now) / part);
        let workers_deadline = deadline.map(|d| before(d, WORKERS_MARGIN, 10));
        let late_from = deadline.map(|d| before(d, SHORTLY, 4));
        let parts = tasks.into_iter().map(|task| Part { task, state: State::Running }).collect();
        StepRun { session, parts, deadline, workers_deadline, late_from, derived: None }
    }

    pub(crate) fn workers_deadline(&self) -> Option<Instant> {
        self.workers_deadline
    }

    /// A part has ended, well or not. A root failure of a step over several tasks says where it comes from.
    pub(crate) fn part_ended(&mut self, part: usize, result: Result<(), Status>, now: Instant) -> Verdict {
        let is_late = self.late_from.is_some_and(|d| now >= d);
        self.parts[part].state = State::Ended;
        match result {
            Ok(()) => {}
            Err(status) if is_late && status.code == Code::DeadlineExceeded => {
                self.parts[part].state = State::Late(status.message);
            }
            Err(status) if is_consequence(&status) => {
                self.derived.get_or_insert((status, now));
            }
            Err(mut cause) => {
                if self.parts.len() > 1 {
                    cause.message = format!("From {}:\n{}", self.parts[part].task, cause.message);
                }
                return Verdict::Fail(cause);
            }
        }
        self.at(now)
    }

    /// The verdict as time passes.
    pub(crate) fn at(&self, now: Instant) -> Verdict {
        let runs = self.parts.iter().any(|p| p.state == State::Running);
        let is_late = self.parts.iter().any(|p| matches!(p.state, State::Late(_)));
        let is_over = !runs || self.deadline.is_some_and(|d| now >= d);
        if is_over && (runs || is_late) {
            return Verdict::Fail(self.late());
        }
        match &self.derived {
            None if !runs => Verdict::Succeed,
            None => Verdict::Wait { until: self.deadline },
            // What was cut short by the deadline is no cause.
            Some((_, since)) if runs && (is_late || now < *since + CAUSE_GRACE) => {
                let grace = *since + CAUSE_GRACE;
                let until = self.deadline.map_or(grace, |d| if is_late { d } else { d.min(grace) });
                Verdict::Wait { until: Some(until) }
            }
            Some((status, _)) => Verdict::Fail(status.clone()),
        }
    }

    /// Names the tasks that the step waits for, and what they said of it.
    fn late(&self) -> Status {
        let tasks = self.parts.iter().filter(|p| p.state != State::Ended).map(|p| p.task.to_string());
        let said = self.parts.iter().filter_map(|p| match &p.state {
            State::Late(text) => Some(format!("\n{text}")),
            _ => None,
        });
        let text = format!(
            "The step did not end by its deadline; session {}; it waits for {}{}",
            self.session,
            tasks.collect::<Vec<_>>().join(", "),
            said.collect::<String>()
        );
        Status::new(Code::DeadlineExceeded, text)
    }
}

/// Cancellations that arrive from a worker always follow from something else.
fn is_consequence(status: &Status) -> bool {
    status.derived || status.code == Code::Cancelled
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::LazyLock;

    fn root() -> Status {
        Status::invalid("the cause")
    }

    fn run(parts: usize, deadline: Option<Instant>, now: Instant) -> StepRun<'static> {
        static TASKS: LazyLock<[TaskName; 3]> = LazyLock::new(|| [0, 1, 2].map(|i| TaskName::new("w", i)));
        StepRun::new("s".into(), TASKS.iter().take(parts), deadline, now)
    }

    #[test]
    fn a_cause_is_reported_at_once_with_its_task() {
        let now = Instant::now();
        let named = Status::invalid("From /job:w/replica:0/task:2:\nthe cause");
        assert_eq!(run(3, None, now).part_ended(2, Err(root()), now), Verdict::Fail(named));
        assert_eq!(run(1, None, now).part_ended(0, Err(root()), now), Verdict::Fail(root()));
    }

    #[test]
    fn a_consequence_waits_for_its_cause() {
        let start = Instant::now();
        let consequence = Status::new(Code::Aborted, "followed").derived();
        let mut steady = run(3, None, start);
        let until = Some(start + CAUSE_GRACE);
        assert_eq!(steady.part_ended(0, Err(consequence.clone()), start), Verdict::Wait { until });
        assert_eq!(steady.part_ended(1, Ok(()), start), Verdict::Wait { until });
        let mut other = run(3, None, start);
        other.part_ended(0, Err(consequence.clone()), start);
        assert!(matches!(other.part_ended(1, Err(root()), start), Verdict::Fail(s) if s.code == root().code));
        assert_eq!(steady.at(start + CAUSE_GRACE), Verdict::Fail(consequence));
    }

    #[test]
    fn success_needs_every_part() {
        let now = Instant::now();
        let mut run = run(2, None, now);
        assert_eq!(run.part_ended(1, Ok(()), now), Verdict::Wait { until: None });
        assert_eq!(run.part_ended(0, Ok(()), now), Verdict::Succeed);
    }

    #[test]
    fn when_all_parts_failed_by_consequence_the_first_is_reported() {
        let now = Instant::now();
        let cancelled = Status::new(Code::Cancelled, "cancelled");
        let mut run = run(2, None, now);
        run.part_ended(0, Err(cancelled.clone()), now);
        assert_eq!(run.part_ended(1, Ok(()), now), Verdict::Fail(cancelled));
    }

    #[test]
    fn the_deadline_names_who_is_outstanding_and_what_they_said() -> Result<(), Verdict> {
        let start = Instant::now();
        let deadline = start + Duration::from_secs(10);
        let mut run = run(3, Some(deadline), start);
        let workers = run.workers_deadline().unwrap_or(start);
        assert!(workers < deadline);
        assert_eq!(run.part_ended(0, Ok(()), start), Verdict::Wait { until: Some(deadline) });
        let late = Status::new(Code::DeadlineExceeded, "it waits for x");
        assert_eq!(run.part_ended(1, Err(late.clone()), workers), Verdict::Wait { until: Some(deadline) });
        let failed = match run.at(deadline) {
            Verdict::Fail(status) => status,
            other => return Err(other),
        };
        assert_eq!(failed.code, Code::DeadlineExceeded);
        let text = "The step did not end by its deadline; session s; it waits for /job:w/replica:0/task:1, \
                    /job:w/replica:0/task:2\nit waits for x";
        assert_eq!(failed.message, text);
        // Nobody has to be waited for who said so himself; before its time, the code is a failure like others.
        assert!(matches!(run.part_ended(2, Err(late.clone()), workers), Verdict::Fail(_)));
        let mut early = self::run(2, Some(deadline), start);
        assert!(
            matches!(early.part_ended(0, Err(late), start), Verdict::Fail(s) if s.message.contains("From "))
        );
        Ok(())
    }
}
