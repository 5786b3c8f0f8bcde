//! The GPU code without a GPU: the order of enqueued work, the use of memory, the kernel table, the compilation
//! of all kernels, and their results.
#![allow(unreachable_pub)]

// The name by which test files shared with other crates use the executor.
extern crate anabranch_executor as executor;

#[path = "../../../tests/gpu/arrays.rs"]
mod arrays;
mod aside;
#[path = "../../../tests/gpu/graphs.rs"]
mod captured;
#[path = "../../../tests/gpu/cases.rs"]
mod cases;
mod chains;
mod collectives;
#[path = "../../../tests/gpu/compared.rs"]
mod compared;
mod compiler;
mod computed;
#[path = "../../../tests/gpu/elements.rs"]
mod elements;
#[path = "../../../tests/support/environment.rs"]
mod environment;
mod flows;
#[path = "../../../tests/support/folder.rs"]
mod folder;
mod fused;
mod graphs;
#[path = "../../../tests/gpu/kept.rs"]
mod kept;
mod kernels;
mod lists;
mod loops;
#[path = "../../../examples/models/mod.rs"]
mod models;
#[path = "../../../tests/support/op_nodes.rs"]
mod op_nodes;
#[path = "../../../tests/support/partition.rs"]
mod partition;
mod peers;
#[path = "../../../tests/gpu/placed.rs"]
mod placed;
mod processor;
mod programs;
mod recording;
#[path = "../../../tests/gpu/saved.rs"]
mod saved;
mod streams;
mod trained;
mod training;
#[path = "../../../tests/gpu/variable_cases.rs"]
mod variable_cases;
#[path = "../../../tests/gpu/walk.rs"]
mod walk;
mod windows;

use device::Device;
use device::gpu_options::GpuOptions;
use std::sync::Arc;

/// The device for tests that are shared with machines that have a GPU: a small GPU that executes kernels in
/// software.
fn first_gpu(options: &GpuOptions) -> Fallible<Option<Arc<Device>>> {
    let driver = recording::RecordingDriver::new(1 << 30).executing_ptx().with_one_block();
    Ok(Some(streams::Gpu::with_driver(driver, 0, options)?.device))
}

/// The process and device for tests of whole programs.
fn machine() -> Fallible<(train::Master, &'static str)> {
    Ok((trained::Machine::with_gpu(true)?.master, "/device:GPU:0"))
}

/// Largest number of elements in graph tests: small, because PTX is executed one instruction at a time. Other
/// sizes are tested by `computed`.
const MOST_ELEMENTS: Option<usize> = Some(500);

type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;
