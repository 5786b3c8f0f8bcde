//! The master: sessions over a cluster's workers. It places a session's graph, makes a plan for each distinct
//! step (rewrite, optimise, partition, register), and runs steps through the workers.
#![forbid(unsafe_code)]

mod callables;
mod cluster;
mod collective_steps;
mod debug_run;
mod device_query;
mod handler;
mod master;
mod optimise;
mod options;
mod partial_run;
mod plan;
mod plan_cache;
mod service;
mod session;
mod signature;
mod step;
mod step_run;

pub use cluster::Links;
pub use master::{Master, MasterConfig};
pub use service::MasterRpc;
