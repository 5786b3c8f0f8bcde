//! GPUs of NVIDIA: the engine that enqueues work, and the kernels that it runs.

pub mod engine;
pub mod gpus;
pub mod kernels;

pub use kernels::table;
