//! A hook that traces steps periodically.

use crate::error::Result;
use crate::events::Events;
use crate::session::hook::Timer;
use crate::session::{Hook, HookContext, Period, RunArgs, RunValues};
use proto::pb;

/// Runs a step with a full trace periodically, and writes the trace as the run metadata `step_<n>`.
#[derive(Debug)]
pub struct Profiler {
    timer: Timer,
    events: Events,
    step: i64,
}

impl Profiler {
    /// Returns a hook that traces at the given period and writes to `events`.
    pub fn new(every: Period, events: Events) -> Profiler {
        Profiler { timer: Timer::new(every), events, step: 0 }
    }
}

impl Hook for Profiler {
    fn before_run(&mut self, _: &HookContext<'_>) -> Result<RunArgs> {
        let trace = pb::run_options::TraceLevel::FullTrace as i32;
        let options = pb::RunOptions { trace_level: trace, ..Default::default() };
        let options = self.timer.is_due(self.step + 1).then_some(options);
        Ok(RunArgs { options, ..RunArgs::default() })
    }

    fn after_run(&mut self, _: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        self.step = run.global_step.unwrap_or(self.step + 1);
        match run.metadata.filter(|_| self.timer.is_due(self.step)) {
            Some(metadata) => {
                self.timer.record(self.step);
                self.events.run_metadata(self.step, metadata)
            }
            None => Ok(()),
        }
    }

    fn end(&mut self, _: &HookContext<'_>) -> Result<()> {
        self.events.flush()
    }
}
