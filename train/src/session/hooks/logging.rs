//! A hook that logs tensors periodically.

use crate::error::Result;
use crate::session::hook::Timer;
use crate::session::{Hook, HookContext, Period, RunArgs, RunValues};
use graph::{Output, Tensor};

/// Logs named tensors, with the global step.
#[derive(Debug)]
pub struct LoggingTensors {
    tensors: Vec<(String, Output)>,
    timer: Timer,
    step: i64,
}

/// The largest number of elements of a tensor that are logged.
const MAX_ELEMENTS: i64 = 8;

impl LoggingTensors {
    /// Returns a hook that logs the tensors at the given period.
    pub fn new(tensors: Vec<(String, Output)>, every: Period) -> LoggingTensors {
        LoggingTensors { tensors, timer: Timer::new(every), step: 0 }
    }
}

impl Hook for LoggingTensors {
    fn before_run(&mut self, _: &HookContext<'_>) -> Result<RunArgs> {
        let is_due = self.timer.is_due(self.step + 1);
        let fetches = if is_due { self.tensors.iter().map(|t| t.1).collect() } else { Vec::new() };
        Ok(RunArgs { fetches, ..RunArgs::default() })
    }

    fn after_run(&mut self, _: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        self.step = run.global_step.unwrap_or(self.step + 1);
        if run.values.is_empty() {
            return Ok(());
        }
        let shown = |((name, _), value): (&(String, Output), &Tensor)| {
            format!("{name} = {}", value.summarize(MAX_ELEMENTS))
        };
        let values: Vec<String> = self.tensors.iter().zip(run.values).map(shown).collect();
        tracing::info!("step {}: {}", self.step, values.join(", "));
        self.timer.record(self.step);
        Ok(())
    }
}
