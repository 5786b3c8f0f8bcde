//! The runtime of a process's groups. One thread at a time drives it: it polls the sockets and runs the tasks. A background
//! thread does so, except while a thread of the program polls for the end of a short call and drives the runtime itself:
//! the message that ends the call then wakes no other thread.

use parking_lot::Mutex;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::Notify;

/// Time without a polling thread after which the background thread drives the runtime again.
const RESUME_AFTER: Duration = Duration::from_micros(500);

/// Number of polls after which a thread yields the core between polls, because other members may run on it.
const BUSY_POLLS: usize = 20;

/// A runtime, and its background thread.
pub(super) struct Driver {
    shared: Arc<Shared>,
    background: Thread,
}

/// The state that the background thread shares with the threads of the program.
struct Shared {
    /// `None` after the end. Threads that drive the runtime hold a reference meanwhile.
    runtime: Mutex<Option<Arc<Runtime>>>,
    /// Number of threads of the program that poll.
    polling: AtomicUsize,
    /// Number of times that a thread of the program has begun to poll.
    polls: AtomicUsize,
    /// Number of calls that have not ended.
    calls: AtomicUsize,
    /// Set when the background thread is to drive the runtime without waiting for [`RESUME_AFTER`].
    must_resume: AtomicBool,
    /// True while the background thread drives the runtime.
    is_in_background: AtomicBool,
    /// Tells the background thread to let another thread drive the runtime, or that it has ended.
    release: Notify,
}

impl Driver {
    /// Creates a runtime and the thread that drives it.
    ///
    /// # Errors
    /// If the operating system cannot create a thread or a poll descriptor.
    pub(super) fn start() -> io::Result<Driver> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let shared = Arc::new(Shared {
            runtime: Mutex::new(Some(Arc::new(runtime))),
            polling: AtomicUsize::new(0),
            polls: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            must_resume: AtomicBool::new(false),
            is_in_background: AtomicBool::new(false),
            release: Notify::new(),
        });
        let own = shared.clone();
        let thread = thread::Builder::new().name("anabranch-group".into());
        match thread.spawn(move || own.drive_in_background()) {
            Ok(thread) => Ok(Driver { shared, background: thread.thread().clone() }),
            Err(error) => {
                let runtime = shared.runtime.lock().take();
                runtime.into_iter().for_each(drop_runtime);
                Err(error)
            }
        }
    }

    /// Returns a handle of the runtime, `None` after its end.
    pub(super) fn handle(&self) -> Option<Handle> {
        self.shared.runtime.lock().as_ref().map(|runtime| runtime.handle().clone())
    }

    /// Polls until `is_done` returns true or the time has come, and drives the runtime meanwhile. A thread of another
    /// runtime only polls.
    pub(super) fn poll(&self, is_done: impl Fn() -> bool, until: Instant) {
        let is_open = || !is_done() && Instant::now() < until;
        let is_free = Handle::try_current().is_err_and(|error| error.is_missing_context());
        if !is_free {
            self.resume();
            while is_open() {
                thread::yield_now();
            }
            return;
        }
        self.shared.drive_for(async {
            let mut polls = 0;
            while is_open() {
                polls += 1;
                if polls > BUSY_POLLS {
                    thread::yield_now();
                }
                tokio::task::yield_now().await;
            }
        });
        if self.shared.calls.load(Ordering::Relaxed) > 0 {
            self.resume();
        }
    }

    /// Counts a call that begins. The background thread drives the runtime for calls that nobody waits for.
    pub(super) fn begin_call(&self) {
        self.shared.calls.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call as ended.
    pub(super) fn end_call(&self) {
        self.shared.calls.fetch_sub(1, Ordering::Relaxed);
    }

    /// Makes the background thread drive the runtime as soon as no thread polls.
    pub(super) fn resume(&self) {
        if !self.shared.is_in_background.load(Ordering::SeqCst) {
            self.shared.must_resume.store(true, Ordering::SeqCst);
            self.background.unpark();
        }
    }

    /// Ends the runtime: its tasks are dropped.
    pub(super) fn end(&self) {
        let runtime = self.shared.runtime.lock().take();
        runtime.into_iter().for_each(drop_runtime);
        self.shared.release.notify_one();
        self.background.unpark();
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    /// Runs a future on this thread, which drives the runtime meanwhile unless another thread of the program does.
    fn drive_for(&self, future: impl Future<Output = ()>) {
        let Some(runtime) = self.runtime.lock().clone() else { return };
        self.polls.fetch_add(1, Ordering::Relaxed);
        let polling = Polling::begin(&self.polling);
        if self.is_in_background.load(Ordering::SeqCst) {
            self.release.notify_one();
        }
        runtime.block_on(future);
        drop(polling);
        drop_runtime(runtime);
    }

    /// Drives the runtime whenever no thread of the program does, until its end.
    fn drive_in_background(&self) {
        loop {
            let Some(runtime) = self.runtime.lock().clone() else { return };
            self.is_in_background.store(true, Ordering::SeqCst);
            if self.polling.load(Ordering::SeqCst) == 0 {
                runtime.block_on(self.release.notified());
            }
            self.is_in_background.store(false, Ordering::SeqCst);
            drop_runtime(runtime);
            self.wait_until_unused();
        }
    }

    /// Waits until no thread of the program polls, and none has begun to for a while or one asks the background thread to
    /// resume.
    fn wait_until_unused(&self) {
        loop {
            let polls = self.polls.load(Ordering::Relaxed);
            thread::park_timeout(RESUME_AFTER);
            let is_unused = self.polls.load(Ordering::Relaxed) == polls;
            if self.polling.load(Ordering::SeqCst) == 0
                && (self.must_resume.swap(false, Ordering::SeqCst) || is_unused)
            {
                return;
            }
        }
    }
}

/// A guard that counts a thread as polling.
struct Polling<'a>(&'a AtomicUsize);

