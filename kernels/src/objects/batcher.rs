//! Batches of tasks of concurrent steps. A batch is run when it is full, or some time after its first task.

use super::dataset::threads;
use device::resource::Resource;
use device::{Error, Result};
use graph::Code;
use parking_lot::{Condvar, Mutex};
use rustc_hash::FxHashMap;
use std::any::Any;
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The limits of a batcher.
#[derive(Clone, Debug)]
pub(crate) struct BatchLimits {
    /// The number of batches that run at once.
    pub(crate) threads: usize,
    /// The largest number of rows of a batch.
    pub(crate) max_size: usize,
    /// The largest number of batches that wait to be run.
    pub(crate) max_waiting: usize,
    /// The time that a batch waits for further tasks.
    pub(crate) timeout: Duration,
    /// The numbers of rows to which batches are padded, ascending; empty if batches are not padded.
    pub(crate) allowed: Vec<usize>,
}

/// A part of a batch: the rows of one caller.
pub(crate) struct BatchTask<T> {
    pub(crate) rows: usize,
    pub(crate) work: T,
}

/// A function that runs the tasks of a batch, and calls its second argument when they have ended.
pub(crate) type RunBatch<T> = Arc<dyn Fn(Vec<BatchTask<T>>, Box<dyn FnOnce() + Send>) + Send + Sync>;

/// The tasks of a batch in the order of their arrival, and the function that runs them, which the first task has
/// brought.
struct PendingBatch {
    number: u64,
    rows: usize,
    tasks: Vec<BatchTask<Box<dyn Any + Send>>>,
    run: RunBatch<Box<dyn Any + Send>>,
}

#[derive(Default)]
struct BatcherState {
    /// The open batch of each queue, to which further tasks are added.
    open: FxHashMap<String, PendingBatch>,
    /// Batches that are complete and wait to be run.
    waiting: VecDeque<PendingBatch>,
    running: usize,
    next: u64,
}

/// A resource that joins the tasks of all nodes with one `shared_name` to batches.
pub(crate) struct Batcher {
    limits: BatchLimits,
    state: Mutex<BatcherState>,
    /// Notified when an open batch is closed.
    closed: Condvar,
}

impl Resource for Batcher {
    const KIND: &'static str = "Batcher";
}

impl fmt::Debug for Batcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Batcher").field("limits", &self.limits).finish()
    }
}

impl Batcher {
    pub(crate) fn new(limits: BatchLimits) -> Batcher {
        Batcher { limits, state: Mutex::default(), closed: Condvar::new() }
    }

