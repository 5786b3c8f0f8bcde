//! A hook that writes summaries to an event file.

use crate::error::Result;
use crate::events::Events;
use crate::session::hook::Timer;
use crate::session::{Hook, HookContext, Period, RunArgs, RunValues};
use graph::Output;

/// Fetches a summary (a scalar `string` from a summary op or a merge of several) periodically and writes it.
#[derive(Debug)]
pub struct SummarySaver {
    summary: Output,
    timer: Timer,
    events: Events,
    step: i64,
    has_graph: bool,
}

impl SummarySaver {
    /// Returns a hook that writes `summary` to `events` at the given period.
    pub fn new(summary: Output, every: Period, events: Events) -> SummarySaver {
        SummarySaver { summary, timer: Timer::new(every), events, step: 0, has_graph: false }
    }
}

impl Hook for SummarySaver {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        if !std::mem::replace(&mut self.has_graph, true) {
            self.events.graph(context.graph)?;
        }
        Ok(())
    }

    fn before_run(&mut self, _: &HookContext<'_>) -> Result<RunArgs> {
        let is_due = self.timer.is_due(self.step + 1);
        let fetches = if is_due { vec![self.summary] } else { Vec::new() };
        Ok(RunArgs { fetches, ..RunArgs::default() })
    }

    fn after_run(&mut self, _: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        self.step = run.global_step.unwrap_or(self.step + 1);
        if let Some(summary) = run.values.first() {
            self.timer.record(self.step);
            let bytes = summary.as_strings()?.first().cloned().unwrap_or_default();
            self.events.summary(self.step, &bytes)?;
        }
        Ok(())
    }

    fn end(&mut self, _: &HookContext<'_>) -> Result<()> {
        self.events.flush()
    }
}
