//! The scheduling priority of threads.

use std::io;
use thread_priority::{
    NormalThreadSchedulePolicy, ThreadPriority, ThreadSchedulePolicy, set_thread_priority_and_policy,
    thread_native_id,
};

/// Gives the calling thread the idle scheduling policy: it runs when processors are idle, and hardly at all when all
/// are busy. The thread should hold no lock that other threads wait for. The policy cannot be reverted.
///
/// # Errors
/// The system's error if it refuses the policy.
pub fn set_idle_priority() -> io::Result<()> {
    let policy = ThreadSchedulePolicy::Normal(NormalThreadSchedulePolicy::Idle);
    set_thread_priority_and_policy(thread_native_id(), ThreadPriority::Min, policy)
        .map_err(|e| io::Error::other(format!("{e:?}")))
}
