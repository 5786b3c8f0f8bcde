//! A hook that ends training at a global step.

use crate::error::Result;
use crate::session::{Hook, HookContext, RunValues};

/// Ends training at the global step `last_step`, once the chief has saved the results of that step. No replica leaves
/// before the save, so that replicas can repeat the lost steps if a task dies. A replica that starts after the last
/// step runs no step.
#[derive(Clone, Copy, Debug)]
pub struct StopAtStep {
    /// The global step at which training ends.
    pub last_step: i64,
}

impl StopAtStep {
    /// Reports to the coordinator that the last step is reached, if `step` is that step or a later one.
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
