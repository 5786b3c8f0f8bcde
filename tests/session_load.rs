//! Steps, sessions, clients and kinds of steps in great numbers leave no memory behind in the processes that serve
//! them. `benches/session_load.sh` runs them in full.

mod support;

use std::ops::Range;
use std::time::{Duration, Instant};
use support::Fallible;
use support::cluster::Cluster;
use support::load::{Kinds, Replicas, clients_at_once, sessions};

/// Memory is noted so often, after equal parts of a load. The first part is its warm-up.
const POINTS: usize = 5;

/// What the processes may hold more after a load than after its warm-up.
const GROWTH: f64 = 0.01;

/// The same for loads so small that every megabyte counts, bytes.
const SMALL_GROWTH: u64 = 8 << 20;

/// Servers give back what is free every three seconds: so long after a part, they hold what they need.
const TO_GIVE_BACK: Duration = Duration::from_secs(6);

/// Once nobody asks for anything, processes have so long to come back to what they held at rest.
const TO_REST: Duration = Duration::from_secs(30);

/// What they may hold more than at their first rest, as a share of it.
const AT_REST: f64 = 0.25;

/// The share of the full load that a test has time for is a tenth, or less.
fn in_full() -> bool {
    std::env::var_os("ANABRANCH_LOAD").is_some()
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// Runs a load in equal parts; memory must not grow after the first.
fn flat(
    what: &str,
    count: usize,
    cluster: &Cluster,
    mut load: impl FnMut(Range<usize>) -> Fallible,
) -> Fallible {
    let (before, start) = (cluster.resident_in_all()?, Instant::now());
    let mut noted = Vec::new();
    for part in 0..POINTS {
        load(count * part / POINTS..count * (part + 1) / POINTS)?;
        // A thread of the load that has ended may have left a wake-up behind.
        let rested = Instant::now() + TO_GIVE_BACK;
        while in_full() && Instant::now() < rested {
            std::thread::park_timeout(rested - Instant::now());
        }
        noted.push(cluster.resident_in_all()?);
    }
    let (first, last) = (noted[0], noted[POINTS - 1]);
    let growth = last as f64 / first as f64 - 1.0;
    let points: Vec<String> = noted.iter().map(|bytes| format!("{:.1}", mebibytes(*bytes))).collect();
    eprintln!(
        "{what}: {count} in {:.1?}; {:.1} MiB before, then {} MiB: {:+.2} %",
        start.elapsed(),
        mebibytes(before),
        points.join(", "),
        100.0 * growth
    );
    match in_full() {
        true if growth > GROWTH => Err(format!("{what}: memory grows by {:.2} %", 100.0 * growth).into()),
        false if last > first + SMALL_GROWTH => Err(format!("{what}: from {first} to {last} bytes").into()),
        _ => Ok(()),
    }
}

/// Waits until the processes hold about what they held `before`.
fn comes_to_rest(what: &str, before: u64, cluster: &Cluster) -> Fallible {
    let (start, limit) = (Instant::now(), before + (before as f64 * AT_REST) as u64);
    loop {
        let now = cluster.resident_in_all()?;
        if now <= limit {
            let (after, held, before) = (start.elapsed(), mebibytes(now), mebibytes(before));
            eprintln!("{what}: at rest {held:.1} MiB after {after:.1?}; {before:.1} MiB before");
            return Ok(());
        }
        if start.elapsed() > TO_REST {
            return Err(format!("{what}: still {now} bytes, {before} before").into());
        }
        std::thread::park_timeout(Duration::from_millis(100));
    }
}

#[test]
fn asynchronous_steps() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 2)])?;
    let replicas = Replicas::start(&[cluster.target("worker", 0), cluster.target("worker", 1)])?;
    let count = if in_full() { 100_000 } else { 2_000 };
    flat("asynchronous steps", count, &cluster, |steps| replicas.steps(steps))
}

#[test]
fn sessions_come_and_go() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let target = cluster.target("worker", 0);
    let count = if in_full() { 1_000 } else { 100 };
    flat("sessions", count, &cluster, |range| sessions(&target, range.len()))
}

#[test]
fn many_clients_at_once() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let target = cluster.target("worker", 0);
    sessions(&target, 10)?;
    let before = cluster.resident_in_all()?;
    let (clients, rounds) = if in_full() { (200, 250) } else { (20, 40) };
    let what = format!("rounds of {clients} clients at once");
    flat(&what, rounds, &cluster, |mut range| range.try_for_each(|_| clients_at_once(&target, clients)))?;
    comes_to_rest(&what, before, &cluster)
}

#[test]
fn kinds_of_steps() -> Fallible {
    let cluster = Cluster::start(&[("ps", 1), ("worker", 1)])?;
    let kinds = Kinds::open(&cluster.target("worker", 0))?;
    let count = if in_full() { 10_000 } else { 1_000 };
    flat("kinds of steps", count, &cluster, |range| kinds.steps(range))
}
