//! Towers: a copy of the model a device, each with its share of the batch, in one graph: `cargo run --example towers`.
#![allow(clippy::print_stdout)]

mod support;

use anabranch::client::{Server, ServerConfig};
use anabranch::train::{Averaging, Master, Strategy};
use std::sync::Arc;

fn main() -> support::Fallible {
    // Two towers, and the variables on a device of their own.
    let strategy = Strategy::Towers {
        devices: vec!["/device:CPU:1".into(), "/device:CPU:2".into()],
        variables: "/device:CPU:0".into(),
        averaging: Averaging::BesideVariables,
    };
    let server = Arc::new(Server::new(ServerConfig { cpu_devices: 3, ..ServerConfig::default() })?);
    let found = support::train(&strategy, Master::InProcess(server), true, 300)?;
    println!("w, b = {found:.3?}");
    Ok(())
}
