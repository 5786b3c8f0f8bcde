//! GPUs without a GPU: what is enqueued in which order, what memory is taken and given back, which kernels there are,
//! that all of them compile, and what they compute.
#![cfg(feature = "cuda")]
#![allow(unreachable_pub)]

// As those call it who share files with these tests.
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

use anabranch_device::gpu_options::GpuOptions;
use device::Device;
use std::sync::Arc;

/// What tests that are shared with machines that have a GPU run on here: one that computes, in software, and a small one.
fn first_gpu(options: &GpuOptions) -> Fallible<Option<Arc<Device>>> {
    let driver = recording::Recording::new(1 << 30).that_computes().with_one_block();
    Ok(Some(streams::Gpu::over(driver, 0, options)?.device))
}

/// What whole programs run on, and where.
fn machine() -> Fallible<(train::Master, &'static str)> {
    Ok((trained::Machine::with_gpu(true)?.master, "/device:GPU:0"))
}

/// Elements of what is captured: few, for each is computed an instruction at a time. Sizes are tried by `computed`.
const MOST_ELEMENTS: Option<usize> = Some(500);

type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;
