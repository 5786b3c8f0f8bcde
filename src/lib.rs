//! Anabranch: a distributed dataflow-graph runtime, and a drop-in server for TensorFlow-1-style clusters.
//!
//! A program builds a graph in a [`graph::Scope`], and runs it in a [`client::Session`]: in this process, or on a
//! cluster of `anabranch-worker` processes. The module [`train`] has variables, optimizers and the strategies that
//! distribute a model over devices and tasks.
#![deny(unsafe_code)]

pub use {client, device, executor, graph, kernels, master, placer, proto, train, worker};

mod adaptive_spin;
mod allocator;
pub mod command;
pub mod gpu_flags;
pub mod serve;
pub mod server_options;
mod task_flags;

pub use task_flags::TaskFlags;

/// Runs the README's program as a doctest.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

/// Compiles the programs of the guide to process groups as doctests.
#[cfg(doctest)]
#[doc = include_str!("../docs/guide/collectives.md")]
mod collectives_guide {}
