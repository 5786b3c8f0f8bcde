//! The interface between kernels and the executor: values in host or device memory, devices, kernel tables, functions,
//! resources behind handles, rendezvous and cancellation.

#![deny(unsafe_code)]

pub mod cancel;
pub mod crossing;
mod device;
pub mod error;
pub mod function;
pub mod gpu_options;
pub mod handle;
pub mod journal;
pub mod kernel;
pub mod kernel_table;
mod pool;
pub mod priority;
pub mod rendezvous;
pub mod repeat;
pub mod resource;
pub mod shared_block;
// Memory that is mapped from descriptors.
#[allow(unsafe_code)]
pub mod shared_memory;
pub mod single_node;
pub mod value;
pub mod variable;
pub mod waiting;
pub mod window;

pub use device::{Device, DeviceAttributes, DeviceMemory, DeviceTensor, HostProcessor, Processor, Transfer};
pub use error::{Error, Result};
pub use kernel_table::KernelTable;
pub use pool::Pool;
pub use rendezvous::LocalRendezvous;
pub use value::{Placed, Value, View};
