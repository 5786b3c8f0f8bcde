//! Tests of device memory that is shared with devices of other processes over a link. A test device replaces
//! the GPU: its memory is host memory, which other processes map by descriptors as they map a GPU's memory.

use crate::cluster::*;
use anabranch_worker::{Transport, Worker, WorkerConfig};
use device::Value;
use device::peer_buffer::{BorrowedMemory, MIN_SHARED_BYTES, PeerBuffer};
use device::shared_block::{MemoryKind, SharedBlock, Sharing};
use device::shared_memory::{PeerMemory, SharedMemory};
use device::{Device, DeviceAttributes, DeviceMemory, DeviceTensor, Processor, Transfer};
use graph::tensor::Region;
use graph::{DeviceName, Graph, TaskName, Tensor};
use proto::Cluster;
use std::any::Any;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Least number of round trips in one call of [`TestCluster::run_round_trips`].
const MIN_ROUNDS: usize = 5;

/// The numbers of operations that a [`TestProcessor`] has performed.
#[derive(Debug, Default)]
struct OperationCounts {
    shared: AtomicUsize,
    /// Number of shared tensors whose memory has not been returned.
    outstanding: AtomicUsize,
    borrowed: AtomicUsize,
    downloaded: AtomicUsize,
}

fn count(of: &AtomicUsize) -> usize {
    of.load(Ordering::Acquire)
}

/// The processor of the device that replaces a GPU.
#[derive(Debug)]
struct TestProcessor {
    can_access: AtomicBool,
    /// Set while the device has memory for copies that it shares.
    has_memory: AtomicBool,
    counts: Arc<OperationCounts>,
}

#[derive(Debug)]
struct Memory(Tensor);

impl DeviceMemory for Memory {
    fn len(&self) -> usize {
        self.0.num_bytes()
    }
}

/// The memory of a copy that the device shares: the first `len` bytes of a shared block.
#[derive(Debug)]
struct Window {
    block: Block,
    len: usize,
    counts: Arc<OperationCounts>,
}

impl DeviceMemory for Window {
    fn len(&self) -> usize {
        self.len
    }

    fn shared_block(&self) -> Option<&dyn SharedBlock> {
        Some(&self.block)
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.counts.outstanding.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A shared block in host memory that claims to be in device memory.
#[derive(Debug)]
struct Block(SharedMemory);

impl SharedBlock for Block {
    fn sharing(&self) -> &Sharing {
        self.0.sharing()
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn descriptor(&self) -> io::Result<OwnedFd> {
        self.0.descriptor()
    }

    fn memory_kind(&self) -> MemoryKind {
        MemoryKind::Device
    }
}

impl TestProcessor {
    fn new() -> TestProcessor {
        let [can_access, has_memory] = [true; 2].map(AtomicBool::new);
        TestProcessor { can_access, has_memory, counts: Arc::default() }
    }

    /// Returns the device `GPU:0` of a task, with this processor.
    fn device(self: &Arc<TestProcessor>, task: &TaskName) -> Device {
        let attributes = DeviceAttributes {
            name: DeviceName::new(task, "GPU", 0),
            memory_limit: 1 << 30,
            incarnation: u64::from(task.task) + 100,
            physical_description: String::new(),
        };
        Device::new(attributes, self.clone(), kernels::table())
    }

    fn read(&self, tensor: &DeviceTensor) -> device::Result<Tensor> {
        let memory: &dyn Any = &*tensor.memory;
        if let Some(Memory(tensor)) = memory.downcast_ref() {
            return Ok(tensor.clone());
        }
        let borrowed = BorrowedMemory::of(&*tensor.memory);
        let borrowed = borrowed.ok_or_else(|| device::Error::internal("it is no memory of this device"))?;
        let window = borrowed.window();
        if !self.can_access(window) {
            borrowed.report_no_access();
            return Err(device::Error::internal("the block is not accessible"));
        }
        let mapped = PeerMemory::map(window.descriptor(), window.len());
        let mapped = mapped.map_err(|error| device::Error::internal(error.to_string()))?;
        self.counts.borrowed.fetch_add(1, Ordering::AcqRel);
        let bytes = &mapped.bytes()[..tensor.memory.len()];
        Ok(Tensor::from_bytes(tensor.dtype, tensor.shape.clone(), bytes)?)
    }
}

fn on_device(tensor: Tensor) -> Value {
    let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
    DeviceTensor { dtype, shape, memory: Arc::new(Memory(tensor)) }.into()
}

impl Processor for TestProcessor {
    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        done(Ok(on_device(tensor)));
    }

    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>) {
        self.counts.downloaded.fetch_add(1, Ordering::AcqRel);
        done(self.read(&tensor));
    }

    fn can_adopt(&self) -> bool {
        true
    }

    fn adopt(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        let adopted = self.read(&tensor).map(on_device);
        drop(tensor);
        done(adopted);
    }

    fn export(&self, tensor: DeviceTensor, done: Transfer<Value>) {
        if !self.has_memory.load(Ordering::Acquire) {
            return self.download(tensor, Box::new(move |tensor| done(tensor.map(Value::from))));
        }
        let shared = self.read(&tensor).and_then(|tensor| {
            let bytes = tensor.bytes()?;
            let failed = |error: io::Error| device::Error::internal(error.to_string());
            let mut memory = SharedMemory::new(bytes.len().next_power_of_two()).map_err(failed)?;
            memory.bytes_mut().unwrap_or_default()[..bytes.len()].copy_from_slice(bytes);
            let counts = self.counts.clone();
            counts.shared.fetch_add(1, Ordering::AcqRel);
            counts.outstanding.fetch_add(1, Ordering::AcqRel);
            let window = Window { block: Block(memory), len: bytes.len(), counts };
            let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
            Ok(DeviceTensor { dtype, shape, memory: Arc::new(window) }.into())
        });
        done(shared);
    }

    fn can_access(&self, window: &PeerBuffer) -> bool {
        self.can_access.load(Ordering::Acquire) && PeerMemory::map(window.descriptor(), window.len()).is_ok()
    }

    fn has_own_memory(&self) -> bool {
        true
    }
}

/// A cluster of two tasks, each with a CPU device and a device that replaces a GPU.
struct TestCluster {
    tasks: Vec<Task>,
    test_devices: Vec<Arc<TestProcessor>>,
    session: Session,
    steps: AtomicI64,
}

impl TestCluster {
    async fn new(transport: Transport, can_access: bool) -> Test<TestCluster> {
        let listeners = [listen()?, listen()?];
        let mut cluster = Cluster::new();
        for (task, listener) in (0..).zip(&listeners) {
            cluster.insert("w", task, &listener.local_addr()?.to_string())?;
        }
        let (mut tasks, mut test_devices) = (Vec::new(), Vec::new());
        for (task, listener) in (0..).zip(listeners) {
            let name = TaskName::new("w", task);
            let test_device = Arc::new(TestProcessor::new());
            test_device.can_access.store(can_access, Ordering::Release);
            let cpu = kernels::device(DeviceName::new(&name, "CPU", 0), u64::from(task) + 1, 1 << 28);
            let gpu = test_device.device(&name);
            let config = WorkerConfig { threads: 2, transport, ..WorkerConfig::new(name, cluster.clone()) };
            let devices: Vec<Arc<Device>> = vec![Arc::new(cpu), Arc::new(gpu)];
            tasks.push(Task::serve_with(listener, || Worker::with_devices(config, devices))?);
            test_devices.push(test_device);
        }
        let session = Session::mixed(&tasks).await?;
        Ok(TestCluster { tasks, test_devices, session, steps: AtomicI64::new(0) })
    }

