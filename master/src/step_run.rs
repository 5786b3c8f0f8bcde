//! How a step that runs on several workers ends: which of their failures is reported, and when the others are
//! given up. No clocks and no calls here: events and the time come in, the decision goes out.

use graph::Code;
use proto::Status;
use std::time::{Duration, Instant};

/// After a failure that only follows from another, its cause may take this long to arrive.
const CAUSE_GRACE: Duration = Duration::from_secs(1);

/// One step in flight.
#[derive(Debug)]
pub(crate) struct StepRun {
    outstanding: usize,
    /// The first consequence seen, and since when its cause is awaited.
    derived: Option<(Status, Instant)>,
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

impl StepRun {
    pub(crate) fn new(parts: usize) -> StepRun {
        StepRun { outstanding: parts, derived: None }
    }

    /// A part has ended, well or with a failure already marked with its task.
    pub(crate) fn part_ended(&mut self, result: Result<(), Status>, now: Instant) -> Verdict {
        self.outstanding -= 1;
        match result {
            Ok(()) => {}
            Err(status) if is_consequence(&status) => {
                self.derived.get_or_insert((status, now));
            }
            Err(cause) => return Verdict::Fail(cause),
        }
        self.at(now)
    }

    /// The verdict as time passes.
    pub(crate) fn at(&mut self, now: Instant) -> Verdict {
        match &self.derived {
            None if self.outstanding == 0 => Verdict::Succeed,
            None => Verdict::Wait { until: None },
            Some((_, since)) if self.outstanding > 0 && now < *since + CAUSE_GRACE => {
                Verdict::Wait { until: Some(*since + CAUSE_GRACE) }
            }
            Some((status, _)) => Verdict::Fail(status.clone()),
        }
    }
}

/// Cancellations that arrive from a worker always follow from something else.
fn is_consequence(status: &Status) -> bool {
    status.derived || status.code == Code::Cancelled
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Status {
        Status::invalid("the cause")
    }

    #[test]
    fn a_cause_is_reported_at_once() {
        let mut run = StepRun::new(3);
        assert_eq!(run.part_ended(Err(root()), Instant::now()), Verdict::Fail(root()));
    }

    #[test]
    fn a_consequence_waits_for_its_cause() {
        let start = Instant::now();
        let consequence = Status::new(Code::Aborted, "followed").derived();
        let mut run = StepRun::new(3);
        let until = Some(start + CAUSE_GRACE);
        assert_eq!(run.part_ended(Err(consequence.clone()), start), Verdict::Wait { until });
        assert_eq!(run.part_ended(Ok(()), start), Verdict::Wait { until });
        let mut other = StepRun::new(3);
        other.part_ended(Err(consequence.clone()), start);
        assert_eq!(other.part_ended(Err(root()), start), Verdict::Fail(root()));
        assert_eq!(run.at(start + CAUSE_GRACE), Verdict::Fail(consequence));
    }

    #[test]
    fn success_needs_every_part() {
        let now = Instant::now();
        let mut run = StepRun::new(2);
        assert_eq!(run.part_ended(Ok(()), now), Verdict::Wait { until: None });
        assert_eq!(run.part_ended(Ok(()), now), Verdict::Succeed);
    }

    #[test]
    fn when_all_parts_failed_by_consequence_the_first_is_reported() {
        let now = Instant::now();
        let cancelled = Status::new(Code::Cancelled, "cancelled");
        let mut run = StepRun::new(2);
        run.part_ended(Err(cancelled.clone()), now);
        assert_eq!(run.part_ended(Ok(()), now), Verdict::Fail(cancelled));
    }
}
