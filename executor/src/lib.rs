//! Runs placed graphs: devices, kernels, the executor of a partition, rendezvous, and resources that outlive
//! steps. Nothing here knows of networks or of whole clusters.

pub mod accumulator;
pub mod barrier;
pub mod cancel;
pub mod crossing;
#[cfg(feature = "cuda")]
pub mod cuda;
mod dataset;
pub mod device;
mod error;
mod escape;
mod evaluate;
pub mod event_file;
mod executor;
pub mod function;
mod fusion;
pub mod gpu_options;
#[cfg(feature = "cuda")]
pub mod gpus;
pub mod handle;
mod hosted;
mod library_functions;
pub mod io;
pub mod journal;
pub mod kernel;
mod kernel_cache;
pub mod kernel_table;
pub mod kernels;
pub mod single_node;
mod pool;
pub mod priority;
pub mod queue;
pub mod reader;
pub mod rendezvous;
pub mod repeat;
pub mod resource;
pub mod rows;
pub mod shared_block;
pub mod shared_memory;
pub mod staging;
pub mod table;
pub mod testing;
pub mod turns;
mod value;
pub mod variable;
pub mod waiting;
pub mod window;

pub use error::{Error, Result};
pub use evaluate::HostEvaluator;
pub use executor::{Executor, NodeTrace, OutputTrace, Trace};
pub use function::{Function, Functions};
pub use library_functions::LibraryFunctions;
pub use fusion::fuse;
pub use kernel_cache::KernelCache;
pub use pool::Pool;
pub use rendezvous::LocalRendezvous;
pub use value::{Placed, Value, View};
