//! Communicators of devices' libraries, such as NCCL, over several processes. The leader counts the epochs of each
//! group's communicator ([`epochs`]); each member runs its reductions in turns that rank 0 assigns to the steps
//! ([`turns`]). Both are values without sockets, clocks and calls to the library.

mod epochs;
mod messages;
mod turns;

pub(crate) use epochs::{Enter, Entered, Epochs};
pub(crate) use messages::{enter_of, entered_of, entered_response, write_header};
pub(super) use turns::{Action, Turns};
