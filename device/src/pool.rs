//! The process's compute threads, shared by nodes that run in parallel and by the parallel parts of single kernels.
//!
//! Both kinds of work run on one rayon pool, under one rule: a thread that waits for the parts of its kernel runs parts
//! of kernels, but never starts other work meanwhile. Such work might need a lock that the kernel holds, would delay
//! the kernel by the work's whole length, and could nest without bound.

use crate::error::{Error, Result};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The stack size of each thread in bytes; large because a waiting kernel runs parts of other kernels on the same
/// stack.
const STACK: usize = 8 << 20;

/// A pool of compute threads with a queue of work.
pub struct Pool {
    rayon: rayon::ThreadPool,
    shared: Arc<Shared>,
    threads: usize,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<VecDeque<Work>>,
    /// The number of threads that run, or are about to run, queued work until the queue is empty. Each piece of work
    /// that is queued adds one, up to the number of threads in the pool. Changed with `waiting` locked.
    runners: AtomicUsize,
}

type Work = Box<dyn FnOnce() + Send>;

/// The number of threads, over all pools, that run or are about to run queued work.
static RUNNERS: AtomicUsize = AtomicUsize::new(0);

impl Pool {
    /// Creates a pool of `threads` threads, or of one thread if `threads` is 0, and starts the threads.
    ///
    /// # Errors
    /// `ResourceExhausted` if the threads cannot be started.
    pub fn new(threads: usize) -> Result<Arc<Pool>> {
        let threads = threads.max(1);
        let rayon = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .stack_size(STACK)
            .thread_name(|i| format!("compute-{i}"))
            .build()
            .map_err(|e| Error::new(graph::Code::ResourceExhausted, format!("no compute threads: {e}")))?;
        Ok(Arc::new(Pool { rayon, shared: Arc::default(), threads }))
    }

    /// Returns the number of compute threads in the pool.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs a function once on each thread of the pool, when that thread next becomes idle.
    pub fn on_each_thread(&self, something: fn()) {
        self.rayon.spawn_broadcast(move |_| something());
    }

    /// Returns whether any compute thread of any pool is at work. The answer is a hint, because it may be outdated at
    /// once.
    pub fn is_computing() -> bool {
        RUNNERS.load(Ordering::Relaxed) > 0
    }

    /// Returns whether the calling thread is a compute thread of any pool.
    pub fn is_compute_thread() -> bool {
        rayon::current_thread_index().is_some()
    }

    /// Returns whether a thread of the pool is idle. The answer is a hint, because it may be outdated at once.
    pub fn has_idle(&self) -> bool {
        self.shared.runners.load(Ordering::Relaxed) < self.threads
    }

    /// Returns whether the queue has work that no thread has started.
    pub fn has_waiting(&self) -> bool {
        !self.has_idle() && !self.shared.waiting.lock().is_empty()
    }

    /// Runs `work` on this thread, and lets the thread also run the [inline tasks](Pool::run_inline) that `work`
    /// starts, which saves waking another thread. A compute thread runs no inline tasks, because kernels may be running
    /// further down its stack.
    pub fn with_inline_tasks<T>(work: impl FnOnce() -> T) -> T {
        visit::with_inline_tasks(!Pool::is_compute_thread(), work)
    }

    /// Runs work that ends sooner than another thread would begin it: on this thread if it
    /// [accepts inline tasks](visit::run_inline), else like [`Pool::spawn`].
    pub fn run_inline(&self, work: impl FnOnce() + Send + 'static) {
        if let Err(work) = visit::run_inline(work) {
            self.spawn(work);
        }
    }

    /// Queues `work` for a thread of the pool; it never runs on the caller's stack. Work must not block.
    pub fn spawn(&self, work: impl FnOnce() + Send + 'static) {
        {
            let mut waiting = self.shared.waiting.lock();
            waiting.push_back(Box::new(work));
            if self.shared.runners.load(Ordering::Relaxed) == self.threads {
                return;
            }
            self.shared.runners.fetch_add(1, Ordering::Relaxed);
            RUNNERS.fetch_add(1, Ordering::Relaxed);
        }
        let shared = self.shared.clone();
        self.rayon.spawn(move || run(shared));
    }
}

