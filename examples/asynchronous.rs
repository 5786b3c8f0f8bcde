//! Asynchronous training with parameter servers: each worker updates the variables at its own pace. Run it
//! with `cargo run --example asynchronous`.
#![allow(clippy::print_stdout)]

mod support;

use anabranch::train::{Strategy, SyncMode, VariablePlacement};

fn main() -> support::Fallible {
    let cluster = support::InProcessCluster::start(&[("ps", 2), ("worker", 2)])?;
    let strategy = |worker| Strategy::ParameterServer {
        ps_tasks: 2,
        worker,
        placement: VariablePlacement::RoundRobin,
        sync: SyncMode::Async,
    };
    let found = support::train_on(&cluster, strategy, 300)?;
    println!("w, b = {found:.3?}");
    cluster.stop()
}
