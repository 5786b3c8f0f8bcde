//! Adaptive spinning: whether a task that waits for an answer polls or sleeps. Waking a thread costs a
//! twentieth of a short step. If recent answers came soon, the task polls for twice that time before it
//! sleeps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// Longest average latency for which a task polls; beyond it, the thread's other work is worth more.
const SOON: Duration = Duration::from_micros(150);
/// The weight of one latency in the moving average is 1 / `AVERAGED`.
const PART: u64 = 8;

/// The moving average of the answers' latencies.
#[derive(Debug)]
pub(super) struct Vigil {
    nanos: AtomicU64,
    /// True if the runtime has one thread. With several threads, another one polls the sockets.
    is_only_thread: bool,
}

impl Vigil {
    pub(super) fn new(runtime: &Handle) -> Vigil {
        let long = SOON.as_nanos() as u64 * 2;
        Vigil { nanos: AtomicU64::new(long), is_only_thread: runtime.metrics().num_workers() == 1 }
    }

    /// Returns the time for which to poll before sleeping.
    fn limit(&self) -> Duration {
        match Duration::from_nanos(self.nanos.load(Ordering::Relaxed)) {
            of_late if self.is_only_thread && of_late <= SOON => of_late * 2,
            _ => Duration::ZERO,
        }
    }

    /// Adds a latency to the moving average.
    fn note(&self, took: Duration) {
        let took = took.min(SOON * 4).as_nanos() as u64;
        let before = self.nanos.load(Ordering::Relaxed);
        // A concurrent update may be lost, which does no harm.
        self.nanos.store((before * (PART - 1) + took) / PART, Ordering::Relaxed);
    }

    /// Waits for an answer.
    pub(super) async fn keep<T>(
        &self,
        mut answer: oneshot::Receiver<T>,
    ) -> Result<T, oneshot::error::RecvError> {
        let start = Instant::now();
        let limit = self.limit();
        let awake = async {
            while start.elapsed() < limit {
                yield_now().await;
            }
        };
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered,
            () = awake => answer.await,
        };
        self.note(start.elapsed());
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vigil(is_only_thread: bool) -> Vigil {
        Vigil { nanos: AtomicU64::new(SOON.as_nanos() as u64 * 2), is_only_thread }
    }

    #[test]
    fn who_was_answered_soon_of_late_stays_awake() {
        let (only, one_of_several) = (vigil(true), vigil(false));
        assert!(only.limit().is_zero(), "nothing is known yet");
        for _ in 0..20 {
            only.note(Duration::from_micros(50));
            one_of_several.note(Duration::from_micros(50));
        }
        let limit = only.limit();
        assert!(limit >= Duration::from_micros(100) && limit <= SOON * 2, "{limit:?}");
        assert!(one_of_several.limit().is_zero());
        // A single slow step does not end polling; several do.
        only.note(Duration::from_secs(10));
        assert!(!only.limit().is_zero());
        only.note(Duration::from_secs(10));
        only.note(Duration::from_secs(10));
        assert!(only.limit().is_zero());
    }

    #[tokio::test]
    async fn an_answer_comes_whenever_it_does() -> Result<(), oneshot::error::RecvError> {
        for pause in [0, 50, 20_000].map(Duration::from_micros) {
            let vigil = vigil(true);
            (0..30).for_each(|_| vigil.note(Duration::from_micros(20)));
            let (give, answer) = oneshot::channel();
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                give.send(7)
            });
            assert_eq!(vigil.keep(answer).await?, 7);
        }
        let (give, answer) = oneshot::channel::<()>();
        drop(give);
        assert!(vigil(true).keep(answer).await.is_err());
        Ok(())
    }
}
