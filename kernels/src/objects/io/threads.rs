//! The process's threads for file operations. Their number is bounded, and a thread starts when there is work but no
//! idle thread.

use device::kernel::{AsyncContext, Kernel};
use device::value::Value;
use device::{Error, Result};
use graph::Code;
use parking_lot::{Condvar, Mutex};
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Maximum number of concurrent file operations: enough for a disk and for a network file system with high latency.
const MAX_THREADS: usize = 8;

type Work = Box<dyn FnOnce() + Send>;

struct ThreadPool {
    state: Mutex<PoolState>,
    arrived: Condvar,
}

struct PoolState {
    waiting: VecDeque<Work>,
    threads: usize,
    idle: usize,
}

static POOL: ThreadPool = ThreadPool {
    state: Mutex::new(PoolState { waiting: VecDeque::new(), threads: 0, idle: 0 }),
    arrived: Condvar::new(),
};

/// Runs `work`, which may wait for files, on a file thread.
///
/// # Errors
/// `ResourceExhausted` if there is no thread and none can be started.
pub fn spawn(work: impl FnOnce() + Send + 'static) -> Result<()> {
    enqueue(Box::new(work))
}

fn enqueue(work: Work) -> Result<()> {
    let mut state = POOL.state.lock();
    if state.idle <= state.waiting.len() && state.threads < MAX_THREADS {
        let started = std::thread::Builder::new().name(format!("file-{}", state.threads)).spawn(run);
        match started {
            Ok(_) => state.threads += 1,
            Err(e) if state.threads == 0 => {
                return Err(Error::new(Code::ResourceExhausted, format!("no thread for files: {e}")));
            }
            // No further thread can be started; the existing threads run the work.
            Err(_) => {}
        }
    }
    state.waiting.push_back(work);
    POOL.arrived.notify_one();
    Ok(())
}

fn run() {
    loop {
        let work = {
            let mut state = POOL.state.lock();
            loop {
                if let Some(work) = state.waiting.pop_front() {
                    break work;
                }
                state.idle += 1;
                POOL.arrived.wait(&mut state);
                state.idle -= 1;
            }
        };
        // The panic hook has reported a panic; the thread continues with other work.
        let _ = catch_unwind(AssertUnwindSafe(work));
    }
}

/// The computation of a kernel that may block.
type Compute = dyn Fn(&mut AsyncContext) -> Result<SmallVec<[Value; 4]>> + Send + Sync;

/// Returns a kernel whose computation runs on a file thread; if the step has been cancelled before, it does not run.
pub fn blocking(
    compute: impl Fn(&mut AsyncContext) -> Result<SmallVec<[Value; 4]>> + Send + Sync + 'static,
) -> Result<Kernel> {
    blocking_kernel(Arc::new(compute))
}

/// Returns a kernel that begins on a file thread, and ends when it calls [`AsyncContext::done`], perhaps elsewhere.
pub fn begin_on_file_thread(begin: impl Fn(AsyncContext) + Send + Sync + 'static) -> Result<Kernel> {
    let begin = Arc::new(begin);
    Kernel::asynchronous(move |ctx| {
        let begin = begin.clone();
        // If no thread can be started, or the work panics, dropping the context fails the node.
        let _ = spawn(move || begin(ctx));
    })
}

fn blocking_kernel(compute: Arc<Compute>) -> Result<Kernel> {
    Kernel::asynchronous(move |mut ctx| {
        let compute = compute.clone();
        let work = move || {
            let result = ctx.step.cancellation.check().and_then(|()| {
                catch_unwind(AssertUnwindSafe(|| compute(&mut ctx)))
                    .unwrap_or_else(|payload| Err(Error::panicked(&ctx.node, payload.as_ref())))
            });
            ctx.done(result);
        };
        // If no thread can be started, dropping the context fails the node.
        let _ = spawn(work);
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn excess_work_waits_for_a_thread_and_a_panic_affects_no_other_work() -> Result<()> {
        let (sender, receiver) = mpsc::channel();
        for i in 0..10 * MAX_THREADS {
            let sender = sender.clone();
            spawn(move || {
                let _ = sender.send(i);
                if i == 3 {
                    std::panic::resume_unwind(Box::new("work that panics"));
                }
            })?;
        }
        let mut finished = Vec::new();
        for _ in 0..10 * MAX_THREADS {
            finished.push(
                receiver.recv_timeout(Duration::from_secs(60)).map_err(|e| Error::internal(e.to_string()))?,
            );
        }
        finished.sort_unstable();
        assert_eq!(finished, (0..10 * MAX_THREADS).collect::<Vec<_>>());
        assert!(POOL.state.lock().threads <= MAX_THREADS);
        Ok(())
    }
}
