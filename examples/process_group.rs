//! Processes that exchange tensors without a graph: each prints its rank, and the sum over all ranks. Start it by a
//! launcher, such as `mpirun -n 4 target/debug/examples/process_group` or `torchrun --no-python --nproc-per-node 4
//! target/debug/examples/process_group`; without a launcher it is a group of one process.
#![allow(clippy::print_stdout)]

use anabranch::client::process_group::{Environment, EnvironmentError};
use anabranch::client::{GroupOptions, ProcessGroup, Reduction};
use anabranch::graph::Tensor;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let environment = match Environment::read(|name| std::env::var(name).ok()) {
        Err(EnvironmentError::NoLauncher) => {
            Environment { rank: 0, size: 1, host: "127.0.0.1".to_owned(), port: 0 }
        }
        environment => environment?,
    };
    let group = ProcessGroup::from_environment(&environment, GroupOptions::default())?;
    let sum = group.all_reduce(Tensor::from(group.rank() as i64 + 1), Reduction::SUM)?;
    println!("rank {} of {}: the sum is {}", group.rank(), group.size(), sum.item::<i64>()?);
    Ok(())
}
