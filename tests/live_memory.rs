//! Steps, sessions, clients and distinct steps leave no allocations behind. A global allocator counts the live blocks
//! while the servers of a cluster run in this process. A leak into a growing table, which is a single block, is found
//! by `tests/session_load.rs` instead.

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
use support::load::{DistinctSteps, Replicas, clients_at_once, sessions};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// The system's allocator, which counts live blocks and bytes.
struct CountingAllocator;

static BLOCKS: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);

// SAFETY: each request is passed unchanged to the system's allocator. The trait's default methods call `alloc` and
// `dealloc`.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        BLOCKS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees the contract of `GlobalAlloc`, which is the same for the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        BLOCKS.fetch_sub(1, Ordering::Relaxed);
        BYTES.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller guarantees the contract of `GlobalAlloc`, which is the same for the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// The lock that the running test holds: the counts are those of the whole process, so only one load may run at a time.
static ONE_LOAD: Mutex<()> = Mutex::new(());

/// A round is free of leaks if it leaves less than one block per `ITEMS_PER_BLOCK` operations. A leaked step, plan or
/// session takes at least one block; the factor of 4 also finds leaks that happen in a quarter of the operations only.
const ITEMS_PER_BLOCK: i64 = 4;
/// A round is free of leaks if it leaves fewer than `BYTES_PER_ITEM` bytes per operation. The smallest object that
/// could leak, the state of a step in a worker, has more than 128 bytes.
const BYTES_PER_ITEM: i64 = 128;

/// Longest time until a round of operations must leave no memory behind. Each HTTP/2 connection keeps a table of up to
/// 4,096 bytes of headers in each direction. Each answer adds its date to the table, so the tables are full after at
/// most 63 seconds. Buffers also keep the size of the largest message so far.
const WARM_UP: Duration = Duration::from_secs(90);

/// Longest wait for the deferred work of a round to end.
const SETTLE_DEADLINE: Duration = Duration::from_secs(30);

/// Time without a change of the counts of blocks and bytes after which all deferred work counts as ended.
const QUIET: Duration = Duration::from_millis(300);

/// Returns the numbers of blocks and bytes in use.
fn live() -> [usize; 2] {
    [&BLOCKS, &BYTES].map(|count| count.load(Ordering::Relaxed))
}

/// Waits until the counts no longer change; returns the numbers of blocks and bytes in use.
fn settled() -> [usize; 2] {
    let start = Instant::now();
    let (mut last, mut since) = (live(), start);
    while since.elapsed() < QUIET && start.elapsed() < SETTLE_DEADLINE {
        std::thread::park_timeout(Duration::from_millis(20));
        let now = live();
        if now != last {
            (last, since) = (now, Instant::now());
        }
    }
    last
}

/// Runs `warm_up` operations of a load, and then rounds of `each` operations until a round leaves nothing behind. A leak
/// would leave memory behind in every round. `name` is the load's name in messages.
fn check_no_leak(
    name: &str,
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
        eprintln!("{name}: {blocks:+} blocks, {bytes:+} bytes after {each}, {done} in all");
        if blocks * ITEMS_PER_BLOCK < each as i64 && bytes < BYTES_PER_ITEM * each as i64 {
            return Ok(());
        }
        if start.elapsed() >= patience {
            return Err(format!("{name}: each {each} leave {blocks} blocks, {bytes} bytes").into());
        }
    }
}

/// Serves a parameter server and workers in this process, and calls `run` with the workers' session targets.
fn with_cluster(workers: u32, run: impl FnOnce(&[String]) -> Fallible) -> Fallible {
    let _guard = ONE_LOAD.lock().unwrap_or_else(PoisonError::into_inner);
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
fn asynchronous_steps_leak_nothing() -> Fallible {
    with_cluster(2, |workers| {
        let replicas = Replicas::start(workers)?;
        check_no_leak("asynchronous steps", 300, 400, WARM_UP, |steps| replicas.steps(steps))
    })
}

#[test]
fn sessions_leak_nothing() -> Fallible {
    with_cluster(1, |workers| {
        check_no_leak("sessions", 20, 100, WARM_UP, |range| sessions(&workers[0], range.len()))
    })
}

#[test]
fn concurrent_clients_leak_nothing() -> Fallible {
    let at_once = 20;
    with_cluster(1, |workers| {
        check_no_leak("sessions of clients at once", 3 * at_once, 10 * at_once, WARM_UP, |range| {
            range.step_by(at_once).try_for_each(|_| clients_at_once(&workers[0], at_once))
        })
    })
}

#[test]
fn distinct_steps_leak_nothing() -> Fallible {
    with_cluster(1, |workers| {
        let distinct = DistinctSteps::open(&workers[0])?;
        // The warm-up fills the master's plan cache.
        check_no_leak("distinct steps", 300, 300, WARM_UP, |range| distinct.steps(range))
    })
}

#[test]
fn leak_of_one_block_per_operation_is_found() -> Fallible {
    let _guard = ONE_LOAD.lock().unwrap_or_else(PoisonError::into_inner);
    let mut leaked = Vec::with_capacity(300);
    let found = check_no_leak("boxes", 0, 100, Duration::ZERO, |range| {
        leaked.extend(range.map(Box::new));
        Ok(())
    });
    assert!(found.is_err(), "{} boxes", leaked.len());
    Ok(())
}
