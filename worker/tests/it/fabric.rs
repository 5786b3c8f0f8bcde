//! Large tensors over a fabric in software: its adapters copy bytes between the tasks of this process, whose links are over
//! TCP.

use crate::cluster::*;
use anabranch_worker::{Borrower, Fabric, Lender, Registration, RemoteMemory, Transport};
use graph::{Buffer, Graph, Tensor};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The behaviour of the network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Works,
    /// Reads fail.
    FailsToRead,
    /// No memory can be registered.
    FailsToRegister,
    /// The receiving end cannot connect.
    FailsToConnect,
    /// Reads last until the link ends.
    Hangs,
}

/// The network that connects the adapters, with the memory that may be read, by key.
#[derive(Debug)]
struct Network {
    mode: Mutex<Mode>,
    memory: Mutex<BTreeMap<u64, Arc<Buffer>>>,
    next_key: AtomicU64,
    reads: AtomicU64,
}

#[derive(Debug)]
struct Adapter {
    network: Arc<Network>,
    kind: &'static str,
}

#[derive(Debug)]
struct SendingEnd {
    network: Arc<Network>,
    number: u64,
}

#[derive(Debug)]
struct ReceivingEnd {
    network: Arc<Network>,
    is_closed: AtomicBool,
}

#[derive(Debug)]
struct Registered {
    network: Arc<Network>,
    remote: RemoteMemory,
}

impl Network {
    fn new(mode: Mode) -> Arc<Network> {
        let numbers = [1, 0].map(AtomicU64::new);
        let [next_key, reads] = numbers;
        Arc::new(Network { mode: Mutex::new(mode), memory: Mutex::default(), next_key, reads })
    }

    fn check(&self, fault: Mode) -> io::Result<()> {
        match *self.mode.lock() == fault {
            true => Err(io::Error::other(format!("the network {fault:?}"))),
            false => Ok(()),
        }
    }

    fn reads(&self) -> u64 {
        self.reads.load(Ordering::Acquire)
    }
}

impl Fabric for Adapter {
    fn kind(&self) -> &'static str {
        self.kind
    }

    fn lender(&self) -> io::Result<(Box<dyn Lender>, String)> {
        let number = self.network.next_key.fetch_add(1, Ordering::AcqRel);
        let end = SendingEnd { network: self.network.clone(), number };
        Ok((Box::new(end), format!("end {number}")))
    }

    fn borrower(&self, offer: &str) -> io::Result<(Arc<dyn Borrower>, String)> {
        self.network.check(Mode::FailsToConnect)?;
        let number = offer.strip_prefix("end ").ok_or(io::ErrorKind::InvalidData)?;
        let end = ReceivingEnd { network: self.network.clone(), is_closed: AtomicBool::new(false) };
        Ok((Arc::new(end), format!("connected to {number}")))
    }
}

