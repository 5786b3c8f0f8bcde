//! Runs one device's partition of a placed graph, which is compiled when it is registered and executed step after step.

mod action;
mod availability;
mod evaluate;
mod executor;
mod flow;
mod frame_plan;
mod frames;
mod fusion;
mod host_logic;
mod iteration;
mod kernel_cache;
mod launch;
mod library_functions;
mod liveness;
mod node;
mod plan;
mod proximity;
mod run;
mod segment;
mod segment_layout;
mod segment_selection;
mod start;
mod state;
mod straight;
mod trace;

pub use evaluate::HostEvaluator;
pub use executor::Executor;
pub use fusion::fuse;
pub use kernel_cache::KernelCache;
pub use library_functions::LibraryFunctions;
pub use trace::{NodeTrace, OutputTrace, Trace};
