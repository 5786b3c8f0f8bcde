//! What a cluster has allocated and not freed is the same after many steps, sessions and kinds of steps: counted by
//! the byte, with its servers in this process.

mod support;

use anabranch::client::{Server, ServerConfig};
use anabranch::graph::TaskName;
use anabranch::proto::Cluster;
use std::alloc::{GlobalAlloc, Layout, System};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use support::Fallible;
use support::load::{Kinds, Replicas, clients_at_once, sessions};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// The system's allocator, which counts the bytes that are in use.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: it hands each request through as it is.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LIVE.fetch_add(size, Ordering::Relaxed);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The count is the process's: one load at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// What comes and goes with the moment, bytes: buffers of connections, tables of what is in flight.
const SLACK: usize = 32 << 10;

/// What is done behind an answer has so long to end.
const SETTLED: Duration = Duration::from_secs(30);

/// The count does not change for so long once nothing is going on.
const QUIET: Duration = Duration::from_millis(300);

/// The bytes in use once nothing is going on.
fn settled() -> usize {
    let start = Instant::now();
    let (mut live, mut since) = (LIVE.load(Ordering::Relaxed), start);
    while since.elapsed() < QUIET && start.elapsed() < SETTLED {
        std::thread::park_timeout(Duration::from_millis(20));
        let now = LIVE.load(Ordering::Relaxed);
        if now != live {
            (live, since) = (now, Instant::now());
        }
    }
    live
}

/// Runs a load's warm-up and then all of it; what is in use must not grow.
fn flat(
    what: &str,
    warm_up: usize,
    count: usize,
    mut load: impl FnMut(Range<usize>) -> Fallible,
) -> Fallible {
    load(0..warm_up)?;
    let before = settled();
    load(warm_up..count)?;
    let start = Instant::now();
    let mut after = settled();
    while after > before + SLACK && start.elapsed() < SETTLED {
        after = settled();
    }
    eprintln!("{what}: {before} bytes after {warm_up}, {after} after {count}");
    if after > before + SLACK {
        let each = (after - before) as f64 / (count - warm_up) as f64;
        return Err(format!("{what}: {before} bytes grew to {after}, {each:.1} each").into());
    }
    Ok(())
}

/// A parameter server and workers; what reaches the workers' masters.
fn with_cluster(workers: u32, run: impl FnOnce(&[String]) -> Fallible) -> Fallible {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let runtime = Runtime::new()?;
    let mut cluster = Cluster::new();
    let mut listeners = Vec::new();
    for (job, index) in std::iter::once(("ps", 0)).chain((0..workers).map(|index| ("worker", index))) {
        let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
        cluster.insert(job, index, &listener.local_addr()?.to_string())?;
        listeners.push((TaskName::new(job, index), listener));
    }
    let mut targets = Vec::new();
    for (task, listener) in listeners {
        if &*task.job == "worker" {
            targets.push(format!("grpc://{}", listener.local_addr()?));
        }
        let config = ServerConfig { task, cluster: cluster.clone(), ..ServerConfig::default() };
        runtime.spawn(async move {
            let server = Server::in_runtime(config).map_err(|e| e.to_string())?;
            server.serve(listener, std::future::pending(), Duration::ZERO).await.map_err(|e| e.to_string())
        });
    }
    run(&targets)
}

#[test]
fn asynchronous_steps() -> Fallible {
    with_cluster(2, |workers| {
        let replicas = Replicas::start(workers)?;
        flat("asynchronous steps", 300, 1_500, |steps| replicas.steps(steps))
    })
}

#[test]
fn sessions_come_and_go() -> Fallible {
    with_cluster(1, |workers| flat("sessions", 20, 120, |range| sessions(&workers[0], range.len())))
}

#[test]
fn many_clients_at_once() -> Fallible {
    with_cluster(1, |workers| {
        flat("rounds of clients at once", 3, 10, |mut range| {
            range.try_for_each(|_| clients_at_once(&workers[0], 20))
        })
    })
}

#[test]
fn kinds_of_steps() -> Fallible {
    with_cluster(1, |workers| {
        let kinds = Kinds::open(&workers[0])?;
        // The master keeps no more plans than this many.
        flat("kinds of steps", 300, 900, |range| kinds.steps(range))
    })
}
