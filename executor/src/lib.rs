//! Runs one device's partition of a placed graph: compiled when it is registered, run step after step.

mod action;
mod arrivals;
mod evaluate;
mod executor;
mod flow;
mod frame_plan;
mod frames;
mod fusion;
mod hosted;
mod kernel_cache;
mod launch;
mod library_functions;
mod liveness;
mod node;
mod plan;
mod run;
mod segment;
mod segmented;
mod segments;
mod state;
mod straight;
mod trace;

pub use evaluate::HostEvaluator;
pub use executor::Executor;
pub use fusion::fuse;
pub use kernel_cache::KernelCache;
pub use library_functions::LibraryFunctions;
pub use trace::{NodeTrace, OutputTrace, Trace};
