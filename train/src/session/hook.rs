//! What runs around each step of a training session.

use super::Coordinator;
use crate::error::Result;
use crate::sync::UpdateLock;
use client::Session;
use graph::{Graph, NodeId, Output, Tensor};
use proto::pb;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Something to do around the steps of a [`MonitoredSession`](super::MonitoredSession). An error ends training, unless
/// a new session mends it.
pub trait Hook: Send {
    /// A session has been opened, and all variables have values: at the start, and whenever a task has died.
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// What a step is to do besides.
    fn before_run(&mut self, context: &HookContext<'_>) -> Result<RunArgs> {
        let _ = context;
        Ok(RunArgs::default())
    }

    /// A step has run; the values are of what [`Hook::before_run`] asked for.
    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> Result<()> {
        let _ = (context, run);
        Ok(())
    }

    /// The session is of no more use: threads that use it are to end.
    fn before_recovery(&mut self, context: &HookContext<'_>) {
        let _ = context;
    }

    /// The job has come to its last step: what is to outlast it is made safe now, while replicas are there to do again
    /// what is lost. After an error that a new session mends training goes on from where it is then.
    fn settle(&mut self, context: &HookContext<'_>) -> Result<()> {
        let _ = context;
        Ok(())
    }

    /// Training has ended well.
    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        let _ = context;
        Ok(())
    }
}

/// What a hook may use.
#[derive(Debug)]
pub struct HookContext<'a> {
    pub session: &'a Arc<Session>,
    pub coordinator: &'a Coordinator,
    pub graph: &'a Graph,
    /// Whether this replica is the chief in this session.
    pub is_chief: bool,
    pub(super) global_step: Output,
    pub(super) lock: &'a UpdateLock,
}

impl HookContext<'_> {
    /// How many steps the job has done.
    pub fn global_step(&self) -> Result<i64> {
        Ok(self.session.run(&[], &[self.global_step], &[])?[0].item()?)
    }

    /// Runs while no update of this replica's chief is under way: it sees all variables of a synchronous job at one
    /// step.
    pub fn between_updates<R>(&self, act: impl FnOnce() -> R) -> R {
        let _held = self.lock.lock();
        act()
    }
}

/// What a hook adds to a step.
#[derive(Clone, Debug, Default)]
pub struct RunArgs {
    pub feeds: Vec<(Output, Tensor)>,
    pub fetches: Vec<Output>,
    pub targets: Vec<NodeId>,
    /// The first hook that gives options decides.
    pub options: Option<pb::RunOptions>,
}

/// What came of a step.
#[derive(Clone, Copy, Debug)]
pub struct RunValues<'a> {
    /// Of what the hook fetched, in order.
    pub values: &'a [Tensor],
    /// The global step after it, where the step trained.
    pub global_step: Option<i64>,
    pub metadata: Option<&'a pb::RunMetadata>,
}

/// How often something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// Whenever the global step is so many further.
    Steps(i64),
    Time(Duration),
}

/// When it was done last.
#[derive(Debug)]
pub(super) struct Timer {
    every: Every,
    last: Option<(i64, Instant)>,
}

impl Timer {
    pub(super) fn new(every: Every) -> Timer {
        Timer { every, last: None }
    }

    /// Whether it is time; always the first time.
    pub(super) fn is_due(&self, step: i64) -> bool {
        let Some((last_step, at)) = self.last else { return true };
        match self.every {
            Every::Steps(steps) => step < last_step || step - last_step >= steps.max(1),
            Every::Time(time) => at.elapsed() >= time,
        }
    }

    /// It is done now; gives the steps and the time since it was done before.
    pub(super) fn done(&mut self, step: i64) -> Option<(i64, Duration)> {
        self.last.replace((step, Instant::now())).map(|(last, at)| (step - last, at.elapsed()))
    }

    /// The step at which it was done last.
    pub(super) fn last_step(&self) -> Option<i64> {
        self.last.map(|(step, _)| step)
    }
}
