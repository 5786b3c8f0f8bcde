//! The end of the process. NVIDIA's libraries shut down in exit handlers when `main` has returned, while other
//! threads may still run. A thread that is in a CUDA call during the shutdown crashes, for example a thread
//! that waits for a copy or drops the last session. So this module refuses CUDA calls once the process ends,
//! and registers an exit handler that waits for calls in progress.

use crate::engine::library::Library;
use device::{Error, Result};
use graph::Code;
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Set when the exit handler of this module runs.
static IS_ENDING: AtomicBool = AtomicBool::new(false);

/// Read-locked by each thread during its CUDA calls; the exit handler takes the write lock.
static CALLS: RwLock<()> = RwLock::new(());

/// Longest time that the exit handler waits for CUDA calls in progress.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// A guard that a thread holds during its CUDA calls.
pub(super) struct CallGuard {
    _call: RwLockReadGuard<'static, ()>,
}

/// Returns a guard that allows the calling thread to make CUDA calls until the guard is dropped. May be nested.
///
/// # Errors
/// `Unavailable` once the process ends.
pub(super) fn enter() -> Result<CallGuard> {
    let guard = CallGuard { _call: CALLS.read_recursive() };
    match IS_ENDING.load(Ordering::SeqCst) {
        false => Ok(guard),
        true => Err(Error::new(Code::Unavailable, "no call to a GPU is made any more: the process ends")),
    }
}

unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

/// The exit handler: makes [`enter`] refuse new calls, and waits for calls in progress.
extern "C" fn end() {
    // The handler is registered once per library; only its first run waits.
    if !IS_ENDING.swap(true, Ordering::SeqCst) {
        drop(CALLS.try_write_for(CALL_TIMEOUT));
    }
}

/// Registers the exit handler after a library has been loaded. Handlers run in reverse order of registration,
/// so this handler runs before the handler that the library registered when it was loaded.
pub(super) fn register_exit_handler(library: &Library) {
    static REGISTERED: Mutex<Vec<&str>> = Mutex::new(Vec::new());
    let mut registered = REGISTERED.lock();
    if !registered.contains(&library.name) {
        registered.push(library.name);
        // SAFETY: the handler is a function of this process without arguments.
        let _ = unsafe { atexit(end) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;
    use std::time::Instant;

    #[test]
    fn exit_waits_for_running_calls_and_refuses_new_ones() {
        let guard = enter();
        assert!(guard.is_ok() && enter().is_ok());
        let ender = thread::spawn(|| end());
        let deadline = Instant::now() + CALL_TIMEOUT;
        // `try_read` fails once the handler waits for the write lock.
        while CALLS.try_read().is_some() && Instant::now() < deadline {
            thread::yield_now();
        }
        assert!(CALLS.try_read().is_none() && !ender.is_finished());
        assert_eq!(enter().err().map(|error| error.code()), Some(Code::Unavailable));
        drop(guard);
        assert!(ender.join().is_ok());
        assert_eq!(enter().err().map(|error| error.code()), Some(Code::Unavailable));
        IS_ENDING.store(false, Ordering::SeqCst);
    }
}
