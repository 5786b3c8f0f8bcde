//! Helpers of whole-system tests: clusters of real processes, and a Python with TensorFlow.
#![allow(dead_code, unreachable_pub, unused_imports)]

pub mod cluster;
pub mod elections;
pub mod environment;
pub mod folder;
pub mod job;
pub mod launchers;
pub mod load;
pub mod op_nodes;
pub mod op_table;
pub mod partition;
pub mod python;
pub mod relay;
pub mod replica;
pub mod rpc;

/// The result of a test or helper: an error of any type fails the test.
pub type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;
