//! GPUs. On a machine that has one: every kernel of its table against the CPU's, on random inputs and on edges, in memory
//! that is poisoned before, and in CUDA graphs against itself; training; memory that does not suffice; steps and processes that are cut short. On one that has
//! none: what is promised there, that the cases are sound, and whole programs with a CPU in its place.
//!
//! `scripts/gpu-suite` runs this where there is a GPU and no Rust.
#![cfg(feature = "cuda")]

mod gpu {
    pub(crate) use crate::support::{Fallible, folder, op_nodes, partition};
    pub(crate) mod absent;
    pub(crate) mod arrays;
    pub(crate) mod cases;
    pub(crate) mod compared;
    pub(crate) mod compile;
    pub(crate) mod demo;
    pub(crate) mod elements;
    pub(crate) mod graphs;
    pub(crate) mod jobs;
    pub(crate) mod kept;
    pub(crate) mod kernels;
    pub(crate) mod life;
    pub(crate) mod placed;
    pub(crate) mod saved;
    pub(crate) mod variable_cases;
    pub(crate) mod walk;
}
mod support;

use client::{Server, ServerConfig};
use cuda::gpus;
use device::Device;
use device::gpu_options::GpuOptions;
use graph::TaskName;
use std::sync::Arc;
use support::Fallible;

/// Elements of what is captured at most: as many as there are.
const MOST_ELEMENTS: Option<usize> = None;

/// The machine's first GPU; without one, says that there is nothing to test here.
fn first_gpu(options: &GpuOptions) -> Fallible<Option<Arc<Device>>> {
    match gpus::devices(&TaskName::new("localhost", 0), options, || 1) {
        Ok(found) => Ok(found.into_iter().next()),
        Err(error) if std::env::var_os("ANABRANCH_GPU_SUITE").is_none() => {
            eprintln!("not tested, for there is no GPU: {error}");
            Ok(None)
        }
        // The suite is for machines that have one.
        Err(error) => Err(error.into()),
    }
}

/// This machine for whole programs, and its first GPU, or what stands in for that.
fn machine() -> Fallible<(train::Master, &'static str)> {
    let has_gpu = first_gpu(&GpuOptions::default())?.is_some();
    let server = Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?;
    let device = if has_gpu { "/device:GPU:0" } else { "/device:CPU:0" };
    Ok((train::Master::InProcess(Arc::new(server)), device))
}

/// The command `anabranch`: where it was built, or where the suite has brought it.
fn anabranch() -> std::process::Command {
    let brought = std::env::var_os("ANABRANCH_BIN");
    std::process::Command::new(brought.unwrap_or_else(|| env!("CARGO_BIN_EXE_anabranch").into()))
}
