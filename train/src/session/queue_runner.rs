//! Threads that keep a queue full, one for each of its enqueue ops.

use super::{Hook, HookContext};
use crate::error::{Error, Result};
use client::Session;
use graph::{Code, NodeId};
use proto::pb;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// Fills a queue beside the steps. Its threads end when the session does, when a queue that they read from has ended
/// (`OutOfRange`: the queue is closed then), or when theirs is closed.
#[derive(Clone, Debug)]
pub struct QueueRunner {
    /// Run again and again, each by a thread.
    pub enqueue: Vec<NodeId>,
    /// Closes the queue, letting what is in it be taken.
    pub close: NodeId,
    /// Closes it, ending what waits for room.
    pub cancel: NodeId,
}

/// Runs queue runners for as long as a session lasts.
#[derive(Debug)]
pub(super) struct Runners {
    runners: Vec<QueueRunner>,
    stop: Arc<AtomicBool>,
}

impl QueueRunner {
    /// A hook that runs these.
    pub fn hook(runners: Vec<QueueRunner>) -> Box<dyn Hook> {
        Box::new(Runners { runners, stop: Arc::default() })
    }

    fn start(&self, context: &HookContext<'_>, stop: &Arc<AtomicBool>) -> Result<()> {
        // Threads whose input has not ended.
        let left = Arc::new(AtomicUsize::new(self.enqueue.len()));
        for (i, &enqueue) in self.enqueue.iter().enumerate() {
            let (session, left, stop) = (context.session.clone(), left.clone(), stop.clone());
            let close = self.close;
            context.coordinator.spawn(&format!("queue-runner-{i}"), move |coordinator| {
                let has_ended =
                    fill(&session, enqueue, || coordinator.should_stop() || stop.load(Ordering::Acquire))?;
                // The last one to come to its end closes the queue; it outlives a session that ends otherwise.
                if has_ended && left.fetch_sub(1, Ordering::AcqRel) == 1 {
                    close_queue(&session, close)?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }
}

/// Fills until the input has ended, which is true, or there is no more to be done. An enqueue waits for room for as long
/// as the session lasts.
fn fill(session: &Session, enqueue: NodeId, should_stop: impl Fn() -> bool) -> Result<bool> {
    let without_limit = pb::RunOptions { timeout_in_ms: -1, ..Default::default() };
    while !should_stop() {
        match session.step().target(enqueue).options(without_limit.clone()).run() {
            Ok(_) => {}
            Err(error) if error.code() == Code::OutOfRange => return Ok(true),
            Err(error) if is_others(&error) => return Ok(false),
            Err(error) => return Err(Error::from(error)),
        }
    }
    Ok(false)
}

fn close_queue(session: &Session, close: NodeId) -> Result<()> {
    match session.run(&[], &[], &[close]) {
        Err(error) if !is_others(&error) => Err(error.into()),
        _ => Ok(()),
    }
}

/// The queue or the session is closed, or a task has gone, which is the training loop's to notice.
fn is_others(error: &client::Error) -> bool {
    let is_closed = matches!(error, client::Error::Closed);
    is_closed || matches!(error.code(), Code::Cancelled | Code::Aborted | Code::Unavailable)
}

impl Hook for Runners {
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
