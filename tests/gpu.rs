//! GPU tests. On a machine with a GPU: each kernel of the GPU's table must give the CPU kernel's results on random
//! inputs and edge cases, in poisoned memory, and must give the same results in a CUDA graph; training, lack of
//! memory, and interrupted steps and processes are tested, too. On a machine without a GPU: the documented behaviour
//! without GPUs, the test cases on the CPU alone, and whole programs with a CPU in place of the GPU.
//!
//! `scripts/gpu-suite` runs these tests on machines with a GPU and without Rust.
#![cfg(feature = "cuda")]

mod gpu {
    pub(crate) use crate::support::{Fallible, folder, op_nodes, partition};
    pub(crate) mod arrays;
    pub(crate) mod cases;
    pub(crate) mod checkpoints;
    pub(crate) mod comparison;
    pub(crate) mod compile;
    pub(crate) mod demo;
    pub(crate) mod device_state;
    pub(crate) mod elements;
    pub(crate) mod graphs;
    pub(crate) mod jobs;
    pub(crate) mod kernel_cases;
    pub(crate) mod kernels;
    pub(crate) mod node_runner;
    pub(crate) mod out_of_memory;
    pub(crate) mod variable_cases;
    pub(crate) mod without_gpu;
}
mod support;

use client::{Server, ServerConfig};
use cuda::gpus;
use device::Device;
use device::gpu_options::GpuOptions;
use graph::TaskName;
use std::sync::Arc;
use support::Fallible;

/// Largest number of elements of inputs in tests of CUDA graphs; `None` means no limit.
const MOST_ELEMENTS: Option<usize> = None;

/// Returns the machine's first GPU; without a GPU, prints that nothing is tested and returns `None`.
fn first_gpu(options: &GpuOptions) -> Fallible<Option<Arc<Device>>> {
    match gpus::devices(&TaskName::new("localhost", 0), options, || 1) {
        Ok(found) => Ok(found.into_iter().next()),
        Err(error) if std::env::var_os("ANABRANCH_GPU_SUITE").is_none() => {
            eprintln!("not tested, because there is no GPU: {error}");
            Ok(None)
        }
        // `scripts/gpu-suite` runs only on machines that should have a GPU, so a missing GPU is an error.
        Err(error) => Err(error.into()),
    }
}

/// Returns a server in this process, on which whole programs run, and the name of its first GPU or, without a GPU, of
/// its CPU.
fn machine() -> Fallible<(train::Master, &'static str)> {
    let has_gpu = first_gpu(&GpuOptions::default())?.is_some();
    let server = Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?;
    let device = if has_gpu { "/device:GPU:0" } else { "/device:CPU:0" };
    Ok((train::Master::InProcess(Arc::new(server)), device))
}

/// Returns the command `anabranch`, from this build or from the path that `scripts/gpu-suite` sets.
fn anabranch() -> std::process::Command {
    let brought = std::env::var_os("ANABRANCH_BIN");
    std::process::Command::new(brought.unwrap_or_else(|| env!("CARGO_BIN_EXE_anabranch").into()))
}
