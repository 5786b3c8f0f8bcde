//! Synchronous training with parameter servers.
//!
//! Each worker writes the gradients of a step to the devices of the variables, reports the push, and waits for a token.
//! The chief, in a thread of its own, reads which workers have pushed ([`decision`]), updates the variables once with
//! the mean gradient, and hands out tokens that contain the next step. The whole state of the protocol is in variables
//! and queues on the parameter servers, so that workers and chief can be restarted. An update is [`staged`] first and
//! committed afterwards: a chief that finds an interrupted update resumes it.
//!
//! A restarted worker that pushes a gradient of the same step again overwrites its earlier gradient; a late worker gets
//! a token with the current step. The vector `sync_rep_pushed`, each worker's last pushed step, is initialised last and
//! destroyed first: workers wait while it has no value.

mod accumulators;
mod chief;
mod decision;
mod gradient_buffers;
mod queue;
mod replica;
mod roster;
mod shutdown;
mod staged;
mod startup;
mod two_phase;

pub use chief::SyncReport;
pub(crate) use chief::{Aggregator, UpdateLock};
pub use replica::SyncReplicas;
pub(crate) use replica::{GradientStore, ReplicaBuilder};
pub(crate) use staged::{UpdateMode, WriteTarget};
