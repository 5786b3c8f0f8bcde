//! The resident memory of server processes does not grow with the number of steps, sessions, clients and distinct
//! steps. `benches/session_load.sh` runs the loads at full size.

mod support;

use std::ops::Range;
use std::time::{Duration, Instant};
use support::Fallible;
use support::cluster::Cluster;
use support::load::{DistinctSteps, Replicas, clients_at_once, sessions};

/// Number of equal parts of a load; memory is measured after each. The first part is the warm-up.
const PARTS: usize = 5;

/// Largest allowed growth of memory from the end of the warm-up to the end of a full load, as a fraction.
const GROWTH: f64 = 0.01;

/// Largest allowed growth of memory from the end of the warm-up to the end of a small load, in bytes.
const SMALL_GROWTH: u64 = 8 << 20;

/// Pause after each part of a full load. Servers return free memory to the system every three seconds.
const RETURN_TIME: Duration = Duration::from_secs(6);

/// Longest time until memory falls to its idle level after a load.
const IDLE_DEADLINE: Duration = Duration::from_secs(30);

/// Largest allowed growth of the idle memory after a load over the memory before the load, as a fraction.
const IDLE_GROWTH: f64 = 0.25;

/// Returns whether `ANABRANCH_LOAD` requests the full load; by default tests run a tenth of it or less.
fn is_full_load() -> bool {
    std::env::var_os("ANABRANCH_LOAD").is_some()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Runs a load in equal parts and checks that memory does not grow after the first part. `name` is the load's name in
/// messages.
fn check_growth(
    name: &str,
    count: usize,
    cluster: &Cluster,
    mut load: impl FnMut(Range<usize>) -> Fallible,
) -> Fallible {
    let (before, start) = (cluster.total_resident_bytes()?, Instant::now());
    let mut measured = Vec::new();
    for part in 0..PARTS {
        load(count * part / PARTS..count * (part + 1) / PARTS)?;
        // The wait is in a loop, because `park_timeout` may return early.
        let rested = Instant::now() + RETURN_TIME;
        while is_full_load() && Instant::now() < rested {
            std::thread::park_timeout(rested - Instant::now());
        }
        measured.push(cluster.total_resident_bytes()?);
    }
    let (first, last) = (measured[0], measured[PARTS - 1]);
    let growth = last as f64 / first as f64 - 1.0;
    let points: Vec<String> = measured.iter().map(|bytes| format!("{:.1}", mebibytes(*bytes))).collect();
    eprintln!(
        "{name}: {count} in {:.1?}; {:.1} MiB before, then {} MiB: {:+.2} %",
        start.elapsed(),
        mebibytes(before),
        points.join(", "),
        100.0 * growth
    );
    match is_full_load() {
        true if growth > GROWTH => Err(format!("{name}: memory grows by {:.2} %", 100.0 * growth).into()),
        false if last > first + SMALL_GROWTH => Err(format!("{name}: from {first} to {last} bytes").into()),
        _ => Ok(()),
    }
}

/// Waits until the memory of the processes is at most a quarter above `before`, in bytes.
fn wait_until_idle(name: &str, before: u64, cluster: &Cluster) -> Fallible {
    let (start, limit) = (Instant::now(), before + (before as f64 * IDLE_GROWTH) as u64);
    loop {
        let now = cluster.total_resident_bytes()?;
        if now <= limit {
            let (after, idle, before) = (start.elapsed(), mebibytes(now), mebibytes(before));
            eprintln!("{name}: {idle:.1} MiB when idle, after {after:.1?}; {before:.1} MiB before");
            return Ok(());
        }
        if start.elapsed() > IDLE_DEADLINE {
            return Err(format!("{name}: still {now} bytes, {before} before").into());
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

#[test]
fn asynchronous_steps_do_not_grow_memory() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let replicas = Replicas::start(&[cluster.target("worker", 0), cluster.target("worker", 1)])?;
    let count = if is_full_load() { 100_000 } else { 2_000 };
    check_growth("asynchronous steps", count, &cluster, |steps| replicas.steps(steps))
}

#[test]
fn sessions_do_not_grow_memory() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let target = cluster.target("worker", 0);
    let count = if is_full_load() { 1_000 } else { 100 };
    check_growth("sessions", count, &cluster, |range| sessions(&target, range.len()))
}

#[test]
fn concurrent_clients_do_not_grow_memory() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let target = cluster.target("worker", 0);
    sessions(&target, 10)?;
    let before = cluster.total_resident_bytes()?;
    let (clients, rounds) = if is_full_load() { (200, 250) } else { (20, 40) };
    let name = format!("rounds of {clients} clients at once");
    check_growth(&name, rounds, &cluster, |mut range| {
        range.try_for_each(|_| clients_at_once(&target, clients))
    })?;
    wait_until_idle(&name, before, &cluster)
}

#[test]
fn distinct_steps_do_not_grow_memory() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let distinct = DistinctSteps::open(&cluster.target("worker", 0))?;
    let count = if is_full_load() { 10_000 } else { 1_000 };
    check_growth("distinct steps", count, &cluster, |range| distinct.steps(range))
}
