//! Synchronous training with parameter servers: one update for each step, with the mean gradient of all
//! workers. Run it with `cargo run --example synchronous`.
#![allow(clippy::print_stdout)]

mod support;

use anabranch::train::{Aggregation, Strategy, SyncMode, VariablePlacement};

fn main() -> support::Fallible {
    let cluster = support::InProcessCluster::start(&[("ps", 2), ("worker", 2)])?;
    let strategy = |worker| Strategy::ParameterServer {
        ps_tasks: 2,
        worker,
        placement: VariablePlacement::RoundRobin,
        sync: SyncMode::Sync { replicas_to_aggregate: 2, backup: 0, aggregation: Aggregation::InOrder },
    };
    let found = support::train_on(&cluster, strategy, 300)?;
    println!("w, b = {found:.3?}");
    cluster.stop()
}
