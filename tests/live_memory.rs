//! Steps, sessions, clients and kinds of steps leave nothing allocated behind: counted by the block, with a cluster's
//! servers in this process. A table that only grows its one block shows in `tests/session_load.rs`.

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

/// The system's allocator, which counts what is in use.
struct Counting;

static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: it hands each request through as it is. The methods that are left out call these.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BLOCKS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// The count is the process's: one load at a time.
static ALONE: Mutex<()> = Mutex::new(());

/// What is kept of a step, a plan or a session is a block at least, of each, and of no few bytes: the smallest of them,
/// the state of a step in a worker, has more than 128. A round that leaves fewer, of either, keeps nothing of what it
/// did; of the blocks, a quarter, for a leak that spares most.
const ITEMS_A_BLOCK: i64 = 4;
const BYTES_AN_ITEM: i64 = 128;

/// Each connection of HTTP/2 keeps the headers that it has seen, 4,096 bytes of them in either direction, and every
/// answer has its date: its tables are full after as many seconds as hold 63 dates, at the latest. It also keeps
/// the room that its busiest moment took. Until then rounds may leave something.
const FULL: Duration = Duration::from_secs(90);

/// What is done behind an answer has so long to end.
const SETTLED: Duration = Duration::from_secs(30);

/// The count does not change for so long once nothing is going on.
const QUIET: Duration = Duration::from_millis(300);

/// Blocks and bytes in use.
fn live() -> [usize; 2] {
    [&BLOCKS, &BYTES].map(|count| count.load(Ordering::Relaxed))
}

/// What is in use once nothing is going on.
fn settled() -> [usize; 2] {
    let start = Instant::now();
    let (mut noted, mut since) = (live(), start);
    while since.elapsed() < QUIET && start.elapsed() < SETTLED {
        std::thread::park_timeout(Duration::from_millis(20));
        let now = live();
        if now != noted {
            (noted, since) = (now, Instant::now());
        }
    }
    noted
}

/// Runs a load's warm-up, and then rounds of `each` until one leaves nothing behind: what is kept for ever of steps or
/// sessions is left by every round.
fn flat(
    what: &str,
    warm_up: usize,
    each: usize,
    patience: Duration,
    mut load: impl FnMut(Range<usize>) -> Fallible,
) -> Fallible {
    load(0..warm_up)?;
    let (start, mut done) = (Instant::now(), warm_up);
    loop {
        let before = settled();
        load(done..done + each)?;
        done += each;
        let after = settled();
        let [blocks, bytes] = [0, 1].map(|i| after[i] as i64 - before[i] as i64);
        eprintln!("{what}: {blocks:+} blocks, {bytes:+} bytes after {each}, {done} in all");
        if blocks * ITEMS_A_BLOCK < each as i64 && bytes < BYTES_AN_ITEM * each as i64 {
            return Ok(());
        }
        if start.elapsed() >= patience {
            return Err(format!("{what}: each {each} leave {blocks} blocks, {bytes} bytes").into());
        }
    }
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
            server.serve(listener, std::future::pending(), Duration::ZERO).await;
            Ok::<_, String>(())
        });
    }
    run(&targets)
}

#[test]
fn asynchronous_steps() -> Fallible {
    with_cluster(2, |workers| {
        let replicas = Replicas::start(workers)?;
        flat("asynchronous steps", 300, 400, FULL, |steps| replicas.steps(steps))
    })
}

#[test]
fn sessions_come_and_go() -> Fallible {
    with_cluster(1, |workers| flat("sessions", 20, 100, FULL, |range| sessions(&workers[0], range.len())))
}

#[test]
fn many_clients_at_once() -> Fallible {
    let at_once = 20;
    with_cluster(1, |workers| {
        flat("sessions of clients at once", 3 * at_once, 10 * at_once, FULL, |range| {
            range.step_by(at_once).try_for_each(|_| clients_at_once(&workers[0], at_once))
        })
    })
}

#[test]
fn kinds_of_steps() -> Fallible {
    with_cluster(1, |workers| {
        let kinds = Kinds::open(&workers[0])?;
        // The master keeps no more plans than the warm-up needs.
        flat("kinds of steps", 300, 300, FULL, |range| kinds.steps(range))
    })
}

#[test]
fn what_is_kept_of_each_is_noticed() -> Fallible {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut kept = Vec::with_capacity(300);
    let found = flat("boxes", 0, 100, Duration::ZERO, |range| {
        kept.extend(range.map(Box::new));
        Ok(())
    });
    assert!(found.is_err(), "{} boxes", kept.len());
    Ok(())
}
