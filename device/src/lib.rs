//! The interface between kernels and the executor: values in host or device memory, devices, kernel tables, functions,
//! resources behind handles, rendezvous and cancellation.

#![deny(unsafe_code)]

pub mod activity;
pub mod cancel;
pub mod collective;
pub mod debug_stream;
mod device;
pub mod device_collectives;
pub mod error;
pub mod function;
pub mod gpu_options;
pub mod handle;
pub mod journal;
pub mod kernel;
pub mod kernel_table;
mod pool;
pub mod priority;
pub mod rdma;
pub mod rendezvous;
pub mod resource;
pub mod segment_runner;
pub mod shared_block;
pub mod transfer;
// Unsafe code is allowed only in `shared_memory`, which maps memory from file descriptors, and in `shared_library`, which
// loads libraries.
pub mod attempt;
pub mod peer_buffer;
#[allow(unsafe_code)]
pub mod shared_library;
#[allow(unsafe_code)]
pub mod shared_memory;
pub mod single_node;
pub mod value;
pub mod variable;

pub use device::{Device, DeviceAttributes, DeviceMemory, DeviceTensor, HostProcessor, Processor, Transfer};
pub use error::{Error, Result};
pub use kernel_table::KernelTable;
pub use pool::Pool;
pub use rendezvous::LocalRendezvous;
pub use value::{AnyTensor, Value, View};