    /// Sends `value` from the first task's GPU to the second's and back, at least [`MIN_ROUNDS`] times and
    /// until `enough` returns true.
    async fn run_round_trips(&self, value: &Tensor, enough: impl Fn() -> bool) -> Test {
        let graph = Graph::from_text(&format!(
            "p = Placeholder[dtype={0}, shape=<*>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n\
             a = Identity[T={0}](p) @\"/job:w/replica:0/task:0/device:GPU:0\"\n\
             b = Identity[T={0}](a) @\"/job:w/replica:0/task:1/device:GPU:0\"\n\
             c = Identity[T={0}](b) @\"/job:w/replica:0/task:0/device:GPU:0\"\n\
             y = Identity[T={0}](c) @\"/job:w/replica:0/task:0/device:CPU:0\"\n",
            value.dtype()
        ))?;
        let registered = self.session.register(&graph, &["p"], &["y"], &[]).await?;
        let deadline = Instant::now() + LONG;
        for round in 1.. {
            let step = self.steps.fetch_add(1, Ordering::Relaxed);
            let back = self.session.run(&registered, step, &[("p:0", value.clone())], &["y:0"]).await?;
            assert!(back == [value.clone()], "in step {step}");
            if round >= MIN_ROUNDS && enough() {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(format!("not enough within {LONG:?}").into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    fn counts(&self, which: fn(&OperationCounts) -> &AtomicUsize) -> Vec<usize> {
        self.test_devices.iter().map(|test_device| count(which(&test_device.counts))).collect()
    }
}

fn numbers(count: usize) -> Test<Tensor> {
    Ok(Tensor::vector(&(0..count as i32).map(|i| i as f32).collect::<Vec<_>>())?)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn device_tensors_are_shared_once_access_is_known() -> Test {
    let cluster = TestCluster::new(Transport::Shm, true).await?;
    let several = |counts: Vec<usize>| counts.iter().all(|count| *count >= 3);
    cluster
        .run_round_trips(&numbers(MIN_SHARED_BYTES / 4)?, || {
            several(cluster.counts(|counts| &counts.borrowed))
        })
        .await?;
    // Both devices are known to have access: only the fetched value is copied to the host.
    let before = cluster.counts(|counts| &counts.downloaded);
    let shared = cluster.counts(|counts| &counts.shared);
    cluster.run_round_trips(&numbers(MIN_SHARED_BYTES / 4 + 1)?, || true).await?;
    assert_eq!(cluster.counts(|counts| &counts.downloaded), [before[0] + MIN_ROUNDS, before[1]]);
    assert_eq!(cluster.counts(|counts| &counts.shared), [shared[0] + MIN_ROUNDS, shared[1] + MIN_ROUNDS]);
    // All shared memory must be returned before the deadline.
    let deadline = Instant::now() + LONG;
    while cluster.counts(|counts| &counts.outstanding) != [0, 0] {
        assert!(
            Instant::now() < deadline,
            "{:?} are not returned",
            cluster.counts(|counts| &counts.outstanding)
        );
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert!(cluster.tasks.iter().all(|task| task.worker.links() == (1, 1)), "a link broke");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_or_inaccessible_tensors_are_sent_through_host_memory() -> Test {
    let cluster = TestCluster::new(Transport::Shm, true).await?;
    cluster.run_round_trips(&numbers(MIN_SHARED_BYTES / 4 - 1)?, || true).await?;
    cluster.run_round_trips(&Tensor::scalar(1.0f32), || true).await?;
    assert_eq!(cluster.counts(|counts| &counts.shared), [0, 0]);
    // A device without access is queried once.
    let cluster = TestCluster::new(Transport::Shm, false).await?;
    cluster
        .run_round_trips(&numbers(MIN_SHARED_BYTES)?, || cluster.counts(|counts| &counts.shared) == [1, 1])
        .await?;
    cluster
        .run_round_trips(&numbers(MIN_SHARED_BYTES)?, || {
            cluster.counts(|counts| &counts.outstanding) == [0, 0]
        })
        .await?;
    assert_eq!(cluster.counts(|counts| &counts.shared), [1, 1]);
    assert_eq!(cluster.counts(|counts| &counts.borrowed), [0, 0]);
    // No query is sent if the links share no memory or there are no links.
    for transport in [Transport::Tcp, Transport::Grpc] {
        let cluster = TestCluster::new(transport, true).await?;
        cluster.run_round_trips(&numbers(MIN_SHARED_BYTES)?, || true).await?;
        assert_eq!(cluster.counts(|counts| &counts.shared), [0, 0], "{transport}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_device_without_memory_for_copies_shares_once_it_has_some() -> Test {
    let cluster = TestCluster::new(Transport::Shm, true).await?;
    cluster
        .test_devices
        .iter()
        .for_each(|test_device| test_device.has_memory.store(false, Ordering::Release));
    let start = Instant::now();
    cluster.run_round_trips(&numbers(MIN_SHARED_BYTES / 4)?, || true).await?;
    let downloads: usize = cluster.counts(|counts| &counts.downloaded).into_iter().sum();
    // Each device makes a copy for a query once per second.
    let tries = 2 * (1 + usize::try_from(start.elapsed().as_secs())?);
    assert!(downloads <= 3 * MIN_ROUNDS + tries, "{downloads} copies to the host");
    cluster.test_devices.iter().for_each(|test_device| test_device.has_memory.store(true, Ordering::Release));
    let borrowed = || cluster.counts(|counts| &counts.borrowed).iter().all(|count| *count >= 1);
    cluster.run_round_trips(&numbers(MIN_SHARED_BYTES / 4)?, borrowed).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shared_memory_is_abandoned_with_the_link_and_steps_use_host_memory() -> Test {
    let cluster = TestCluster::new(Transport::Shm, true).await?;
    let borrowed = || cluster.counts(|counts| &counts.borrowed).iter().all(|count| *count >= 1);
    cluster.run_round_trips(&numbers(MIN_SHARED_BYTES)?, borrowed).await?;
    cluster.tasks[1].worker.close_links();
    let shared = |cluster: &TestCluster| cluster.counts(|counts| &counts.shared);
    let end = Instant::now() + LONG;
    while cluster.tasks[0].worker.links() != (0, 0) || cluster.counts(|counts| &counts.outstanding) != [0, 0]
    {
        assert!(Instant::now() < end, "the links are still there");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let before = shared(&cluster);
    cluster.run_round_trips(&numbers(MIN_SHARED_BYTES)?, || true).await?;
    assert_eq!(shared(&cluster), before);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn losing_access_fails_one_step_and_later_tensors_use_host_memory() -> Test {
    let cluster = TestCluster::new(Transport::Shm, true).await?;
    let borrowed = || cluster.counts(|counts| &counts.borrowed).iter().all(|count| *count >= 1);
    cluster.run_round_trips(&numbers(MIN_SHARED_BYTES)?, borrowed).await?;
    cluster.test_devices[1].can_access.store(false, Ordering::Release);
    let failed = cluster
        .run_round_trips(&numbers(MIN_SHARED_BYTES)?, || true)
        .await
        .err()
        .ok_or("the step succeeded")?
        .to_string();
    assert!(failed.contains("the block is not accessible"), "{failed}");
    let before = cluster.counts(|counts| &counts.shared);
    cluster.run_round_trips(&numbers(MIN_SHARED_BYTES)?, || true).await?;
    assert_eq!(
        cluster.counts(|counts| &counts.shared),
        [before[0], before[1] + MIN_ROUNDS],
        "the other direction still has access"
    );
    Ok(())
}
