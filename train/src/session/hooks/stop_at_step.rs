//! Stops when all replicas together have done so many steps.

use crate::error::Result;
use crate::session::{Hook, HookContext, RunValues};

/// Ends training once the global step is `last_step` and that is safe: no replica leaves before the chief has saved what
/// it saves, so that a task that dies until then costs a step or two and not the job. A replica that comes when all is
/// done does nothing more.
#[derive(Clone, Copy, Debug)]
pub struct StopAtStep {
    pub last_step: i64,
}

impl StopAtStep {
    fn look(&self, context: &HookContext<'_>, step: i64) {
        if step >= self.last_step {
            context.coordinator.arrive(self.last_step);
        }
    }
}

impl Hook for StopAtStep {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.look(context, context.global_step()?);
        Ok(())
    }

    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        run.global_step.into_iter().for_each(|step| self.look(context, step));
        Ok(())
    }
}
