//! Tests of the GPU code without a GPU: the order of enqueued work, the use of memory, the kernel table, and
//! the compilation and results of all kernels.
#![allow(unreachable_pub)]

// The name of this crate in test files that are shared with the root package.
extern crate anabranch_cuda as cuda;

mod all_kernels;
#[path = "../../../tests/gpu/arrays.rs"]
mod arrays;
#[path = "../../../tests/gpu/graphs.rs"]
mod captured;
#[path = "../../../tests/gpu/cases.rs"]
mod cases;
mod chains;
mod collectives;
mod communicators;
#[path = "../../../tests/gpu/comparison.rs"]
mod comparison;
#[path = "../../../tests/gpu/device_state.rs"]
mod device_state;
#[path = "../../../tests/support/environment.rs"]
mod environment;
#[allow(dead_code)]
#[path = "../../../tests/support/folder.rs"]
mod folder;
mod fused;
mod graphs;
mod ipc_buffers;
#[path = "../../../tests/gpu/kernel_cases.rs"]
mod kernel_cases;
mod kernel_table;
mod lists;
mod loops;
#[path = "../../../tests/gpu/node_runner.rs"]
mod node_runner;
#[path = "../../../tests/support/op_nodes.rs"]
mod op_nodes;
#[path = "../../../tests/support/partition.rs"]
mod partition;
mod peers;
mod programs;
mod random_programs;
mod snapshots;
mod software;
mod streams;
mod training;
#[path = "../../../tests/gpu/variable_cases.rs"]
mod variable_cases;

use device::Device;
use device::gpu_options::GpuOptions;
use std::sync::Arc;

/// Returns the device for tests that also run on machines with a GPU: here a small GPU that executes kernels in
/// software.
fn first_gpu(options: &GpuOptions) -> Fallible<Option<Arc<Device>>> {
    let driver = software::recording::RecordingDriver::new(1 << 30).executing_ptx().with_one_block();
    Ok(Some(software::gpu::Gpu::with_driver(driver, 0, options)?.device))
}

/// Largest number of elements in graph tests: small, because PTX is executed one instruction at a time. Larger
/// tensors are tested in `all_kernels.rs`.
const MOST_ELEMENTS: Option<usize> = Some(500);

type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;
