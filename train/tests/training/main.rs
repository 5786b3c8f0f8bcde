//! Tests of training, with sessions in this process.

mod all_reduce;
mod elections;
mod hybrid;
mod initializers;
mod interrupted;
mod optimizers;
mod replicas;
mod sessions;
mod strategies;
mod sync;
mod torn_updates;
mod updates;
mod variables;

use client::{ServerConfig, Session, SessionOptions};
use graph::{Graph, Tensor};

type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;

/// Opens a session in this process with `cpu_devices` CPU devices.
fn session(graph: Graph, cpu_devices: u32) -> Fallible<Session> {
    let server = ServerConfig { cpu_devices, threads: 2, ..ServerConfig::default() };
    Ok(Session::local_with(graph, server, SessionOptions::default())?)
}

#[track_caller]
fn assert_close(found: &Tensor, expected: &[f64]) -> Fallible {
    let found: Vec<f64> = found.values::<f32>()?.iter().map(|&v| f64::from(v)).collect();
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for (f, e) in found.iter().zip(expected) {
        assert!((f - e).abs() <= 1e-6 * e.abs().max(1.0), "{found:?}, expected {expected:?}");
    }
    Ok(())
}