/// Runs queued work until the queue is empty. If this thread already runs queued work further down its stack, a kernel
/// on the stack is waiting for its parts: `run` is then spawned again for another thread, because the kernel must not
/// be delayed.
fn run(shared: Arc<Shared>) {
    let queue = shared.clone();
    if visit::run_queue(move || run_waiting(&queue)).is_none() {
        std::thread::yield_now();
        rayon::spawn(move || run(shared));
    }
}

fn run_waiting(shared: &Shared) {
    loop {
        let work = {
            let mut waiting = shared.waiting.lock();
            match waiting.pop_front() {
                Some(work) => work,
                None => {
                    shared.runners.fetch_sub(1, Ordering::Relaxed);
                    RUNNERS.fetch_sub(1, Ordering::Relaxed);
                    return;
                }
            }
        };
        // The panic hook has reported a panic; the thread and the other work must continue.
        let _ = catch_unwind(AssertUnwindSafe(work));
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} threads)", self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::mpsc;
    use std::time::Duration;

    #[test]
    fn a_panic_in_queued_work_does_not_stop_other_work() -> Result<()> {
        let pool = Pool::new(2)?;
        let (sender, receiver) = mpsc::channel();
        for i in 0..1000usize {
            let sender = sender.clone();
            pool.spawn(move || {
                let _ = sender.send(i);
                if i == 7 {
                    std::panic::resume_unwind(Box::new("work that panics"));
                }
            });
        }
        drop(sender);
        let mut seen: Vec<usize> = receiver.iter().collect();
        seen.sort_unstable();
        assert_eq!(seen, (0..1000).collect::<Vec<_>>());
        Ok(())
    }

    #[test]
    fn thread_runs_inline_tasks_but_not_within_an_inline_task() -> Result<()> {
        let pool = Pool::new(1)?;
        let (sender, receiver) = mpsc::channel();
        let note = move |what: &'static str| {
            let _ = sender.send((what, Pool::is_compute_thread()));
        };
        let first = note.clone();
        pool.run_inline(move || first("not accepted"));
        let outer = receiver.recv_timeout(Duration::from_secs(60));
        assert_eq!(outer, Ok(("not accepted", true)));
        let thread = std::thread::spawn(move || {
            let (within, again, after) = (pool.clone(), note.clone(), note.clone());
            Pool::with_inline_tasks(|| {
                pool.run_inline(move || {
                    let nested = note.clone();
                    within.run_inline(move || nested("nested"));
                    note("outer");
                    std::panic::resume_unwind(Box::new("work that panics"));
                });
                pool.run_inline(move || again("after a panic"));
            });
            pool.run_inline(move || after("no longer accepted"));
        });
        assert!(thread.join().is_ok());
        let mut seen: Vec<_> = receiver.iter().collect();
        seen.sort_unstable();
        assert_eq!(
            seen,
            [("after a panic", false), ("nested", true), ("no longer accepted", true), ("outer", false)]
        );
        Ok(())
    }

    #[test]
    fn work_never_nests_in_work_that_waits_for_its_parts() -> Result<()> {
        thread_local!(static DEPTH: Cell<usize> = const { Cell::new(0) });
        let pool = Pool::new(3)?;
        let deepest = Arc::new(AtomicUsize::new(0));
        let (sender, receiver) = mpsc::channel();
        for _ in 0..200 {
            let (deepest, sender) = (deepest.clone(), sender.clone());
            pool.spawn(move || {
                DEPTH.set(DEPTH.get() + 1);
                deepest.fetch_max(DEPTH.get(), Ordering::Relaxed);
                // Two parts of unequal length, so that the thread of the shorter part waits for the longer part.
                rayon::join(|| spin(5), || spin(200));
                DEPTH.set(DEPTH.get() - 1);
                let _ = sender.send(());
            });
        }
        drop(sender);
        for _ in 0..200 {
            receiver.recv_timeout(Duration::from_secs(60)).map_err(|e| Error::internal(e.to_string()))?;
        }
        assert_eq!(deepest.load(Ordering::Relaxed), 1);
        Ok(())
    }

    fn spin(rounds: u64) -> u64 {
        (0..rounds * 1000).fold(0, |a, i| std::hint::black_box(a ^ i))
    }
}