impl Polling<'_> {
    fn begin(count: &AtomicUsize) -> Polling<'_> {
        count.fetch_add(1, Ordering::SeqCst);
        Polling(count)
    }
}

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Drops a reference to a runtime. The last one ends the runtime without waiting for blocking tasks.
fn drop_runtime(runtime: Arc<Runtime>) {
    if let Some(runtime) = Arc::into_inner(runtime) {
        runtime.shutdown_background();
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver").field("polling", &self.shared.polling).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Longest time that anything here may take.
    const LONG: Duration = Duration::from_secs(20);

    /// Spawns a task that sets a flag after a pause. Returns the flag.
    fn flag_after(driver: &Driver, pause: Duration) -> Result<Arc<AtomicBool>, &'static str> {
        let flag = Arc::new(AtomicBool::new(false));
        let set = flag.clone();
        driver.handle().ok_or("the runtime has ended")?.spawn(async move {
            tokio::time::sleep(pause).await;
            set.store(true, Ordering::SeqCst);
        });
        Ok(flag)
    }

    /// Waits for a flag without driving the runtime.
    fn is_set_in_background(flag: &AtomicBool) -> bool {
        let until = Instant::now() + LONG;
        while !flag.load(Ordering::SeqCst) && Instant::now() < until {
            thread::yield_now();
        }
        flag.load(Ordering::SeqCst)
    }

    #[test]
    fn tasks_run_in_the_background_before_and_after_a_thread_polls() -> Result<(), Box<dyn std::error::Error>>
    {
        let driver = Driver::start()?;
        for pause in [0, 100, 1000].map(Duration::from_micros) {
            assert!(is_set_in_background(&*flag_after(&driver, pause)?));
            let flag = flag_after(&driver, pause)?;
            let start = Instant::now();
            driver.poll(|| flag.load(Ordering::SeqCst), start + LONG);
            assert!(flag.load(Ordering::SeqCst) && start.elapsed() < LONG);
            driver.poll(|| false, Instant::now() + pause);
        }
        assert!(is_set_in_background(&*flag_after(&driver, Duration::ZERO)?));
        Ok(())
    }

    #[test]
    fn polling_thread_runs_the_tasks() -> Result<(), Box<dyn std::error::Error>> {
        let driver = Driver::start()?;
        let (own, until) = (thread::current().id(), Instant::now() + LONG);
        let is_own = Arc::new(AtomicBool::new(false));
        // The background thread lets go of the runtime some time after the first poll.
        driver.poll(
            || {
                let seen = is_own.clone();
                let report = async move { seen.store(thread::current().id() == own, Ordering::SeqCst) };
                if let Some(runtime) = driver.handle() {
                    drop(runtime.spawn(report));
                }
                is_own.load(Ordering::SeqCst)
            },
            until,
        );
        assert!(is_own.load(Ordering::SeqCst));
        Ok(())
    }

    #[test]
    fn several_threads_poll_at_once() -> Result<(), Box<dyn std::error::Error>> {
        let driver = Driver::start()?;
        for _ in 0..50 {
            let flags: Result<Vec<_>, _> =
                (0..4).map(|i| flag_after(&driver, Duration::from_micros(20 * i))).collect();
            let flags = flags?;
            thread::scope(|scope| {
                for flag in &flags {
                    scope.spawn(|| driver.poll(|| flag.load(Ordering::SeqCst), Instant::now() + LONG));
                }
            });
            assert!(flags.iter().all(|flag| flag.load(Ordering::SeqCst)));
        }
        Ok(())
    }

    #[tokio::test]
    async fn thread_of_another_runtime_polls_without_driving() -> Result<(), Box<dyn std::error::Error>> {
        let driver = Driver::start()?;
        let flag = flag_after(&driver, Duration::from_micros(100))?;
        driver.poll(|| flag.load(Ordering::SeqCst), Instant::now() + LONG);
        assert!(flag.load(Ordering::SeqCst));
        drop(driver);
        Ok(())
    }

    #[test]
    fn end_drops_the_tasks_also_while_a_thread_polls() -> Result<(), Box<dyn std::error::Error>> {
        let driver = Driver::start()?;
        let kept = Arc::new(());
        let held = kept.clone();
        driver.handle().ok_or("the runtime has ended")?.spawn(async move {
            tokio::time::sleep(LONG * 10).await;
            drop(held);
        });
        thread::scope(|scope| {
            scope.spawn(|| driver.poll(|| false, Instant::now() + Duration::from_millis(20)));
            driver.end();
        });
        let until = Instant::now() + LONG;
        while Arc::strong_count(&kept) > 1 && Instant::now() < until {
            thread::yield_now();
        }
        assert_eq!(Arc::strong_count(&kept), 1);
        assert!(driver.handle().is_none());
        driver.poll(|| false, Instant::now() + Duration::from_millis(1));
        Ok(())
    }
}
