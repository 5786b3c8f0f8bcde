//! Training without parameter servers: each worker holds all variables, and all workers combine their gradients in each
//! step. Run it with `cargo run --example all_reduce`.
#![allow(clippy::print_stdout)]

mod support;

use anabranch::train::{Average, Strategy, Tables, Uneven, Wire};

fn main() -> support::Fallible {
    let cluster = support::InProcessCluster::start(&[("worker", 2)])?;
    let strategy = |worker| Strategy::AllReduce {
        worker,
        workers: 2,
        least: 2,
        average: Average::Mean,
        wire: Wire::F32,
        uneven: Uneven::Fail,
        tables: Tables::Replicated,
    };
    let found = support::train_on(&cluster, strategy, 300)?;
    println!("w, b = {found:.3?}");
    cluster.stop()
}
