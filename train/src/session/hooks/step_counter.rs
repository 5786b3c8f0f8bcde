//! A hook that measures steps per second.

use crate::error::Result;
use crate::events::Events;
use crate::session::hook::Timer;
use crate::session::{Hook, HookContext, Period, RunValues};

/// Logs the number of global steps per second of all replicas together, and writes it as the summary
/// `global_step/sec`.
#[derive(Debug)]
pub struct StepCounter {
    timer: Timer,
    events: Option<Events>,
}

impl StepCounter {
    /// Returns a hook that measures at the given period, logs the rate, and writes it to `events` unless that is
    /// `None`.
    pub fn new(every: Period, events: Option<Events>) -> StepCounter {
        StepCounter { timer: Timer::new(every), events }
    }
}

impl Hook for StepCounter {
    fn after_run(&mut self, _: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        let Some(step) = run.global_step.filter(|step| self.timer.is_due(*step)) else { return Ok(()) };
        let Some((steps, time)) = self.timer.record(step) else { return Ok(()) };
        let rate = steps as f64 / time.as_secs_f64().max(1e-9);
        tracing::info!("step {step}: {rate:.1} steps per second");
        match &self.events {
            Some(events) => events.scalar(step, "global_step/sec", rate as f32),
            None => Ok(()),
        }
    }
}
