//! The end of the process. The libraries take themselves down when `main` has returned, whatever other threads are at: one
//! that then destroys their handles, because it has held the last session, crashes. So nothing is destroyed any more from
//! then on, and who is at it is waited for.

use parking_lot::RwLock;
use std::ffi::c_int;
use std::time::Duration;

/// Whether the process goes on. Held for reading by who destroys something.
static GOES_ON: RwLock<bool> = RwLock::new(true);

/// A process ends even if something is never through with being destroyed.
const PATIENCE: Duration = Duration::from_secs(5);

unsafe extern "C" {
    fn atexit(handler: extern "C" fn()) -> c_int;
}

extern "C" fn end() {
    if let Some(mut goes_on) = GOES_ON.try_write_for(PATIENCE) {
        *goes_on = false;
    }
}

/// What was loaded so far is safe at the end: handlers run from the last one that was registered to the first.
pub(super) fn prepare() {
    // SAFETY: the handler is a function of this process, and takes nothing.
    let _ = unsafe { atexit(end) };
}

/// Calls `destroy` unless the process ends.
pub(super) fn unless_it_ends(destroy: impl FnOnce()) {
    if let Some(goes_on) = GOES_ON.try_read()
        && *goes_on
    {
        destroy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::channel;
    use std::thread;

    #[test]
    fn nothing_is_destroyed_once_the_process_ends_and_who_is_at_it_is_waited_for() {
        let (begun, begin) = channel();
        let (go, wait) = channel::<()>();
        let destroyer = thread::spawn(move || {
            let mut is_done = false;
            unless_it_ends(|| {
                let _ = begun.send(());
                is_done = wait.recv().is_ok();
            });
            is_done
        });
        assert!(begin.recv().is_ok());
        let ender = thread::spawn(|| end());
        thread::sleep(Duration::from_millis(20));
        assert!(!ender.is_finished());
        assert!(go.send(()).is_ok());
        assert!(destroyer.join().is_ok_and(|is_done| is_done) && ender.join().is_ok());
        unless_it_ends(|| panic!("it has ended"));
        *GOES_ON.write() = true;
    }
}
