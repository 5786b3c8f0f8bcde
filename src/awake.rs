//! Keeps a core from halting while requests come thick and fast: to wake a halted one takes about as long as a small
//! step, above all in a virtual machine.

use executor::priority::run_when_idle;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Rounds of a spin between looks at the clock: some microseconds.
const ROUNDS: usize = 64;
const STACK: usize = 64 << 10;

/// A thread that spins for a while after a request. The scheduler gives it only what nobody else wants: it moves to
/// whichever core has nothing to do, which counts as idle all the same, and is there at once for what wakes up.
#[derive(Debug)]
pub(crate) struct Awake {
    state: Arc<State>,
    thread: Thread,
}

/// Times are nanoseconds since `start`.
#[derive(Debug)]
struct State {
    start: Instant,
    window: u64,
    /// When a thread last went to sleep.
    rested: AtomicU64,
    until: AtomicU64,
}

impl Awake {
    /// A core is kept awake for `window` after a request, if the last one was no longer ago than that.
    pub(crate) fn for_up_to(window: Duration) -> io::Result<Awake> {
        let state = Arc::new(State::new(window));
        let own = state.clone();
        let thread = std::thread::Builder::new().name("anabranch-awake".into()).stack_size(STACK);
        let thread = thread.spawn(move || own.spin())?.thread().clone();
        Ok(Awake { state, thread })
    }

    /// The calling thread goes to sleep.
    pub(crate) fn rests(&self) {
        if self.state.rests_at(self.state.now()) {
            self.thread.unpark();
        }
    }
}

impl State {
    fn new(window: Duration) -> State {
        State {
            start: Instant::now(),
            window: window.as_nanos().try_into().unwrap_or(u64::MAX),
            rested: AtomicU64::new(0),
            until: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    /// A thread goes to sleep: whether a core is to be kept awake for it.
    fn rests_at(&self, now: u64) -> bool {
        let is_frequent = now.saturating_sub(self.rested.swap(now, Ordering::Relaxed)) <= self.window;
        if is_frequent {
            self.until.store(now.saturating_add(self.window), Ordering::SeqCst);
        }
        is_frequent
    }

    fn is_wanted_at(&self, now: u64) -> bool {
        now < self.until.load(Ordering::SeqCst)
    }

    fn spin(&self) {
        if let Err(error) = run_when_idle() {
            // With a share of its own it would take time from others.
            return tracing::info!(%error, "no core is kept awake: the system does not let a thread be idle");
        }
        loop {
            while self.is_wanted_at(self.now()) {
                (0..ROUNDS).for_each(|_| std::hint::spin_loop());
            }
            std::thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_core_is_kept_awake_for_a_window_after_frequent_requests() {
        let state = State::new(Duration::from_nanos(100));
        assert!(!state.rests_at(1_000), "the first comes after a long while");
        assert!(!state.is_wanted_at(1_000));
        assert!(state.rests_at(1_100));
        assert!(state.is_wanted_at(1_199));
        assert!(!state.is_wanted_at(1_200));
        assert!(!state.rests_at(1_201), "the next comes too late");
        assert!(!state.is_wanted_at(1_201));
        assert!(state.rests_at(1_202));
    }
}
