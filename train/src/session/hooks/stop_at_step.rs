//! Stops when all replicas together have done so many steps.

use crate::error::Result;
use crate::session::{Hook, HookContext, RunValues};

/// Asks for the end of training once the global step is `last_step`.
#[derive(Clone, Copy, Debug)]
pub struct StopAtStep {
    pub last_step: i64,
}

impl Hook for StopAtStep {
    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        if run.global_step.is_some_and(|step| step >= self.last_step) {
            context.coordinator.request_stop();
        }
        Ok(())
    }
}
