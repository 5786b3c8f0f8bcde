//! `anabranch demo`: one model function, trained on one device, on towers in one graph, or by two workers beside
//! a parameter server, each a process of its own.

mod cluster;
mod data;
mod model;
mod report;
mod training;

use clap::{Args, ValueEnum};
use std::error::Error;
use train::Strategy;

#[derive(Debug, Args)]
pub(crate) struct DemoFlags {
    /// How the model is replicated
    #[arg(long, value_enum, default_value_t = Mode::BetweenGraph)]
    mode: Mode,

    /// Training steps, of all replicas together
    #[arg(long, default_value_t = 1200)]
    steps: u64,

    /// Images a step
    #[arg(long, default_value_t = 64)]
    batch: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Mode {
    /// One device of this process
    Local,
    /// Two towers in one graph, on two devices of this process
    InGraph,
    /// A parameter server and two workers, started as processes; a client a worker
    BetweenGraph,
}

/// Towers, or workers, in the replicated modes.
const REPLICAS: u32 = 2;

pub(crate) fn run(flags: &DemoFlags) -> Result<(), Box<dyn Error + Send + Sync>> {
    if flags.batch == 0 || !flags.batch.is_multiple_of(REPLICAS as usize) {
        return Err(format!(
            "--batch is {}: it must be a multiple of {REPLICAS}, and more than 0",
            flags.batch
        )
        .into());
    }
    let digits = data::Digits::load()?;
    let outcome = match flags.mode {
        Mode::Local => training::in_process(flags, &digits, &Strategy::Local, 1)?,
        Mode::InGraph => {
            let towers = Strategy::Towers {
                devices: (1..=REPLICAS).map(|i| format!("/device:CPU:{i}")).collect(),
                variables: "/device:CPU:0".to_owned(),
            };
            training::in_process(flags, &digits, &towers, REPLICAS + 1)?
        }
        Mode::BetweenGraph => {
            let cluster = cluster::Cluster::start(1, REPLICAS)?;
            let outcome = training::between_graph(flags, &digits, &cluster)?;
            cluster.stop()?;
            outcome
        }
    };
    report::print(&outcome);
    Ok(())
}
