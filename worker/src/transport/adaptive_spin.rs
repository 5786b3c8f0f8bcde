//! Adaptive spinning: whether an asynchronous task that waits for an answer polls or sleeps. Waking a thread
//! costs a twentieth of a short step. If the average latency of recent answers is short, the task polls for
//! twice that latency before it sleeps.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// Longest average latency of answers at which a waiting task polls; polling for longer answers would cost
/// the thread more than a wake.
const MAX_LATENCY: Duration = Duration::from_micros(150);
/// The weight of one latency in the moving average is 1 / `AVERAGED`.
const AVERAGED: u64 = 8;

/// The moving average of the answers' latencies.
#[derive(Debug)]
pub(super) struct AdaptiveSpin {
    average_nanos: AtomicU64,
    /// True if the runtime has one thread, which polls the sockets while it spins. In a runtime with several
    /// threads, another thread polls them, and no task spins.
    is_only_thread: bool,
}

impl AdaptiveSpin {
    pub(super) fn new(runtime: &Handle) -> AdaptiveSpin {
        let long = MAX_LATENCY.as_nanos() as u64 * 2;
        AdaptiveSpin {
            average_nanos: AtomicU64::new(long),
            is_only_thread: runtime.metrics().num_workers() == 1,
        }
    }

    /// Returns the time for which a task polls for an answer before it sleeps.
    fn spin_limit(&self) -> Duration {
        match Duration::from_nanos(self.average_nanos.load(Ordering::Relaxed)) {
            average if self.is_only_thread && average <= MAX_LATENCY => average * 2,
            _ => Duration::ZERO,
        }
    }

    /// Adds the latency of one answer to the moving average.
    fn record(&self, took: Duration) {
        let took = took.min(MAX_LATENCY * 4).as_nanos() as u64;
        let before = self.average_nanos.load(Ordering::Relaxed);
        // A concurrent update may be lost, which does no harm.
        self.average_nanos.store((before * (AVERAGED - 1) + took) / AVERAGED, Ordering::Relaxed);
    }

    /// Waits for an answer: polls for [`AdaptiveSpin::spin_limit`], and then sleeps. Records the answer's
    /// latency.
    pub(super) async fn wait<T>(
        &self,
        mut answer: oneshot::Receiver<T>,
    ) -> Result<T, oneshot::error::RecvError> {
        let start = Instant::now();
        let limit = self.spin_limit();
        let spin = async {
            while start.elapsed() < limit {
                yield_now().await;
            }
        };
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered,
            () = spin => answer.await,
        };
        self.record(start.elapsed());
        answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spin(is_only_thread: bool) -> AdaptiveSpin {
        AdaptiveSpin { average_nanos: AtomicU64::new(MAX_LATENCY.as_nanos() as u64 * 2), is_only_thread }
    }

    #[test]
    fn fast_answers_enable_spinning() {
        let (only, one_of_several) = (spin(true), spin(false));
        assert!(only.spin_limit().is_zero(), "nothing is known yet");
        for _ in 0..20 {
            only.record(Duration::from_micros(50));
            one_of_several.record(Duration::from_micros(50));
        }
        let limit = only.spin_limit();
        assert!(limit >= Duration::from_micros(100) && limit <= MAX_LATENCY * 2, "{limit:?}");
        assert!(one_of_several.spin_limit().is_zero());
        // A single slow step does not end polling; several do.
        only.record(Duration::from_secs(10));
        assert!(!only.spin_limit().is_zero());
        only.record(Duration::from_secs(10));
        only.record(Duration::from_secs(10));
        assert!(only.spin_limit().is_zero());
    }

    #[tokio::test]
    async fn answers_arrive_during_and_after_spinning() -> Result<(), oneshot::error::RecvError> {
        for pause in [0, 50, 20_000].map(Duration::from_micros) {
            let spin = spin(true);
            (0..30).for_each(|_| spin.record(Duration::from_micros(20)));
            let (sender, answer) = oneshot::channel();
            tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                sender.send(7)
            });
            assert_eq!(spin.wait(answer).await?, 7);
        }
        let (sender, answer) = oneshot::channel::<()>();
        drop(sender);
        assert!(spin(true).wait(answer).await.is_err());
        Ok(())
    }
}
