//! Many sessions, clients and kinds of steps leave no memory behind. `benches/session_load.sh` runs it in full.

mod support;

use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{DType, Graph, Output, Scope, Tensor};
use std::time::Instant;
use support::Fallible;
use support::cluster::Cluster;

/// What the processes may hold more at the end of a load than after its first part.
const GROWTH: u64 = 24 << 20;

/// So many times the moderate load, of which a test has time.
fn scale() -> usize {
    std::env::var("ANABRANCH_LOAD").ok().and_then(|s| s.parse().ok()).unwrap_or(1)
}

fn resident(cluster: &Cluster) -> Fallible<u64> {
    Ok(cluster.resident("ps", 0)? + cluster.resident("worker", 0)?)
}

/// Runs `load` for a warm-up and then in full; memory must not have grown with it.
fn flat(
    what: &str,
    count: usize,
    cluster: &Cluster,
    load: impl Fn(std::ops::Range<usize>) -> Fallible,
) -> Fallible {
    load(0..count / 4)?;
    let (before, start) = (resident(cluster)?, Instant::now());
    load(count / 4..count)?;
    let after = resident(cluster)?;
    let took = start.elapsed();
    eprintln!("{what}: {} in {took:.1?}, {} -> {} KiB", count - count / 4, before >> 10, after >> 10);
    if after > before + GROWTH {
        return Err(format!("{what}: from {before} to {after} bytes").into());
    }
    Ok(())
}

/// A sum over two tasks.
fn graph() -> Fallible<(Graph, Output, Output)> {
    let scope = Scope::new();
    let x = scope.placeholder("x", DType::Float, [2]);
    let on = |device: &str, input| scope.op("Identity").device(device).input(input).output();
    let there = on("/job:ps/task:0", x);
    let back = on("/job:worker/task:0", there);
    let sum = scope.add(back, x);
    Ok((scope.finish()?, x, sum))
}

fn run_one(target: &str) -> Fallible {
    let (graph, x, sum) = graph()?;
    let session = Session::connect(target, graph, SessionOptions::default())?;
    let fetched = session.run(&[(x, Tensor::vector(&[1f32, 2.0])?)], &[sum], &[])?;
    assert_eq!(fetched, [Tensor::vector(&[2f32, 4.0])?]);
    session.close()?;
    Ok(())
}

#[test]
fn sessions_come_and_go() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let target = cluster.target("worker", 0);
    flat("sessions", 100 * scale(), &cluster, |range| range.into_iter().try_for_each(|_| run_one(&target)))
}

#[test]
fn clients_at_once() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let target = cluster.target("worker", 0);
    let at_once = || -> Fallible {
        std::thread::scope(|scope| {
            let clients: Vec<_> = (0..(20 * scale()).min(200))
                .map(|_| scope.spawn(|| run_one(&target).map_err(|e| e.to_string())))
                .collect();
            clients
                .into_iter()
                .try_for_each(|c| c.join().map_err(|_| "a client panicked")?.map_err(Into::into))
        })
    };
    flat("rounds of clients at once", 40, &cluster, |range| range.into_iter().try_for_each(|_| at_once()))
}

#[test]
fn kinds_of_steps() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let scope = Scope::new();
    let x = scope.placeholder("x", DType::Float, [2]);
    let nodes: Vec<Output> = (0..150)
        .map(|i| {
            let device = if i % 2 == 0 { "/job:ps/task:0" } else { "/job:worker/task:0" };
            scope.op("Neg").device(device).input(x).output()
        })
        .collect();
    let session = Session::connect(&cluster.target("worker", 0), scope.finish()?, SessionOptions::default())?;
    let (fed, negative) = (Tensor::vector(&[1f32, 2.0])?, Tensor::vector(&[-1f32, -2.0])?);
    // More kinds than the master keeps plans of.
    flat("kinds of steps", 1000 * scale(), &cluster, |range| {
        range.into_iter().try_for_each(|i| {
            let (a, b) = (nodes[i % nodes.len()], nodes[i / nodes.len() % nodes.len()]);
            let fetched = session.run(&[(x, fed.clone())], &[a, b], &[])?;
            assert_eq!(fetched, [negative.clone(), negative.clone()]);
            Ok(())
        })
    })
}
