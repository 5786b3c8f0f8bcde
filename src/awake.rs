//! Keeps a core from halting while requests come thick and fast: to wake a halted one takes about as long as a small
//! step, above all in a virtual machine.

use executor::Pool;
use executor::priority::run_when_idle;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Rounds of a spin between looks at the clock: some microseconds.
const ROUNDS: usize = 64;
const STACK: usize = 64 << 10;
/// A spin lasts for the longest time, or for a half of it, and so on: so many lengths.
const LENGTHS: usize = 4;
/// What was of use counts for a sixteenth less with each pause that follows.
const FORGET: i64 = 16;
/// No spin lasts longer, whatever is asked for.
const MOST: Duration = Duration::from_secs(1);

/// A thread that spins while those that serve requests sleep, for as long as that has been worth it of late. The scheduler
/// gives it only what nobody else wants: it moves to whichever core has nothing to do, which counts as idle all the same, and
/// is there at once for what wakes up. But such a core looks for no work that waits elsewhere, and may be half of a core that
/// computes: so a request that finds it awake is worth half of the longest spin, and no more.
#[derive(Debug)]
pub(crate) struct Awake {
    state: Arc<State>,
    thread: Thread,
}

/// Times are nanoseconds since `start`.
#[derive(Debug)]
struct State {
    start: Instant,
    /// No spin lasts longer.
    longest: u64,
    /// When a thread last went to sleep.
    rested: AtomicU64,
    /// For each length, what it would have been worth of late, less the time it would have taken.
    balances: [AtomicI64; LENGTHS],
    until: AtomicU64,
}

impl Awake {
    /// A core is kept awake in pauses of up to `longest`.
    pub(crate) fn for_up_to(longest: Duration) -> io::Result<Awake> {
        let state = Arc::new(State::new(longest));
        let own = state.clone();
        let thread = std::thread::Builder::new().name("anabranch-awake".into()).stack_size(STACK);
        let thread = thread.spawn(move || own.spin())?.thread().clone();
        Ok(Awake { state, thread })
    }

    /// The calling thread goes to sleep.
    pub(crate) fn rests(&self) {
        if self.state.rests_at(self.state.now()) && !Pool::is_computing() {
            self.thread.unpark();
        }
    }

    /// The calling thread goes on.
    pub(crate) fn wakes(&self) {
        self.state.wakes_at(self.state.now());
    }
}

impl State {
    fn new(longest: Duration) -> State {
        State {
            start: Instant::now(),
            longest: longest.min(MOST).as_nanos() as u64,
            rested: AtomicU64::new(0),
            balances: Default::default(),
            until: AtomicU64::new(0),
        }
    }

    fn now(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }

    fn lengths(&self) -> impl Iterator<Item = (u64, &AtomicI64)> {
        self.balances.iter().enumerate().map(|(i, balance)| (self.longest >> i, balance))
    }

    /// A thread goes to sleep: whether a core is to be kept awake for it.
    fn rests_at(&self, now: u64) -> bool {
        self.rested.store(now, Ordering::Relaxed);
        let (mut best, mut length) = (0, 0);
        for (each, balance) in self.lengths() {
            let balance = balance.load(Ordering::Relaxed);
            // Of those that are worth as much, the shortest.
            if balance > 0 && balance >= best {
                (best, length) = (balance, each);
            }
        }
        self.until.store(now.saturating_add(length), Ordering::SeqCst);
        length > 0
    }

    /// A thread goes on.
    fn wakes_at(&self, now: u64) {
        let pause = now.saturating_sub(self.rested.load(Ordering::Relaxed));
        for (length, balance) in self.lengths() {
            let (worth, took) = if pause <= length { (self.longest / 2, pause) } else { (0, length) };
            let change = worth as i64 - took as i64;
            let before = balance.load(Ordering::Relaxed);
            balance.store(before - before / FORGET + change, Ordering::Relaxed);
        }
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
            // A core on which this thread runs looks for no other work: what computes here may want it.
            while self.is_wanted_at(self.now()) && !Pool::is_computing() {
                (0..ROUNDS).for_each(|_| std::hint::spin_loop());
            }
            std::thread::park();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pauses that follow each other: for how long a core is kept awake in the last.
    fn in_last_of(state: &State, pauses: impl IntoIterator<Item = u64>) -> u64 {
        let (mut now, mut awake) = (state.rested.load(Ordering::Relaxed), 0);
        for pause in pauses {
            let is_awake = state.rests_at(now);
            awake = state.until.load(Ordering::SeqCst) - now;
            assert_eq!(
                (state.is_wanted_at(now + awake / 2), state.is_wanted_at(now + awake)),
                (is_awake, false)
            );
            now += pause;
            state.wakes_at(now);
        }
        awake
    }

    fn cycle(pauses: &[u64]) -> impl Iterator<Item = u64> {
        pauses.iter().copied().cycle().take(100 * pauses.len())
    }

    #[test]
    fn a_core_is_kept_awake_for_as_long_as_that_is_worth_it() {
        let state = State::new(Duration::from_nanos(1000));
        assert_eq!(in_last_of(&state, [160]), 0, "nothing is known of pauses yet");
        assert_eq!(in_last_of(&state, [160]), 250);
        assert_eq!(in_last_of(&state, cycle(&[100, 500])), 500, "a client's steps");
        let training = [100, 120, 80, 100, 150, 60, 4000, 3000];
        assert_eq!(in_last_of(&state, cycle(&training)), 250, "bursts, and computing between them");
        assert_eq!(in_last_of(&state, cycle(&[100, 500])), 500, "as before");
    }

    #[test]
    fn nobody_stays_awake_for_requests_that_are_far_between() {
        let state = State::new(Duration::from_nanos(1000));
        assert_eq!(in_last_of(&state, cycle(&[300])), 500);
        assert_eq!(in_last_of(&state, cycle(&[5000])), 0);
        assert_eq!(in_last_of(&state, cycle(&[5000, 4000, 3000, 2000, 300])), 0);
    }
}
