//! Hooks, which run around the steps of a training session.

use super::Coordinator;
use crate::all_reduce::Membership;
use crate::error::Result;
use crate::sync::UpdateLock;
use client::Session;
use graph::{Graph, NodeId, Output, Tensor};
use proto::pb;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A hook around the steps of a [`MonitoredSession`](super::MonitoredSession). An error of a hook ends
/// training, unless a new session fixes it.
pub trait Hook: Send {
    /// Runs when a session has been opened and all variables have values: at the start, and after each
    /// recovery.
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// Runs before [`Hook::after_create_session`] in an all-reduce job, with the workers that train together from now
    /// on. A program that divides its data between workers must divide it again.
    fn on_membership(&mut self, context: &HookContext<'_>, membership: &Membership) -> Result<()> {
        let _ = (context, membership);
        Ok(())
    }

    /// Returns the feeds, fetches, targets and options to add to the next step.
    fn before_run(&mut self, context: &HookContext<'_>) -> Result<RunArgs> {
        let _ = context;
        Ok(RunArgs::default())
    }

    /// Runs after a step, with the values of the fetches that [`Hook::before_run`] added.
    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        let _ = (context, run);
        Ok(())
    }

    /// Runs before the session is replaced by a new one or dropped; the hook must end its threads.
    fn before_recovery(&mut self, context: &HookContext<'_>) {
        let _ = context;
    }

    /// Runs when the job has reached its last step: the hook saves its lasting results, while replicas can still repeat
    /// steps if a task dies. After an error that a new session fixes, training continues from the restored step.
    fn after_last_step(&mut self, context: &HookContext<'_>) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// Runs when training has ended without a failure.
    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        let _ = context;
        Ok(())
    }
}

/// The state of the training session in which a hook runs.
#[derive(Debug)]
pub struct HookContext<'a> {
    /// The current session.
    pub session: &'a Arc<Session>,
    /// The coordinator of the training threads.
    pub coordinator: &'a Coordinator,
    /// The graph of the session.
    pub graph: &'a Graph,
    /// True if this replica is the chief in this session.
    pub is_chief: bool,
    pub(super) global_step: Output,
    /// True if each replica of the job has all variables.
    pub(super) replicates_variables: bool,
    pub(super) lock: &'a UpdateLock,
}

impl HookContext<'_> {
    /// Reads the global step: the number of steps that all replicas of the job have done together.
    pub fn global_step(&self) -> Result<i64> {
        Ok(self.session.run(&[], &[self.global_step], &[])?[0].item()?)
    }

    /// Returns whether hooks of this replica save variables: false for a replica other than the chief that has copies of
    /// the chief's variables.
    pub fn saves_variables(&self) -> bool {
        self.is_chief || !self.replicates_variables
    }

    /// Runs `act` while the chief's thread in this process makes no update, so that on the chief `act` reads all
    /// variables of a synchronous job at one global step.
    pub fn between_updates<R>(&self, act: impl FnOnce() -> R) -> R {
        let _guard = self.lock.lock();
        act()
    }
}

/// The inputs and outputs that a hook adds to a step.
#[derive(Clone, Debug, Default)]
pub struct RunArgs {
    pub feeds: Vec<(Output, Tensor)>,
    pub fetches: Vec<Output>,
    pub targets: Vec<NodeId>,
    /// The options of the step; if several hooks return options, those of the first hook are used.
    pub options: Option<pb::RunOptions>,
}

/// The results of a step that are passed to a hook.
#[derive(Clone, Copy, Debug)]
pub struct RunValues<'a> {
    /// The values of the fetches in the hook's [`RunArgs`], in their order.
    pub values: &'a [Tensor],
    /// The global step after the step, if the step ran [`Training::train`](crate::Training::train).
    pub global_step: Option<i64>,
    pub metadata: Option<&'a pb::RunMetadata>,
}

/// The period of an action that a hook repeats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// A number of global steps.
    Steps(i64),
    /// A duration.
    Time(Duration),
}

/// The timer that decides when a hook repeats its action.
#[derive(Debug)]
pub(super) struct Timer {
    every: Period,
    last: Option<(i64, Instant)>,
}

impl Timer {
    /// Returns a timer that is due at once.
    pub(super) fn new(every: Period) -> Timer {
        Timer { every, last: None }
    }

    /// Returns whether the action is due at `step`; the first action is always due.
    pub(super) fn is_due(&self, step: i64) -> bool {
        let Some((last_step, at)) = self.last else { return true };
        match self.every {
            Period::Steps(steps) => step < last_step || step - last_step >= steps.max(1),
            Period::Time(time) => at.elapsed() >= time,
        }
    }

    /// Records the action at `step`. Returns the number of steps and the time since the previous action, if there was
    /// one.
    pub(super) fn record(&mut self, step: i64) -> Option<(i64, Duration)> {
        self.last.replace((step, Instant::now())).map(|(last, at)| (step - last, at.elapsed()))
    }

    /// Returns the step of the last action.
    pub(super) fn last_step(&self) -> Option<i64> {
        self.last.map(|(step, _)| step)
    }
}
