//! The threads on which iterators are pulled. A pull may block, so executor threads do not run it. A thread is reused
//! for other work when its work has ended. Work is never queued behind running work, because the running work may be
//! waiting for it: beyond the maximum number of threads, starting work is an error.

use device::{Error, Result};
use graph::Code;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// Maximum number of dataset threads in the process.
const MAX_THREADS: usize = 4096;

/// Time for which an idle thread waits for work before the thread ends.
const IDLE_TIMEOUT: Duration = Duration::from_secs(5);

/// Stack size in bytes, enough for the deepest dataset.
const STACK_SIZE: usize = 64 << 20;

type Work = Box<dyn FnOnce() + Send>;

struct ThreadPool {
    state: Mutex<PoolState>,
    more: Condvar,
}

struct PoolState {
    /// Work for idle threads that have not yet picked it up; never more items than idle threads.
    waiting: VecDeque<Work>,
    idle: usize,
    total: usize,
}

static THREADS: ThreadPool = ThreadPool {
    state: Mutex::new(PoolState { waiting: VecDeque::new(), idle: 0, total: 0 }),
    more: Condvar::new(),
};

/// Starts `work`, which may block, at once on a dataset thread.
///
/// # Errors
/// `ResourceExhausted` if no thread is available.
pub(crate) fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    start(Box::new(work))
}

fn start(work: Work) -> Result<()> {
    let mut state = THREADS.state.lock();
    if state.idle > state.waiting.len() {
        state.waiting.push_back(work);
        THREADS.more.notify_one();
        return Ok(());
    }
    if state.total >= MAX_THREADS {
        return Err(exhausted_error(&format!("{MAX_THREADS} are in use")));
    }
    state.total += 1;
    drop(state);
    let thread = std::thread::Builder::new().name("dataset".to_owned()).stack_size(STACK_SIZE);
    match thread.spawn(move || run(work)) {
        Ok(_) => Ok(()),
        Err(error) => {
            THREADS.state.lock().total -= 1;
            Err(exhausted_error(&error.to_string()))
        }
    }
}

fn exhausted_error(why: &str) -> Error {
    Error::new(Code::ResourceExhausted, format!("no thread for an iterator: {why}"))
}

fn run(mut work: Work) {
    loop {
        // The panic hook has reported a panic. Dropping the work's captures wakes the threads that wait for its
        // result.
        let _ = catch_unwind(AssertUnwindSafe(work));
        let mut state = THREADS.state.lock();
        state.idle += 1;
        loop {
            if let Some(next) = state.waiting.pop_front() {
                state.idle -= 1;
                work = next;
                break;
            }
            if THREADS.more.wait_for(&mut state, IDLE_TIMEOUT).timed_out() && state.waiting.is_empty() {
                state.idle -= 1;
                state.total -= 1;
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn blocked_work_does_not_delay_other_work() -> Result<()> {
        let (senders, receivers): (Vec<_>, Vec<_>) = (0..100).map(|_| mpsc::channel::<usize>()).unzip();
        let mut next = senders.into_iter();
        let first = next.next();
        let (last, end) = mpsc::channel();
        let mut to: Vec<_> = next.collect();
        to.push(last);
        for (from, to) in receivers.into_iter().zip(to) {
            spawn(move || {
                if let Ok(n) = from.recv() {
                    let _ = to.send(n + 1);
                }
            })?;
        }
        first.map(|f| f.send(0));
        assert_eq!(end.recv_timeout(Duration::from_secs(30)), Ok(100));
        Ok(())
    }
}