    /// Adds a task to the open batch of a queue, or to a new batch. All tasks of a queue hold work of one type.
    ///
    /// # Errors
    /// `Unavailable` if too many batches wait, `ResourceExhausted` if no thread can be started.
    pub(crate) fn submit<T: Send + 'static>(
        self: &Arc<Batcher>,
        queue: &str,
        task: BatchTask<T>,
        run: RunBatch<T>,
    ) -> Result<()> {
        let rows = task.rows;
        let opened = {
            let mut state = self.state.lock();
            if state.open.get(queue).is_some_and(|open| open.rows + rows > self.limits.max_size) {
                self.close(&mut state, queue);
            }
            let is_new = !state.open.contains_key(queue);
            if is_new && state.waiting.len() >= self.limits.max_waiting {
                let message = format!(
                    "The batch scheduling queue to which this task was submitted is full; {} batches wait",
                    state.waiting.len()
                );
                return Err(Error::new(Code::Unavailable, message));
            }
            let number = state.next;
            state.next += u64::from(is_new);
            let open = state.open.entry(queue.to_owned()).or_insert_with(|| PendingBatch {
                number,
                rows: 0,
                tasks: Vec::new(),
                run: Arc::new(move |tasks, finished| {
                    let typed = tasks.into_iter().filter_map(|task| {
                        let work = task.work.downcast::<T>().ok()?;
                        Some(BatchTask { rows: task.rows, work: *work })
                    });
                    run(typed.collect(), finished);
                }),
            });
            open.rows += rows;
            open.tasks.push(BatchTask { rows, work: Box::new(task.work) });
            if open.rows >= self.limits.max_size {
                self.close(&mut state, queue);
            }
            is_new.then_some(number)
        };
        if let Some(number) = opened {
            self.close_later(queue, number);
        }
        self.run_waiting();
        Ok(())
    }

    /// Moves the open batch of a queue to the batches that wait to be run.
    fn close(&self, state: &mut BatcherState, queue: &str) {
        if let Some(batch) = state.open.remove(queue) {
            state.waiting.push_back(batch);
            self.closed.notify_all();
        }
    }

    /// Closes the open batch `number` of a queue after the timeout, unless it is closed before.
    fn close_later(self: &Arc<Batcher>, queue: &str, number: u64) {
        let (batcher, name) = (self.clone(), queue.to_owned());
        let deadline = Instant::now() + self.limits.timeout;
        let wait = move || {
            let is_open =
                |state: &BatcherState| state.open.get(&name).is_some_and(|open| open.number == number);
            let mut state = batcher.state.lock();
            while is_open(&state) {
                if batcher.closed.wait_until(&mut state, deadline).timed_out() {
                    break;
                }
            }
            if is_open(&state) {
                batcher.close(&mut state, &name);
            }
            drop(state);
            batcher.run_waiting();
        };
        if threads::spawn(wait).is_err() {
            // If no thread can be started to wait for the timeout, the batch is closed at once.
            let mut state = self.state.lock();
            self.close(&mut state, queue);
        }
    }

    /// Runs waiting batches, up to the number that may run at once.
    fn run_waiting(self: &Arc<Batcher>) {
        loop {
            let batch = {
                let mut state = self.state.lock();
                if state.running >= self.limits.threads {
                    return;
                }
                let Some(batch) = state.waiting.pop_front() else { return };
                state.running += 1;
                batch
            };
            let batcher = self.clone();
            let finished = move || {
                batcher.state.lock().running -= 1;
                batcher.run_waiting();
            };
            (batch.run)(batch.tasks, Box::new(finished));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    const DEADLINE: Duration = Duration::from_secs(30);

    fn batcher(max_size: usize, timeout: Duration) -> Arc<Batcher> {
        Arc::new(Batcher::new(BatchLimits {
            threads: 1,
            max_size,
            max_waiting: 2,
            timeout,
            allowed: Vec::new(),
        }))
    }

    fn task(work: u32) -> BatchTask<u32> {
        BatchTask { rows: 1, work }
    }

    #[test]
    fn a_full_batch_runs_at_once_and_a_part_of_one_after_the_timeout() -> Result<()> {
        let (sender, batches) = mpsc::channel();
        let run: RunBatch<u32> = Arc::new(move |tasks, finished| {
            let _ = sender.send(tasks.into_iter().map(|task| task.work).collect::<Vec<_>>());
            finished();
        });
        let full = batcher(3, Duration::from_secs(3600));
        for work in 0..6 {
            full.submit("", task(work), run.clone())?;
        }
        assert_eq!(batches.recv_timeout(DEADLINE), Ok(vec![0, 1, 2]));
        assert_eq!(batches.recv_timeout(DEADLINE), Ok(vec![3, 4, 5]));
        let part = batcher(3, Duration::from_millis(5));
        part.submit("", task(7), run)?;
        assert_eq!(batches.recv_timeout(DEADLINE), Ok(vec![7]));
        Ok(())
    }

    #[test]
    fn too_many_waiting_batches_are_refused() -> Result<()> {
        let unfinished = Arc::new(Mutex::new(Vec::new()));
        let kept = unfinished.clone();
        let run: RunBatch<u32> = Arc::new(move |_, finished| kept.lock().push(finished));
        let batcher = batcher(1, Duration::ZERO);
        for work in 0..3 {
            batcher.submit("", task(work), run.clone())?;
        }
        let refused = batcher.submit("", task(3), run.clone());
        assert_eq!(refused.map_err(|e| e.code()), Err(Code::Unavailable));
        let finished = unfinished.lock().pop();
        finished.into_iter().for_each(|finished| finished());
        batcher.submit("", task(4), run)
    }
}
