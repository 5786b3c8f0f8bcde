//! Runs placed graphs: devices, kernels, the executor of a partition, rendezvous, and resources that outlive
//! steps. Nothing here knows of networks or of whole clusters.

pub mod cancel;
pub mod device;
mod error;
pub mod kernel;
pub mod kernels;
pub mod rendezvous;
pub mod resource;
pub mod testing;
mod value;
pub mod variable;

pub use error::{Error, Result};
pub use value::Value;
