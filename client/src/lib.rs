//! Sessions, which run graphs in this process or on a cluster through its master, with the same API. The
//! crate also contains the server, which makes a process a task of a cluster with a master and a worker on
//! one port, and process groups, whose members exchange tensors without a graph.
#![forbid(unsafe_code)]

mod callable;
mod error;
mod partial_run;
pub mod process_group;
mod remote;
mod runtime;
mod server;
mod session;
mod step;

pub use callable::Callable;
pub use error::{Error, Result};
pub use partial_run::PartialRun;
pub use process_group::{GroupOptions, ProcessGroup, Work};
pub use remote::RemoteMaster;
pub use server::{Server, ServerConfig};
pub use session::{Session, SessionOptions};
pub use step::{Step, StepOutcome, Target, TensorRef};
pub use worker::{Merge, Reduction};
