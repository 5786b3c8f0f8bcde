//! A worker: one task's devices as a service to masters, and to other workers, which fetch tensors from it.
//!
//! Sessions, steps and request ids are decided by plain values; sockets and threads are around them. Kernels run
//! on the executor's pool, everything that waits for a peer on the runtime.
#![forbid(unsafe_code)]

mod config;
mod devices;
mod epochs;
mod fetch;
mod graphs;
mod handler;
pub mod gpus;
mod kernel_tables;
mod local;
mod partial_run;
mod peers;
mod rendezvous;
mod replication;
mod reply;
mod run;
mod serve;
mod service;
mod session;
mod stats;
mod steps;
mod transfers;
mod transport;
mod worker;

pub use config::WorkerConfig;
pub use device::Device;
pub use kernel_tables::{KernelTables, host_evaluator, kernel_table, kernel_tables};
pub use proto::Cluster;
pub use replication::{Replication, Standby};
pub use service::WorkerRpc;
pub use transport::Transport;
pub use worker::Worker;

/// A failure of a step or a graph, as it travels.
fn failure(error: &device::Error) -> proto::Status {
    let status = proto::Status::new(error.code(), error.to_string());
    if error.is_derived() { status.derived() } else { status }
}
