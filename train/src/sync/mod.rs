//! Synchronous training beside parameter servers.
//!
//! Each worker pushes the gradients of a step to places beside the variables, says so, and waits for a token. The
//! chief, in a thread of its own, looks who has pushed ([`decision`]), updates the variables once with the mean, and
//! gives out tokens that hold the next step. All that either knows lies in variables and queues on the parameter
//! servers, so that both may die and come back. An update is prepared [`aside`], then committed: who finds one that was
//! cut off takes it up where it was.
//!
//! Who pushes again for a step, because it was restarted, writes the same place again; who is late is told the step
//! that is on. `sync_rep_pushed` is initialised last and destroyed first: while it has no value, workers wait.

mod accumulators;
mod aside;
mod chief;
mod decision;
mod end;
mod in_order;
mod opening;
mod queue;
mod replica;
mod roster;

pub(crate) use aside::{Target, Writes};
pub use chief::SyncReport;
pub(crate) use chief::{Aggregator, UpdateLock};
pub use replica::SyncReplicas;
pub(crate) use replica::{Build, Places};
