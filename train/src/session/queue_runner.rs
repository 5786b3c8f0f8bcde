//! Threads that keep a queue full, one for each of its enqueue ops.

use super::{Hook, HookContext};
use crate::error::{Error, Result};
use client::Session;
use graph::{Code, NodeId};
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
        let running = Arc::new(AtomicUsize::new(self.enqueue.len()));
        for (i, &enqueue) in self.enqueue.iter().enumerate() {
            let (session, running, stop) = (context.session.clone(), running.clone(), stop.clone());
            let close = self.close;
            context.coordinator.spawn(&format!("queue-runner-{i}"), move |coordinator| {
                let ended =
                    fill(&session, enqueue, || coordinator.should_stop() || stop.load(Ordering::Acquire));
                // The last one to end closes the queue.
                if running.fetch_sub(1, Ordering::AcqRel) == 1 {
                    match session.run(&[], &[], &[close]) {
                        // The session's end has ended the queue's filling too.
                        Ok(_) | Err(client::Error::Closed) => {}
                        Err(error) if is_end(&error) => {}
                        Err(error) => return Err(error.into()),
                    }
                }
                ended
            })?;
        }
        Ok(())
    }
}

fn fill(session: &Session, enqueue: NodeId, should_stop: impl Fn() -> bool) -> Result<()> {
    while !should_stop() {
        match session.run(&[], &[], &[enqueue]) {
            Ok(_) => {}
            Err(client::Error::Closed) => break,
            Err(error) if is_end(&error) => break,
            Err(error) => return Err(Error::from(error)),
        }
    }
    Ok(())
}

/// The input has ended or the queue is closed; a task that has gone is the training loop's to notice.
fn is_end(error: &client::Error) -> bool {
    matches!(error.code(), Code::OutOfRange | Code::Cancelled | Code::Aborted | Code::Unavailable)
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
        context.session.run(&[], &[], &cancels)?;
        Ok(())
    }
}
