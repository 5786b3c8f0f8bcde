//! Training with towers: one graph with a copy of the model on each device. Each copy computes its share of the batch.
//! Run it with `cargo run --example towers`.
#![allow(clippy::print_stdout)]

mod support;

use anabranch::client::{Server, ServerConfig};
use anabranch::train::{Averaging, Master, Strategy};
use std::sync::Arc;

fn main() -> support::Fallible {
    // The two towers are on two devices, and the variables on a third device.
    let strategy = Strategy::Towers {
        devices: vec!["/device:CPU:1".into(), "/device:CPU:2".into()],
        variables: "/device:CPU:0".into(),
        averaging: Averaging::OnVariableDevice,
    };
    let server = Arc::new(Server::new(ServerConfig { cpu_devices: 3, ..ServerConfig::default() })?);
    let found = support::train(&strategy, Master::InProcess(server), true, 300)?;
    println!("w, b = {found:.3?}");
    Ok(())
}
