//! A wrapper that makes a hook run only on the chief.

use crate::error::Result;
use crate::session::{Hook, HookContext, RunArgs, RunValues};
use std::fmt;

/// Runs a hook while this replica is the chief. In a job with elections, every replica gets the chief's hooks
/// in this wrapper. For the hook, becoming the chief looks like a recovery in a new session.
pub struct ChiefOnly {
    hook: Box<dyn Hook>,
    is_active: bool,
}

impl ChiefOnly {
    /// Wraps `hook`, so that it runs only in sessions in which this replica is the chief.
    pub fn new(hook: impl Hook + 'static) -> ChiefOnly {
        ChiefOnly { hook: Box::new(hook), is_active: false }
    }
}

impl Hook for ChiefOnly {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.is_active = context.is_chief;
        if self.is_active { self.hook.after_create_session(context) } else { Ok(()) }
    }

    fn before_run(&mut self, context: &HookContext<'_>) -> Result<RunArgs> {
        if self.is_active { self.hook.before_run(context) } else { Ok(RunArgs::default()) }
    }

    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        if self.is_active { self.hook.after_run(context, run) } else { Ok(()) }
    }

    fn before_recovery(&mut self, context: &HookContext<'_>) {
        if std::mem::take(&mut self.is_active) {
            self.hook.before_recovery(context);
        }
    }

    fn after_last_step(&mut self, context: &HookContext<'_>) -> Result<()> {
        if self.is_active { self.hook.after_last_step(context) } else { Ok(()) }
    }

    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        if self.is_active { self.hook.end(context) } else { Ok(()) }
    }
}

impl fmt::Debug for ChiefOnly {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChiefOnly(on: {})", self.is_active)
    }
}
