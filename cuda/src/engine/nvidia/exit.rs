//! The end of the process. The libraries take themselves down when `main` has returned, whatever other threads are at: one
//! that is in a call, or makes one then, because it waits for a copy or has held the last session, crashes. So none is made
//! from then on, and those that are under way are waited for.

use crate::engine::library::Library;
use device::{Error, Result};
use graph::Code;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

static ENDS: AtomicBool = AtomicBool::new(false);

/// Held for reading by who is in a call.
static CALLS: RwLock<()> = RwLock::new(());

/// A process ends even if a call does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// For as long as it lives, calls may be made.
pub(super) struct Entered {
    _call: RwLockReadGuard<'static, ()>,
}

/// Before a thread makes calls: it may have entered already.
///
/// # Errors
/// `Unavailable` if the process ends.
pub(super) fn enter() -> Result<Entered> {
    let entered = Entered { _call: CALLS.read_recursive() };
    match ENDS.load(Ordering::SeqCst) {
        false => Ok(entered),
        true => Err(Error::new(Code::Unavailable, "no call to a GPU is made any more: the process ends")),
    }
}

unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

extern "C" fn end() {
    // Of several handlers the first has waited.
    if !ENDS.swap(true, Ordering::SeqCst) {
        drop(CALLS.try_write_for(PATIENCE));
    }
}

/// A library that is loaded does not go before this: handlers run from the last one that was registered to the first.
pub(super) fn prepare(library: &Library) {
    static PREPARED: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let mut prepared = PREPARED.lock();
    if !prepared.contains(&library.name) {
        prepared.push(library.name);
        // SAFETY: the handler is a function of this process, and takes nothing.
        let _ = unsafe { atexit(end) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Instant;

    #[test]
    fn nobody_begins_a_call_once_the_process_ends_and_who_is_in_one_is_waited_for() {
        let entered = enter();
        assert!(entered.is_ok() && enter().is_ok());
        let ender = thread::spawn(|| end());
        let deadline = Instant::now() + PATIENCE;
        // Until it waits for this thread's call.
        while CALLS.try_read().is_some() && Instant::now() < deadline {
            thread::yield_now();
        }
        assert!(CALLS.try_read().is_none() && !ender.is_finished());
        assert_eq!(enter().err().map(|error| error.code()), Some(Code::Unavailable));
        drop(entered);
        assert!(ender.join().is_ok());
        assert_eq!(enter().err().map(|error| error.code()), Some(Code::Unavailable));
        ENDS.store(false, Ordering::SeqCst);
    }
}