impl Lender for SendingEnd {
    fn complete(&self, answer: &str) -> io::Result<()> {
        match answer == format!("connected to {}", self.number) {
            true => Ok(()),
            false => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    fn register(&self, buffer: &Arc<Buffer>) -> io::Result<Box<dyn Registration>> {
        self.network.check(Mode::FailsToRegister)?;
        let key = self.network.next_key.fetch_add(1, Ordering::AcqRel);
        self.network.memory.lock().insert(key, buffer.clone());
        let remote = RemoteMemory { address: buffer.as_slice().as_ptr() as u64, key };
        Ok(Box::new(Registered { network: self.network.clone(), remote }))
    }
}

impl Registration for Registered {
    fn remote(&self) -> RemoteMemory {
        self.remote
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.network.memory.lock().remove(&self.remote.key);
    }
}

impl Borrower for ReceivingEnd {
    fn read(&self, from: RemoteMemory, into: &mut [u8], deadline: Instant) -> io::Result<()> {
        self.network.check(Mode::FailsToRead)?;
        while *self.network.mode.lock() == Mode::Hangs && !self.is_closed.load(Ordering::Acquire) {
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let memory = self.network.memory.lock().get(&from.key).cloned();
        let memory = memory.ok_or_else(|| io::Error::other("the memory is not registered"))?;
        if memory.as_slice().as_ptr() as u64 != from.address || memory.len() != into.len() {
            return Err(io::Error::other("the memory is elsewhere"));
        }
        into.copy_from_slice(memory.as_slice());
        self.network.reads.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }
}

/// Starts two tasks with links over TCP, with fabrics of these kinds.
fn tasks(network: &Arc<Network>, kinds: [Option<&'static str>; 2]) -> Test<Vec<Task>> {
    let next = AtomicU64::new(0);
    cluster(2, |config| {
        config.transport = Transport::Tcp;
        let kind = kinds[next.fetch_add(1, Ordering::AcqRel) as usize];
        let adapter = kind.map(|kind| Arc::new(Adapter { network: network.clone(), kind }));
        config.fabric = adapter.map(|adapter| adapter as Arc<dyn Fabric>);
    })
}

/// Returns the graph of a round trip from the first task to the second and back.
fn round_trip() -> Test<Graph> {
    Ok(Graph::from_text(
        "p = Placeholder[dtype=float, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         a = Neg[T=float](p) @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
         b = Neg[T=float](a) @\"/job:w/replica:0/task:1/device:CPU:0\"\n\
         y = Neg[T=float](b) @\"/job:w/replica:0/task:0/device:CPU:0\"\n",
    )?)
}

fn numbers(count: usize, first: f32) -> Test<Tensor> {
    Ok(Tensor::vector(&(0..count).map(|i| first + (i % 1000) as f32).collect::<Vec<f32>>())?)
}

/// Runs round trips of a tensor until `enough` returns true, at least three.
async fn run(session: &Session, count: usize, steps: &mut i64, enough: impl Fn() -> bool) -> Test {
    let registered = session.register(&round_trip()?, &["p"], &["y"], &[]).await?;
    let deadline = Instant::now() + LONG;
    for round in 1.. {
        *steps += 1;
        let value = numbers(count, *steps as f32)?;
        let back = session.run(&registered, *steps, &[("p:0", value.clone())], &["y:0"]).await?;
        let expected: Vec<f32> = value.values::<f32>()?.iter().map(|x| -x).collect();
        assert!(back == [Tensor::vector(&expected)?], "in step {steps}");
        if round >= 3 && enough() {
            return Ok(());
        }
        assert!(Instant::now() < deadline, "not enough within {LONG:?}");
    }
    Ok(())
}

const LARGE: usize = 1 << 18;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_tensors_are_read_by_the_fabric_and_small_ones_are_sent() -> Test {
    let network = Network::new(Mode::Works);
    let tasks = tasks(&network, [Some("software"); 2])?;
    let session = Session::remote(&tasks).await?;
    let mut steps = 0;
    run(&session, LARGE, &mut steps, || network.reads() >= 8).await?;
    let before = network.reads();
    run(&session, 1000, &mut steps, || true).await?;
    assert_eq!(network.reads(), before);
    // All lent memory is returned.
    let deadline = Instant::now() + LONG;
    while !network.memory.lock().is_empty() {
        assert!(Instant::now() < deadline, "memory is still lent");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_without_a_common_fabric_use_tcp() -> Test {
    for kinds in [[Some("software"), None], [None, Some("software")], [Some("software"), Some("other")]] {
        let network = Network::new(Mode::Works);
        let tasks = tasks(&network, kinds)?;
        let session = Session::remote(&tasks).await?;
        run(&session, LARGE, &mut 0, || tasks.iter().all(|task| task.worker.links() == (1, 1))).await?;
        run(&session, LARGE, &mut 100, || true).await?;
        assert_eq!(network.reads(), 0, "{kinds:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fabric_that_fails_gives_way_to_tcp_within_the_step() -> Test {
    for fault in [Mode::FailsToRead, Mode::FailsToRegister, Mode::FailsToConnect] {
        let network = Network::new(fault);
        let tasks = tasks(&network, [Some("software"); 2])?;
        let session = Session::remote(&tasks).await?;
        let mut steps = 0;
        run(&session, LARGE, &mut steps, || tasks.iter().all(|task| task.worker.links() == (1, 1))).await?;
        run(&session, LARGE, &mut steps, || true).await?;
        assert_eq!((network.reads(), network.memory.lock().len()), (0, 0), "{fault:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_peer_ends_its_reads_and_returns_its_memory() -> Test {
    let network = Network::new(Mode::Works);
    let mut tasks = tasks(&network, [Some("software"); 2])?;
    let session = Session::remote(&tasks).await?;
    let mut steps = 0;
    run(&session, LARGE, &mut steps, || network.reads() >= 8).await?;
    *network.mode.lock() = Mode::Hangs;
    let registered = session.register(&round_trip()?, &["p"], &["y"], &[]).await?;
    let feeds = [("p:0", numbers(LARGE, 0.5)?)];
    let runs = registered.parts.keys().map(|task| {
        let run = session.part(&registered, task, 1000, &feeds, &["y:0"]);
        let link = session.links[task].clone();
        async move { link.run_graph(run).await }
    });
    let failing = futures::future::join_all(runs);
    let ending = async {
        let deadline = Instant::now() + LONG;
        while network.memory.lock().is_empty() && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The second task, which reads the tensor, ends.
        drop(tasks.pop());
    };
    let (outcomes, ()) = tokio::join!(failing, ending);
    assert!(outcomes.iter().any(Result::is_err), "the step succeeded");
    let deadline = Instant::now() + LONG;
    while !network.memory.lock().is_empty() {
        assert!(Instant::now() < deadline, "memory is still lent to a task that has ended");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    Ok(())
}
