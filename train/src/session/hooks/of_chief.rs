//! A hook of whichever replica is the chief.

use crate::error::Result;
use crate::session::{Hook, HookContext, RunArgs, RunValues};
use std::fmt;

/// Runs a hook where the replica is the chief, and only while it is: every replica of a job with elections is given
/// the chief's hooks in one of these. To the hook, a replica that becomes the chief is one that goes on in a new
/// session.
pub struct OfChief {
    hook: Box<dyn Hook>,
    is_on: bool,
}

impl OfChief {
    pub fn new(hook: impl Hook + 'static) -> OfChief {
        OfChief { hook: Box::new(hook), is_on: false }
    }
}

impl Hook for OfChief {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.is_on = context.is_chief;
        if self.is_on { self.hook.after_create_session(context) } else { Ok(()) }
    }

    fn before_run(&mut self, context: &HookContext<'_>) -> Result<RunArgs> {
        if self.is_on { self.hook.before_run(context) } else { Ok(RunArgs::default()) }
    }

    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        if self.is_on { self.hook.after_run(context, run) } else { Ok(()) }
    }

    fn before_recovery(&mut self, context: &HookContext<'_>) {
        if std::mem::take(&mut self.is_on) {
            self.hook.before_recovery(context);
        }
    }

    fn settle(&mut self, context: &HookContext<'_>) -> Result<()> {
        if self.is_on { self.hook.settle(context) } else { Ok(()) }
    }

    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        if self.is_on { self.hook.end(context) } else { Ok(()) }
    }
}

impl fmt::Debug for OfChief {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OfChief(on: {})", self.is_on)
    }
}
