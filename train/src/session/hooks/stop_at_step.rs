//! A hook that ends training at a global step.

use crate::error::Result;
use crate::session::{Hook, HookContext, RunValues};

/// Ends training at the global step `last_step`, once the chief has saved it: no replica leaves before, so
/// that a task that dies until then costs a few steps and not the job. A replica that starts after the last
/// step does nothing more.
#[derive(Clone, Copy, Debug)]
pub struct StopAtStep {
    /// The global step at which training ends.
    pub last_step: i64,
}

impl StopAtStep {
    /// Reports the last step to the coordinator if `step` has reached it.
    fn check(&self, context: &HookContext<'_>, step: i64) {
        if step >= self.last_step {
            context.coordinator.reach_last_step(self.last_step);
        }
    }
}

impl Hook for StopAtStep {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.check(context, context.global_step()?);
        Ok(())
    }

    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        run.global_step.into_iter().for_each(|step| self.check(context, step));
        Ok(())
    }
}
