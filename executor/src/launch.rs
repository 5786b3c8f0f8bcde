//! Operations that end later, on a thread that is not ours: receives, transfers, asynchronous kernels.

use super::flow::Flow;
use super::run::{Local, Run};
use crate::executor::LIGHT;
use device::{Error, Result};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Where the result of an operation and the thread that started it meet.
enum Landing<T> {
    Starting,
    /// The result came before the start returned.
    Arrived(Result<T>),
    /// The start returned first: the result is to be passed on.
    Waiting(Box<dyn FnOnce(Result<T>) + Send>),
    Done,
}

impl<F: Flow> Run<F> {
    /// Starts an operation of node `id` and goes on with its result: at once if it is there when `start`
    /// returns, else when it comes: on a pool thread, but for what little goes on at once on a thread that brings it and
    /// [was lent](Pool::lend_thread). A failure is the node's.
    pub(super) fn launch<T: Send + 'static>(
        self: &Arc<Run<F>>,
        id: u32,
        local: &mut Local<F>,
        start: impl FnOnce(Box<dyn FnOnce(Result<T>) + Send>),
        then: impl FnOnce(&Arc<Run<F>>, &mut Local<F>, T) + Send + 'static,
    ) {
        let landing = Arc::new(Mutex::new(Landing::Starting));
        let reply = Reply { landing: Some(landing.clone()) };
        start(Box::new(move |result| reply.deliver(result)));
        let mut state = landing.lock();
        let arrived = match std::mem::replace(&mut *state, Landing::Done) {
            Landing::Arrived(result) => Some(result),
            _ => None,
        };
        let go_on = move |run: &Arc<Run<F>>, local: &mut Local<F>, result: Result<T>| match result {
            Ok(value) => then(run, local, value),
            Err(error) => run.fail(id, error),
        };
        match arrived {
            Some(result) => {
                drop(state);
                match &mut local.left {
                    Some(left) if self.executor.plan.has_many_consumers(id) => {
                        left.push(Box::new(move |run, local| go_on(run, local, result)));
                    }
                    _ => go_on(self, local, result),
                }
            }
            None => {
                // This thread counts too, so the step cannot end in between.
                self.outstanding.fetch_add(1, Ordering::Relaxed);
                local.joined();
                let run = self.clone();
                *state = Landing::Waiting(Box::new(move |result| {
                    let pool = run.executor.pool.clone();
                    // Who brings a failure may be in the midst of ending the step.
                    let runs_here = result.is_ok() && visit::can_run_short();
                    let is_bounded = runs_here && !run.executor.receives_lightly();
                    let work = move || {
                        run.work(|run, local| {
                            local.current = id;
                            local.allowance = is_bounded.then_some(LIGHT);
                            go_on(run, local, result);
                        });
                    };
                    match runs_here {
                        true => pool.run_short(work),
                        false => pool.spawn(work),
                    }
                }));
            }
        }
    }
}

/// The right to answer once; dropped without an answer, it answers that there will be none.
struct Reply<T> {
    landing: Option<Arc<Mutex<Landing<T>>>>,
}

impl<T> Reply<T> {
    fn deliver(mut self, result: Result<T>) {
        if let Some(landing) = self.landing.take() {
            land(&landing, result);
        }
    }
}

impl<T> Drop for Reply<T> {
    fn drop(&mut self) {
        if let Some(landing) = self.landing.take() {
            land(&landing, Err(Error::internal("the operation was dropped before it ended")));
        }
    }
}

fn land<T>(landing: &Mutex<Landing<T>>, result: Result<T>) {
    let mut state = landing.lock();
    match std::mem::replace(&mut *state, Landing::Done) {
        Landing::Starting => *state = Landing::Arrived(result),
        Landing::Waiting(pass_on) => {
            drop(state);
            pass_on(result);
        }
        Landing::Arrived(_) | Landing::Done => {}
    }
}
