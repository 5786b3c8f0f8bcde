//! A future that no runtime's thread is woken for, where another is at hand: who ends what it waits for goes on with
//! it. Everybody else leaves it to the runtime.

use crate::afterwards::answering;
use parking_lot::Mutex;
use std::cell::Cell;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use tokio::runtime::Handle;

thread_local! {
    /// What is woken on this thread now may go on here.
    static IS_AT_HAND: Cell<bool> = const { Cell::new(false) };
}

/// Does something that ends what somebody waits for; if that is an errand, it goes on before this returns. The caller
/// holds no locks.
pub fn at_hand<T>(end: impl FnOnce() -> T) -> T {
    let before = IS_AT_HAND.replace(true);
    let result = end();
    IS_AT_HAND.set(before);
    result
}

const RESTS: u8 = 0;
/// Somebody is about to poll it.
const WOKEN: u8 = 1;
const POLLED: u8 = 2;
/// It was woken while it was polled.
const POLLED_AGAIN: u8 = 3;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

pub struct Errand {
    work: Mutex<Option<Work>>,
    state: AtomicU8,
    runtime: Handle,
}

impl Errand {
    /// Begins on this thread; what is left goes on whenever it is woken.
    pub fn begin(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) -> Arc<Errand> {
        let errand = Errand::new(runtime, work);
        errand.poll();
        errand
    }

    /// As [`Errand::begin`], on a thread of the runtime.
    pub fn begin_elsewhere(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) -> Arc<Errand> {
        let errand = Errand::new(runtime, work);
        errand.poll_elsewhere();
        errand
    }

    fn new(runtime: &Handle, work: impl Future<Output = ()> + Send + 'static) -> Arc<Errand> {
        let work = Mutex::new(Some(Box::pin(work) as Work));
        Arc::new(Errand { work, state: AtomicU8::new(WOKEN), runtime: runtime.clone() })
    }

    #[cfg(test)]
    fn has_ended(&self) -> bool {
        self.work.lock().is_none()
    }

    /// Drops what is left of it.
    pub fn abort(&self) {
        let work = self.work.lock().take();
        drop(work);
    }

    fn poll_elsewhere(self: &Arc<Self>) {
        let own = self.clone();
        self.runtime.spawn(async move { own.poll() });
    }

    /// Only who has changed the state to [`WOKEN`] may do so.
    fn poll(self: &Arc<Self>) {
        answering(|| self.go_on());
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
            match self.state.compare_exchange(POLLED, RESTS, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return,
                Err(_) => self.state.store(WOKEN, Ordering::Release),
            }
        }
    }
}

impl Wake for Errand {
    fn wake(self: Arc<Self>) {
        // It is written in any case, so that who polls next sees what has happened until now.
        let woken = |state| match state {
            RESTS => Some(WOKEN),
            POLLED => Some(POLLED_AGAIN),
            state => Some(state),
        };
        let before = self.state.fetch_update(Ordering::AcqRel, Ordering::Acquire, woken);
        if before != Ok(RESTS) {
            return;
        }
        if IS_AT_HAND.replace(false) {
            return self.poll();
        }
        self.poll_elsewhere();
    }
}

impl std::fmt::Debug for Errand {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Errand(state {})", self.state.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::afterwards::afterwards;
    use std::time::Duration;
    use tokio::sync::oneshot;

    /// An errand that waits for a word, and says on which thread it got it.
    fn waiting() -> (oneshot::Sender<()>, Arc<Errand>, oneshot::Receiver<std::thread::ThreadId>) {
        let (give, word) = oneshot::channel();
        let (ended, end) = oneshot::channel();
        let errand = Errand::begin(&Handle::current(), async move {
            if word.await.is_ok() {
                let _ = ended.send(std::thread::current().id());
            }
        });
        (give, errand, end)
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn who_ends_the_wait_goes_on_if_he_is_at_hand() -> Result<(), Box<dyn std::error::Error>> {
        for is_at_hand in [true, false] {
            let (give, errand, end) = waiting();
            assert!(!errand.has_ended());
            let giver = std::thread::spawn(move || {
                let sent = if is_at_hand { at_hand(|| give.send(())) } else { give.send(()) };
                (sent.is_ok(), std::thread::current().id())
            });
            let at = tokio::time::timeout(Duration::from_secs(60), end).await??;
            let (sent, giver) = giver.join().map_err(|_| "the giver panicked")?;
            assert!(sent && (at == giver) == is_at_hand);
        }
        Ok(())
    }

    #[tokio::test]
    async fn what_can_wait_is_done_once_the_errand_has_paused_or_ended() {
        let (give, done) = std::sync::mpsc::channel();
        let errand = Errand::begin(&Handle::current(), async move {
            let later = give.clone();
            afterwards(move || {
                let _ = later.send("afterwards");
            });
            let _ = give.send("the answer");
        });
        assert!(errand.has_ended());
        assert_eq!(done.iter().collect::<Vec<_>>(), ["the answer", "afterwards"]);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn wakes_are_not_lost_whoever_wakes() -> Result<(), Box<dyn std::error::Error>> {
        for round in 0..200 {
            let (give, words) = std::sync::mpsc::channel::<oneshot::Sender<()>>();
            let (ended, end) = oneshot::channel();
            let errand = Errand::begin(&Handle::current(), async move {
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
                    let _ = if (i + round) % 2 == 0 { at_hand(|| sender.send(())) } else { sender.send(()) };
                }
            });
            tokio::time::timeout(Duration::from_secs(60), end).await??;
            assert!(answers.join().is_ok());
            drop(errand);
        }
        Ok(())
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 1)]
    async fn an_aborted_errand_is_dropped_at_once() {
        let (give, errand, end) = waiting();
        errand.abort();
        assert!(errand.has_ended() && give.is_closed() && end.await.is_err());
    }
}
