//! GPUs without a GPU: what is enqueued in which order, what memory is taken and given back, which kernels there are,
//! and that all of them compile.
#![cfg(feature = "cuda")]
#![allow(unreachable_pub)]

// As those call it who share files with these tests.
extern crate anabranch_executor as executor;

mod collectives;
#[path = "../../../tests/support/environment.rs"]
mod environment;
mod kernels;
#[path = "../../../tests/support/op_nodes.rs"]
mod op_nodes;
mod peers;
mod programs;
mod recording;
mod streams;
mod training;

type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;
