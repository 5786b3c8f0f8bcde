//! NVIDIA GPUs: the engine that manages a GPU's streams and memory, and the kernels of ops.

pub mod engine;
pub mod gpus;
pub mod kernels;

pub use kernels::table;
