//! Queue runners: threads that keep a queue full, one for each enqueue op.

use super::{Hook, HookContext};
use crate::error::{Error, Result};
use client::Session;
use graph::{Code, NodeId};
use proto::pb;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The ops of a queue that threads fill while steps run. The threads end when the session ends, when the queue is
/// closed, or when the queue or reader that they take elements from has ended (`OutOfRange`), after which they close
/// the filled queue.
#[derive(Clone, Debug)]
pub struct QueueRunner {
    /// The enqueue ops, each run repeatedly by one thread.
    pub enqueue: Vec<NodeId>,
    /// Closes the queue; the elements in it can still be dequeued.
    pub close: NodeId,
    /// Closes the queue, and cancels enqueue ops that wait for capacity.
    pub cancel: NodeId,
}

/// The hook that runs queue runners while a session lasts.
#[derive(Debug)]
pub(super) struct QueueRunnerHook {
    runners: Vec<QueueRunner>,
    stop: Arc<AtomicBool>,
}

impl QueueRunner {
    /// Returns a hook that runs these queue runners.
    pub fn hook(runners: Vec<QueueRunner>) -> Box<dyn Hook> {
        Box::new(QueueRunnerHook { runners, stop: Arc::default() })
    }

    /// Starts a thread for each enqueue op.
    fn start(&self, context: &HookContext<'_>, stop: &Arc<AtomicBool>) -> Result<()> {
        // The number of threads whose input has not ended.
        let running = Arc::new(AtomicUsize::new(self.enqueue.len()));
        for (i, &enqueue) in self.enqueue.iter().enumerate() {
            let (session, running, stop) = (context.session.clone(), running.clone(), stop.clone());
            let close = self.close;
            context.coordinator.spawn(&format!("queue-runner-{i}"), move |coordinator| {
                let has_ended =
                    fill(&session, enqueue, || coordinator.should_stop() || stop.load(Ordering::Acquire))?;
                // The thread whose input ends last closes the queue. If the session ends for another reason, the queue
                // stays open for the next session.
                if has_ended && running.fetch_sub(1, Ordering::AcqRel) == 1 {
                    close_queue(&session, close)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Enqueues until the input ends or the thread is to stop. Returns whether the input has ended. A full queue blocks an
/// enqueue for as long as the session lasts.
fn fill(session: &Session, enqueue: NodeId, should_stop: impl Fn() -> bool) -> Result<bool> {
    let without_limit = pb::RunOptions { timeout_in_ms: -1, ..Default::default() };
    while !should_stop() {
        match session.step().target(enqueue).options(without_limit.clone()).run() {
            Ok(_) => {}
            Err(error) if error.code() == Code::OutOfRange => return Ok(true),
            Err(error) if is_handled_by_loop(&error) => return Ok(false),
            Err(error) => return Err(Error::from(error)),
        }
    }
    Ok(false)
}

/// Runs `close`, which closes a queue; a closed session or a dead task is not an error.
fn close_queue(session: &Session, close: NodeId) -> Result<()> {
    match session.run(&[], &[], &[close]) {
        Err(error) if !is_handled_by_loop(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

/// Returns whether the error is one that the training loop handles: the queue or the session is closed, or a task has
/// died.
fn is_handled_by_loop(error: &client::Error) -> bool {
    let is_closed = matches!(error, client::Error::Closed);
    is_closed || matches!(error.code(), Code::Cancelled | Code::Aborted | Code::Unavailable)
}

impl Hook for QueueRunnerHook {
    fn after_create_session(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.stop = Arc::default();
        self.runners.iter().try_for_each(|runner| runner.start(context, &self.stop))
    }

    fn before_recovery(&mut self, _: &HookContext<'_>) {
        self.stop.store(true, Ordering::Release);
    }

    fn end(&mut self, context: &HookContext<'_>) -> Result<()> {
        self.stop.store(true, Ordering::Release);
        let cancels: Vec<NodeId> = self.runners.iter().map(|runner| runner.cancel).collect();
        if !cancels.is_empty() {
            context.session.run(&[], &[], &cancels)?;
        }
        Ok(())
    }
}
