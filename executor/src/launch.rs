//! Operations that end later, on threads outside the run: receives, transfers, asynchronous kernels.

use super::action::Action;
use super::flow::Flow;
use super::run::{Run, ThreadState};
use crate::executor::LIGHT_NANOS;
use device::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The state of an operation that is shared by the thread that starts it and the thread that completes it.
enum Operation<T> {
    /// `start` has not returned, and there is no result.
    Starting,
    /// The result was available before `start` returned.
    Completed(Result<T>),
    /// `start` has returned without a result; the thread that completes the operation passes the result to this
    /// callback.
    Detached(Box<dyn FnOnce(Result<T>) + Send>),
    /// The callback has received the result.
    Delivered,
}

impl<F: Flow> Run<F> {
    /// Starts an operation of node `id` and calls `then` with its result: at once if the result is available when
    /// `start` returns, else as soon as it becomes available. In the latter case, `then` runs on a pool thread, or, if
    /// the work that follows is short, as an inline task of a completing thread that [accepts inline
    /// tasks](Pool::with_inline_tasks). An error fails the node.
    pub(super) fn launch<T: Send + 'static>(
        self: &Arc<Run<F>>,
        id: u32,
        local: &mut ThreadState<F>,
        start: impl FnOnce(Box<dyn FnOnce(Result<T>) + Send>),
        then: impl FnOnce(&Arc<Run<F>>, &mut ThreadState<F>, T) + Send + 'static,
    ) {
        let operation = Arc::new(Mutex::new(Operation::Starting));
        let reply = Reply { operation: Some(operation.clone()) };
        start(Box::new(move |result| reply.deliver(result)));
        let mut state = operation.lock();
        let completed = match std::mem::replace(&mut *state, Operation::Delivered) {
            Operation::Completed(result) => Some(result),
            _ => None,
        };
        let resume = move |run: &Arc<Run<F>>, local: &mut ThreadState<F>, result: Result<T>| match result {
            Ok(value) => then(run, local, value),
            Err(error) => run.fail(id, error),
        };
        match completed {
            Some(result) => {
                drop(state);
                match &mut local.continuations {
                    Some(continuations) if self.executor.plan.has_many_consumers(id) => {
                        continuations.push(Box::new(move |run, local| resume(run, local, result)));
                    }
                    _ => resume(self, local, result),
                }
            }
            None => {
                // `outstanding` cannot reach zero before the addition, because it counts this thread.
                self.outstanding.fetch_add(1, Ordering::Relaxed);
                local.set_shared();
                let run = self.clone();
                self.begin_wait(id);
                *state = Operation::Detached(Box::new(move |result| {
                    run.end_wait(id);
                    let pool = run.executor.pool.clone();
                    // A failure is not handled inline, because the thread that reports it may be about to end the step.
                    let runs_here = result.is_ok() && visit::can_run_inline();
                    let is_bounded = runs_here && !run.executor.has_light_receives();
                    let work = move || {
                        run.work(|run, local| {
                            local.current = id;
                            local.allowance = is_bounded.then_some(LIGHT_NANOS);
                            resume(run, local, result);
                        });
                    };
                    match runs_here {
                        true => pool.run_inline(work),
                        false => pool.spawn(work),
                    }
                }));
            }
        }
    }

    /// Records that the node's kernel, if it has one, ends later. Values that a Recv awaits are known to the rendezvous.
    fn begin_wait(&self, id: u32) {
        let planned = &self.executor.plan.nodes[id as usize];
        if let Action::Kernel(_) = planned.action {
            self.step.activity.begin(&planned.node);
        }
    }

    fn end_wait(&self, id: u32) {
        let planned = &self.executor.plan.nodes[id as usize];
        if let Action::Kernel(_) = planned.action {
            self.step.activity.end(&planned.node);
        }
    }
}

/// A handle that completes an operation once; dropped without a result, it completes the operation with an error.
struct Reply<T> {
    operation: Option<Arc<Mutex<Operation<T>>>>,
}

impl<T> Reply<T> {
    fn deliver(mut self, result: Result<T>) {
        if let Some(operation) = self.operation.take() {
            complete(&operation, result);
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(operation) = self.operation.take() {
            complete(&operation, Err(Error::internal("the operation was dropped before it ended")));
        }
    }
}

fn complete<T>(operation: &Mutex<Operation<T>>, result: Result<T>) {
    let mut state = operation.lock();
    match std::mem::replace(&mut *state, Operation::Delivered) {
        Operation::Starting => *state = Operation::Completed(result),
        Operation::Detached(pass_on) => {
            drop(state);
            pass_on(result);
        }
        Operation::Completed(_) | Operation::Delivered => {}
    }
}
