//! The end of the process. The libraries take themselves down when `main` has returned, whatever other threads are at: one
//! that is in a call, or makes one then, because it waits for a copy or has held the last session, crashes. So calls that
//! are under way are waited for, and none is made from then on.

use crate::error::{Error, Result};
use graph::Code;
use parking_lot::{RwLock, RwLockReadGuard};
use std::ffi::c_int;
use std::time::Duration;

/// Whether the process goes on. Held for reading by who is in a call.
static GOES_ON: RwLock<bool> = RwLock::new(true);

/// A process ends even if a call does not.
const PATIENCE: Duration = Duration::from_secs(5);

/// For as long as it lives, calls may be made.
pub(super) struct Entered {
    _goes_on: RwLockReadGuard<'static, bool>,
}

/// Before a thread makes calls: it may have entered already.
///
/// # Errors
/// `Unavailable` if the process ends.
pub(super) fn enter() -> Result<Entered> {
    let goes_on = GOES_ON.read_recursive();
    match *goes_on {
        true => Ok(Entered { _goes_on: goes_on }),
        false => Err(Error::new(Code::Unavailable, "the process ends")),
    }
}

unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

extern "C" fn end() {
    if let Some(mut goes_on) = GOES_ON.try_write_for(PATIENCE) {
        *goes_on = false;
    }
}

/// Of what was loaded so far nothing goes before this: handlers run from the last one that was registered to the first.
pub(super) fn prepare() {
    // SAFETY: the handler is a function of this process, and takes nothing.
    let _ = unsafe { atexit(end) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::thread;

    #[test]
    fn who_is_in_a_call_is_waited_for_and_nobody_begins_one_once_the_process_ends() {
        let entered = enter();
        assert!(entered.is_ok() && enter().is_ok());
        let ender = thread::spawn(|| end());
        thread::sleep(Duration::from_millis(20));
        assert!(!ender.is_finished());
        // A thread that has entered may enter again while the end waits for it.
        assert!(enter().is_ok());
        drop(entered);
        assert!(ender.join().is_ok());
        assert_eq!(enter().err().map(|error| error.code()), Some(Code::Unavailable));
        *GOES_ON.write() = true;
    }
}
