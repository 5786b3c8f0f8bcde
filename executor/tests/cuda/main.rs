//! GPUs without a GPU: what is enqueued in which order, what memory is taken and given back, which kernels there are,
//! and that all of them compile.
#![cfg(feature = "cuda")]
#![allow(unreachable_pub)]

// As those call it who share files with these tests.
extern crate anabranch_executor as executor;

#[path = "../../../tests/gpu/cases.rs"]
mod cases;
mod chains;
mod collectives;
#[path = "../../../tests/gpu/compared.rs"]
mod compared;
mod compiler;
mod computed;
mod enqueued;
#[path = "../../../tests/support/environment.rs"]
mod environment;
mod fused;
mod graphs;
mod kernels;
mod loops;
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
mod streams;
mod training;
#[path = "../../../tests/gpu/variable_cases.rs"]
mod variable_cases;
#[path = "../../../tests/gpu/walk.rs"]
mod walk;

type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;
