//! The adaptive spin of server processes, which keeps a core from halting while requests are frequent. Waking
//! a halted core takes about as long as a small step, especially in a virtual machine.

use device::Pool;
use device::priority::set_idle_priority;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Number of spin iterations, which together take some microseconds, between two reads of the clock.
const ROUNDS_PER_CHECK: usize = 64;
const STACK_BYTES: usize = 64 << 10;
/// Number of spin lengths to choose from: the longest one, half of it, a quarter of it, and so on.
const SPIN_LENGTHS: usize = 4;
/// Divisor of the decay of the balances of the spin lengths: at each pause of the RPC threads a balance loses a
/// sixteenth of its value, so that earlier pauses weigh less.
const DECAY: i64 = 16;
/// Upper limit of the configured spin length.
const MAX_SPIN: Duration = Duration::from_secs(1);

/// A thread that spins while the RPC threads are parked, for the spin length that has recently saved more time than it
/// cost. The thread has idle priority: the scheduler runs it only on an otherwise idle core, which still counts as idle
/// and can run a woken thread at once. However, the spinning core does not take over threads that wait to run on other
/// cores, and it may share a physical core with a computing thread. Therefore a request that finds the core awake
/// counts as a gain of half the longest spin.
#[derive(Debug)]
pub(crate) struct AdaptiveSpin {
    state: Arc<SpinState>,
    thread: Thread,
}

/// The shared state of an adaptive spin. Points in time are nanoseconds since `start`.
#[derive(Debug)]
struct SpinState {
    start: Instant,
    /// Maximum length of a spin, in nanoseconds.
    longest: u64,
    /// Time at which an RPC thread was last parked.
    parked_at: AtomicU64,
    /// For each spin length, its recent net benefit: the gain from the requests that would have arrived during the
    /// spin, minus the time spent spinning, in nanoseconds.
    balances: [AtomicI64; SPIN_LENGTHS],
    spin_until: AtomicU64,
}

impl AdaptiveSpin {
    /// Starts the spinning thread, which keeps a core awake for up to `longest` after an RPC thread is parked.
    pub(crate) fn start(longest: Duration) -> io::Result<AdaptiveSpin> {
        let state = Arc::new(SpinState::new(longest));
        let own = state.clone();
        let thread = std::thread::Builder::new().name("anabranch-awake".into()).stack_size(STACK_BYTES);
        let thread = thread.spawn(move || own.spin())?.thread().clone();
        Ok(AdaptiveSpin { state, thread })
    }

    /// Records that the calling RPC thread is about to be parked, and starts a spin if spinning is worthwhile.
    pub(crate) fn on_park(&self) {
        if self.state.park_at(self.state.now()) && !Pool::is_computing() {
            self.thread.unpark();
        }
    }

    /// Records that the calling RPC thread runs again, which ends the pause.
    pub(crate) fn on_unpark(&self) {
        self.state.unpark_at(self.state.now());
    }
}

impl SpinState {
    fn new(longest: Duration) -> SpinState {
        SpinState {
            start: Instant::now(),
            longest: longest.min(MAX_SPIN).as_nanos() as u64,
            parked_at: AtomicU64::new(0),
            balances: Default::default(),
            spin_until: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn spin_lengths(&self) -> impl Iterator<Item = (u64, &AtomicI64)> {
        self.balances.iter().enumerate().map(|(i, balance)| (self.longest >> i, balance))
    }

    /// Records that an RPC thread is parked, and chooses the length of the spin. Returns whether the spinning thread
    /// should spin.
    fn park_at(&self, now: u64) -> bool {
        self.parked_at.store(now, Ordering::Relaxed);
        let (mut best, mut length) = (0, 0);
        for (each, balance) in self.spin_lengths() {
            let balance = balance.load(Ordering::Relaxed);
            // The shortest of the spin lengths with equal benefit is chosen.
            if balance > 0 && balance >= best {
                (best, length) = (balance, each);
            }
        }
        self.spin_until.store(now.saturating_add(length), Ordering::SeqCst);
        length > 0
    }

    /// Records that an RPC thread runs again, and updates the balance of each spin length by the time since a thread
    /// was last parked.
    fn unpark_at(&self, now: u64) {
        let pause = now.saturating_sub(self.parked_at.load(Ordering::Relaxed));
        for (length, balance) in self.spin_lengths() {
            let (worth, took) = if pause <= length { (self.longest / 2, pause) } else { (0, length) };
            let change = worth as i64 - took as i64;
            let before = balance.load(Ordering::Relaxed);
            balance.store(before - before / DECAY + change, Ordering::Relaxed);
        }
    }

    fn should_spin_at(&self, now: u64) -> bool {
        now < self.spin_until.load(Ordering::SeqCst)
    }

    fn spin(&self) {
        if let Err(error) = set_idle_priority() {
            // Without idle priority, the spinning thread would take time from other threads, so it ends.
            return tracing::info!(%error, "the adaptive spin is disabled: the system does not support threads of idle priority");
        }
        loop {
            // The kernel counts a core that spins as busy and moves no waiting thread to it, so the spin ends while
            // the pool has computing threads.
            while self.should_spin_at(self.now()) && !Pool::is_computing() {
                (0..ROUNDS_PER_CHECK).for_each(|_| std::hint::spin_loop());
            }
            std::thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates pauses of the given lengths in nanoseconds, one after the other. Returns the length of the spin in the
    /// last pause.
    fn last_spin_after(state: &SpinState, pauses: impl IntoIterator<Item = u64>) -> u64 {
        let (mut now, mut awake) = (state.parked_at.load(Ordering::Relaxed), 0);
        for pause in pauses {
            let is_awake = state.park_at(now);
            awake = state.spin_until.load(Ordering::SeqCst) - now;
            assert_eq!(
                (state.should_spin_at(now + awake / 2), state.should_spin_at(now + awake)),
                (is_awake, false)
            );
            now += pause;
            state.unpark_at(now);
        }
        awake
    }

    fn cycle(pauses: &[u64]) -> impl Iterator<Item = u64> {
        pauses.iter().copied().cycle().take(100 * pauses.len())
    }

    #[test]
    fn the_spin_length_follows_the_pauses() {
        let state = SpinState::new(Duration::from_nanos(1000));
        assert_eq!(last_spin_after(&state, [160]), 0, "nothing is known of pauses yet");
        assert_eq!(last_spin_after(&state, [160]), 250);
        assert_eq!(last_spin_after(&state, cycle(&[100, 500])), 500, "a client's steps");
        let training = [100, 120, 80, 100, 150, 60, 4000, 3000];
        assert_eq!(last_spin_after(&state, cycle(&training)), 250, "bursts, and computing between them");
        assert_eq!(last_spin_after(&state, cycle(&[100, 500])), 500, "as before");
    }

    #[test]
    fn rare_requests_cause_no_spin() {
        let state = SpinState::new(Duration::from_nanos(1000));
        assert_eq!(last_spin_after(&state, cycle(&[300])), 500);
        assert_eq!(last_spin_after(&state, cycle(&[5000])), 0);
        assert_eq!(last_spin_after(&state, cycle(&[5000, 4000, 3000, 2000, 300])), 0);
    }
}
