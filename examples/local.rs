//! Training on one device: `cargo run --example local`.
#![allow(clippy::print_stdout)]

mod support;

use anabranch::client::{Server, ServerConfig};
use anabranch::train::{Master, Strategy};
use std::sync::Arc;

fn main() -> support::Fallible {
    let server = Arc::new(Server::new(ServerConfig::default())?);
    let found = support::train(&Strategy::Local, Master::InProcess(server), true, 300)?;
    println!("w, b = {found:.3?}");
    Ok(())
}
