//! A worker: one task's devices as a service for masters, and for other workers that receive tensors from it.
//!
//! Sessions, steps and request ids are kept in plain data structures, which use no sockets or threads; the code that
//! uses sockets and threads is built on them. Kernels run on the executor's thread pool; code that waits for a peer
//! runs on the asynchronous runtime.
#![forbid(unsafe_code)]

mod collective;
mod config;
mod debug_streams;
mod devices;
mod epochs;
mod fetch;
pub mod gpus;
mod graphs;
mod handler;
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
mod watches;
mod worker;

pub use collective::{Group, GroupCall, GroupCallId, GroupFinish};
pub use config::{COLLECTIVE_TIMEOUT, STALL_WARN, WorkerConfig};
pub use device::collective::{Merge, Operation, Reduction};
pub use device::{Device, gpu_options};
pub use kernel_tables::{KernelTables, host_evaluator, kernel_table, kernel_tables, offered_kernels};
pub use proto::Cluster;
pub use replication::{Replication, Standby};
pub use service::WorkerRpc;
pub use transport::{Borrower, Fabric, Lender, Registration, RemoteMemory, Transport};
pub use worker::Worker;

/// Converts the executor's or a kernel's error into the status that answers a call.
fn failure(error: &device::Error) -> proto::Status {
    let status = proto::Status::new(error.code(), error.to_string());
    if error.is_derived() { status.derived() } else { status }
}
