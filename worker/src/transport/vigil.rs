//! Whether who waits for an answer stays awake for it. To be woken costs a short step a twentieth of its time: where answers
//! came soon of late, the thread looks for the next one for as long, and sleeps only then.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

/// Answers that take longer are slept for: what a thread would compute meanwhile is worth more.
const SOON: Duration = Duration::from_micros(150);
/// One answer is such a part of those of late.
const PART: u64 = 8;

/// How long answers have taken of late.
#[derive(Debug)]
pub(super) struct Vigil {
    nanos: AtomicU64,
    /// Where there are several, another one looks for what comes.
    is_only_thread: bool,
}

impl Vigil {
    pub(super) fn new(runtime: &Handle) -> Vigil {
        let long = SOON.as_nanos() as u64 * 2;
        Vigil { nanos: AtomicU64::new(long), is_only_thread: runtime.metrics().num_workers() == 1 }
    }

    /// For how long it is worth to stay awake.
    fn limit(&self) -> Duration {
        match Duration::from_nanos(self.nanos.load(Ordering::Relaxed)) {
            of_late if self.is_only_thread && of_late <= SOON => of_late * 2,
            _ => Duration::ZERO,
        }
    }

    fn note(&self, took: Duration) {
        let took = took.min(SOON * 4).as_nanos() as u64;
        let before = self.nanos.load(Ordering::Relaxed);
        // Of two that are noted at once, one is as good as the other.
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
        // One long step may be by chance; a few are not.
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
