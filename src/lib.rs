//! Anabranch: a distributed dataflow-graph runtime, and a drop-in server for TensorFlow-1-style clusters.
//!
//! A program builds a graph in a [`graph::Scope`], and runs it in a [`client::Session`]: in this process, or on a
//! cluster of `anabranch-worker` processes. [`train`] holds variables, optimizers and the strategies that spread
//! a model over devices and tasks.
#![deny(unsafe_code)]

pub use {client, executor, graph, master, placer, proto, train, worker};

mod allocator;
mod awake;
pub mod gpu_flags;
pub mod serve;
pub mod server_options;
mod task_flags;

pub use task_flags::TaskFlags;

/// The README's program runs as it stands there.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
