//! Training with parameter servers and bounded staleness: no worker is more than three steps ahead of the
//! slowest. Run it with `cargo run --example bounded_staleness`.
#![allow(clippy::print_stdout)]

mod support;

use anabranch::train::{Strategy, SyncMode, VariablePlacement};

fn main() -> support::Fallible {
    let cluster = support::InProcessCluster::start(&[("ps", 2), ("worker", 2)])?;
    let strategy = |worker| Strategy::ParameterServer {
        ps_tasks: 2,
        worker,
        placement: VariablePlacement::RoundRobin,
        sync: SyncMode::BoundedStaleness { steps: 3, workers: 2 },
    };
    let found = support::train_on(&cluster, strategy, 300)?;
    println!("w, b = {found:.3?}");
    cluster.stop()
}
