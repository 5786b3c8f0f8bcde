//! What runs when.

use std::io;
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

/// From now on the calling thread has a processor when nobody else wants it, and hardly any time when all are wanted: it
/// should hold no lock that others wait for. It cannot go back.
///
/// # Errors
/// Of a system that does not let a thread be idle.
pub fn run_when_idle() -> io::Result<()> {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy)
        .map_err(|e| io::Error::other(format!("{e:?}")))
}
