//! GPUs without a GPU: what is enqueued in which order, what memory is taken and given back, which kernels there are,
//! and that all of them compile.
#![cfg(feature = "cuda")]
#![allow(unreachable_pub)]

// As those call it who share files with these tests.
extern crate anabranch_executor as executor;

#[path = "../../../tests/gpu/cases.rs"]
mod cases;
#[path = "../../../tests/support/environment.rs"]
mod environment;
mod graphs;
mod kernels;
#[path = "../../../tests/support/op_nodes.rs"]
mod op_nodes;
#[path = "../../../tests/support/partition.rs"]
mod partition;
mod programs;
mod recording;
mod streams;
mod training;

type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Where those files look for what they share with their own tests.
mod support {
    pub(crate) use super::Fallible;
}
