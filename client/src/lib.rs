//! Sessions: run graphs in this process, or on a cluster through its master. One API for both. And the server
//! that makes a process a task of a cluster: a master and a worker on one port.
#![forbid(unsafe_code)]

mod error;
mod remote;
mod runtime;
mod server;
mod session;
mod step;

pub use error::{Error, Result};
pub use remote::RemoteMaster;
pub use server::{Server, ServerConfig};
pub use session::{Session, SessionOptions};
pub use step::{Callable, Step, StepOutcome, Target, TensorRef};
