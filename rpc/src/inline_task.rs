//! Futures that continue on the thread that completes their wait if that thread [wakes
//! inline](visit::wake_inline), which saves a thread switch, and otherwise on a thread of the runtime.

use parking_lot::Mutex;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

/// State of a task that waits for its waker.
const IDLE: u8 = 0;
/// State of a task that a thread is about to poll.
const WOKEN: u8 = 1;
/// State of a task that a thread polls.
const POLLED: u8 = 2;
/// State of a task that was woken while a thread polled it, so that the same thread must poll it again.
const POLLED_AGAIN: u8 = 3;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A future that runs on the threads that wake it.
pub struct InlineTask {
    work: Mutex<Option<Work>>,
    state: AtomicU8,
    runtime: Handle,
}

impl InlineTask {
    /// Makes a task of the future `work`, and polls it on this thread until its first wait. The task continues when it
    /// is woken.
    pub fn begin(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) -> Arc<InlineTask> {
        let task = InlineTask::new(runtime, work);
        task.poll();
        task
    }

    /// Makes a task like [`InlineTask::begin`], but polls the future on a thread of the runtime.
    pub fn begin_elsewhere(
        runtime: &Handle,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> Arc<InlineTask> {
        let task = InlineTask::new(runtime, work);
        task.poll_elsewhere();
        task
    }

    fn new(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) -> Arc<InlineTask> {
        let work = Mutex::new(Some(Box::pin(work) as Work));
        Arc::new(InlineTask { work, state: AtomicU8::new(WOKEN), runtime: runtime.clone() })
    }

    #[cfg(test)]
    fn has_ended(&self) -> bool {
        self.work.lock().is_none()
    }

    /// Drops the task's future, so that it does not continue.
    pub fn abort(&self) {
        let work = self.work.lock().take();
        drop(work);
    }

    fn poll_elsewhere(self: &Arc<Self>) {
        let own = self.clone();
        self.runtime.spawn(async move { own.poll() });
    }

    /// Polls the future until it waits or ends. Only the thread that changed the state to [`WOKEN`] may call
    /// this.
    fn poll(self: &Arc<Self>) {
        visit::answer(|| self.go_on());
    }

    fn go_on(self: &Arc<Self>) {
        let _runtime = self.runtime.enter();
        let waker = Waker::from(self.clone());
        loop {
            self.state.swap(POLLED, Ordering::AcqRel);
            {
                let mut work = self.work.lock();
                let Some(running) = work.as_mut() else { return };
                if running.as_mut().poll(&mut Context::from_waker(&waker)) == Poll::Ready(()) {
                    let ended = work.take();
                    drop(work);
                    drop(ended);
                    return;
                }
            }
            match self.state.compare_exchange(POLLED, IDLE, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(_) => self.state.store(WOKEN, Ordering::Release),
            }
        }
    }
}

impl Wake for InlineTask {
    fn wake(self: Arc<Self>) {
        // The state is written even if it does not change, so that the next poll sees all writes made before
        // this wake.
        let woken = |state| match state {
            IDLE => Some(WOKEN),
            POLLED => Some(POLLED_AGAIN),
            state => Some(state),
        };
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, woken);
        if before != Ok(IDLE) {
            return;
        }
        if visit::take_inline_wake() {
            return self.poll();
        }
        self.poll_elsewhere();
    }
}

impl std::fmt::Debug for InlineTask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "InlineTask(state {})", self.state.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use tokio::sync::oneshot;
    use visit::{defer, wake_inline};

    /// Returns a task that waits for a message, the sender of the message, and the receiver of the id of the
    /// thread on which the task continued.
    fn waiting() -> (oneshot::Sender<()>, Arc<InlineTask>, oneshot::Receiver<std::thread::ThreadId>) {
        let (give, word) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let task = InlineTask::begin(&Handle::current(), async move {
            if word.await.is_ok() {
                let _ = ended.send(std::thread::current().id());
            }
        });
        (give, task, end)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn an_inline_wake_continues_on_the_waking_thread() -> Result<(), Box<dyn std::error::Error>> {
        for is_inline in [true, false] {
            let (give, task, end) = waiting();
            assert!(!task.has_ended());
            let giver = std::thread::spawn(move || {
                let sent = if is_inline { wake_inline(|| give.send(())) } else { give.send(()) };
                (sent.is_ok(), std::thread::current().id())
            });
            let at = tokio::time::timeout(Duration::from_secs(60), end).await??;
            let (sent, giver) = giver.join().map_err(|_| "the giver panicked")?;
            assert!(sent && (at == giver) == is_inline);
        }
        Ok(())
    }

    #[tokio::test]
    async fn deferred_work_runs_when_the_task_has_paused_or_ended() {
        let (give, done) = std::sync::mpsc::channel();
        let task = InlineTask::begin(&Handle::current(), async move {
            let later = give.clone();
            defer(move || {
                let _ = later.send("deferred");
            });
            let _ = give.send("the answer");
        });
        assert!(task.has_ended());
        assert_eq!(done.iter().collect::<Vec<_>>(), ["the answer", "deferred"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn wakes_of_any_thread_are_not_lost() -> Result<(), Box<dyn std::error::Error>> {
        for round in 0..200 {
            let (give, words) = std::sync::mpsc::channel::<oneshot::Sender<()>>();
            let (ended, end) = oneshot::channel();
            let task = InlineTask::begin(&Handle::current(), async move {
                for _ in 0..20 {
                    let (sender, word) = oneshot::channel();
                    let asked = give.send(sender);
                    if asked.is_err() || word.await.is_err() {
                        return;
                    }
                }
                let _ = ended.send(());
            });
            let answers = std::thread::spawn(move || {
                for (i, sender) in words.iter().enumerate() {
                    let _ =
                        if (i + round) % 2 == 0 { wake_inline(|| sender.send(())) } else { sender.send(()) };
                }
            });
            tokio::time::timeout(Duration::from_secs(60), end).await??;
            assert!(answers.join().is_ok());
            drop(task);
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn an_aborted_task_is_dropped_at_once() {
        let (give, task, end) = waiting();
        task.abort();
        assert!(task.has_ended() && give.is_closed() && end.await.is_err());
    }
}
