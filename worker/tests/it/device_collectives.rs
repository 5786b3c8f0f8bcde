//! Reductions of tensors in device memory by a library that replaces NCCL, which may be slow, missing, fail or hang. The
//! devices replace GPUs: their memory is host memory.

use crate::cluster::*;
use anabranch_worker::{Worker, WorkerConfig};
use device::collective::{Merge, Reduction};
use device::device_collectives::{CommunicatorPlace, DeviceCollectives, DeviceCommunicator};
use device::{Device, DeviceAttributes, DeviceMemory, DeviceTensor, Error, Processor, Transfer, Value};
use graph::passes::place_reductions;
use graph::{Code, DType, DeviceName, Graph, TaskName, Tensor};
use parking_lot::Mutex;
use proto::{Cluster, Status};
use std::any::Any;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The behaviour of the library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Works,
    /// Members never connect.
    HangsInConnect,
    /// Reductions never end.
    HangsInReduction,
    /// Communicators fail when a reduction has started.
    Fails,
}

/// The part of a member in a reduction, and the callback for the result.
type Part = (Tensor, Transfer<DeviceTensor>);

/// The communicators of all processes.
#[derive(Debug)]
struct Fabric {
    mode: Mutex<Mode>,
    /// The communicators by key: for each connected member, the number of times that it was queried, and its parts that
    /// wait.
    communicators: Mutex<BTreeMap<Vec<u8>, BTreeMap<usize, Side>>>,
    keys: AtomicUsize,
    reductions: AtomicUsize,
}

#[derive(Default)]
struct Side {
    asked: usize,
    parts: Vec<Part>,
    has_failed: bool,
}

impl std::fmt::Debug for Side {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Side({} parts)", self.parts.len())
    }
}

#[derive(Debug)]
struct Library {
    fabric: Arc<Fabric>,
    /// The name of the physical device; `None` if the library is missing.
    identity: Option<String>,
}

#[derive(Debug)]
struct Communicator {
    fabric: Arc<Fabric>,
    place: CommunicatorPlace,
}

impl DeviceCollectives for Library {
    fn identity(&self) -> device::Result<String> {
        self.identity.clone().ok_or_else(|| Error::new(Code::Unavailable, "no libnccl.so"))
    }

    fn can_reduce(&self, dtype: DType, reduction: Reduction) -> bool {
        dtype == DType::Float && reduction.merge == Merge::Add && !reduction.is_mean
    }

    fn create_key(&self) -> device::Result<Vec<u8>> {
        Ok(self.fabric.keys.fetch_add(1, Ordering::AcqRel).to_ne_bytes().to_vec())
    }

    fn connect(&self, place: &CommunicatorPlace) -> device::Result<Arc<dyn DeviceCommunicator>> {
        let mut communicators = self.fabric.communicators.lock();
        let sides = communicators.entry(place.key.clone()).or_default();
        assert!(sides.insert(place.rank, Side::default()).is_none(), "rank {} connects twice", place.rank);
        Ok(Arc::new(Communicator { fabric: self.fabric.clone(), place: place.clone() }))
    }
}

impl Communicator {
    /// Calls `then` with all members' sides of the communicator; fails if a member has aborted.
    fn with<T>(&self, then: impl FnOnce(&mut BTreeMap<usize, Side>) -> T) -> device::Result<T> {
        let mut communicators = self.fabric.communicators.lock();
        match communicators.get_mut(&self.place.key) {
            Some(sides) if !sides.values().any(|side| side.has_failed) => Ok(then(sides)),
            _ => Err(Error::new(Code::Aborted, "a member has aborted the communicator")),
        }
    }
}

impl DeviceCommunicator for Communicator {
    fn is_connected(&self) -> device::Result<bool> {
        let mode = *self.fabric.mode.lock();
        self.with(|sides| {
            let count = sides.len();
            let side = sides.entry(self.place.rank).or_default();
            side.asked += 1;
            // A slow library connects only after a few queries.
            mode != Mode::HangsInConnect && count == self.place.size && side.asked > 3
        })
    }

    fn all_reduce(&self, _: Reduction, tensor: DeviceTensor, done: Transfer<DeviceTensor>) {
        let mode = *self.fabric.mode.lock();
        let mut part = Some((host(&tensor), done));
        let complete = self.with(|sides| {
            sides.entry(self.place.rank).or_default().parts.extend(part.take());
            if mode == Mode::Fails {
                sides.entry(self.place.rank).or_default().has_failed = true;
            }
            let has_all = sides.len() == self.place.size && sides.values().all(|side| !side.parts.is_empty());
            let is_over = has_all && mode == Mode::Works;
            is_over.then(|| sides.values_mut().map(|side| side.parts.remove(0)).collect::<Vec<Part>>())
        });
        if let Some((_, done)) = part {
            return done(Err(Error::new(Code::Aborted, "the communicator is aborted")));
        }
        if let Ok(Some(parts)) = complete {
            self.fabric.reductions.fetch_add(1, Ordering::AcqRel);
            let sum = sum(parts.iter().map(|(tensor, _)| tensor));
            for (_, done) in parts {
                done(sum.clone().map(in_device));
            }
        }
    }

    fn abort(&self) {
        let mut failed = Vec::new();
        if let Some(side) = self
            .fabric
            .communicators
            .lock()
            .entry(self.place.key.clone())
            .or_default()
            .get_mut(&self.place.rank)
        {
            side.has_failed = true;
            failed = std::mem::take(&mut side.parts);
        }
        failed.into_iter().for_each(|(_, done)| done(Err(Error::new(Code::Aborted, "aborted"))));
    }
}

/// Adds up vectors of floats.
fn sum<'a>(tensors: impl Iterator<Item = &'a Tensor>) -> device::Result<Tensor> {
    let mut sums: Vec<f32> = Vec::new();
    for tensor in tensors {
        let values = tensor.values::<f32>()?;
        sums.resize(values.len(), 0.0);
        sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    Ok(Tensor::vector(&sums)?)
}

/// The processor of the device that replaces a GPU.
#[derive(Debug)]
struct TestProcessor {
    library: Library,
    downloads: AtomicUsize,
}

#[derive(Debug)]
struct Memory(Tensor);

impl DeviceMemory for Memory {
    fn len(&self) -> usize {
        self.0.num_bytes()
    }
}

fn in_device(tensor: Tensor) -> DeviceTensor {
    let (dtype, shape) = (tensor.dtype(), tensor.shape().clone());
    DeviceTensor { dtype, shape, memory: Arc::new(Memory(tensor)) }
}

fn host(tensor: &DeviceTensor) -> Tensor {
    let memory: &dyn Any = &*tensor.memory;
    memory.downcast_ref::<Memory>().map(|memory| memory.0.clone()).unwrap_or_else(|| Tensor::scalar(0.0f32))
}

impl Processor for TestProcessor {
    fn upload(&self, tensor: Tensor, done: Transfer<Value>) {
        done(Ok(in_device(tensor).into()));
    }

    fn download(&self, tensor: DeviceTensor, done: Transfer<Tensor>) {
        self.downloads.fetch_add(1, Ordering::AcqRel);
        done(Ok(host(&tensor)));
    }

    fn has_own_memory(&self) -> bool {
        true
    }

    fn collectives(&self) -> Option<&dyn DeviceCollectives> {
        Some(&self.library)
    }
}

/// A cluster of two tasks, each with a CPU device and a device that replaces a GPU.
struct TestCluster {
    fabric: Arc<Fabric>,
    processors: Vec<Arc<TestProcessor>>,
    tasks: Vec<Task>,
    session: Session,
}

impl TestCluster {
    async fn new(identities: [Option<&str>; 2]) -> Test<TestCluster> {
        let listeners = [listen()?, listen()?];
        let mut cluster = Cluster::new();
        for (task, listener) in (0..).zip(&listeners) {
            cluster.insert("w", task, &listener.local_addr()?.to_string())?;
        }
        let fabric = Arc::new(Fabric {
            mode: Mutex::new(Mode::Works),
            communicators: Mutex::default(),
            keys: AtomicUsize::new(1),
            reductions: AtomicUsize::new(0),
        });
        let (mut tasks, mut processors) = (Vec::new(), Vec::new());
        for ((task, listener), identity) in (0..).zip(listeners).zip(identities) {
            let name = TaskName::new("w", task);
            let library = Library { fabric: fabric.clone(), identity: identity.map(str::to_owned) };
            let processor = Arc::new(TestProcessor { library, downloads: AtomicUsize::new(0) });
            let attributes = DeviceAttributes {
                name: DeviceName::new(&name, "GPU", 0),
                memory_limit: 1 << 30,
                incarnation: u64::from(task) + 100,
                physical_description: String::new(),
            };
            let gpu = Device::new(attributes, processor.clone(), kernels::table());
            let cpu = kernels::device(DeviceName::new(&name, "CPU", 0), u64::from(task) + 1, 1 << 28);
            let config = WorkerConfig {
                threads: 2,
                collective_timeout: Duration::from_millis(1500),
                ..WorkerConfig::new(name, cluster.clone())
            };
            let devices: Vec<Arc<Device>> = vec![Arc::new(cpu), Arc::new(gpu)];
            tasks.push(Task::serve_with(listener, || Worker::with_devices(config, devices))?);
            processors.push(processor);
        }
        let session = Session::mixed(&tasks).await?;
        Ok(TestCluster { fabric, processors, tasks, session })
    }

    async fn register(&self, graph: &Graph) -> Test<Registered> {
        self.session.register(graph, &["x"], &["y", "z"], &["b_1", "b_2"]).await
    }

    /// Runs a step with two sums: `x + [1, 2]` and `x + [3, 4]`.
    async fn run(&self, registered: &Registered, step: i64) -> Test<Result<Vec<Tensor>, Status>> {
        let x = Tensor::vector(&[step as f32, 10.0])?;
        let outcomes = self.session.outcomes(registered, step, &[("x:0", x)], &["y:0", "z:0"]).await;
        let mut fetched: Vec<(Arc<str>, Tensor)> = Vec::new();
        for outcome in outcomes.into_values() {
            match outcome {
                Ok(outcome) => fetched.extend(outcome.recv),
                Err(status) => return Ok(Err(status)),
            }
        }
        fetched.sort_by(|a, b| a.0.cmp(&b.0));
        Ok(Ok(fetched.into_iter().map(|(_, value)| value).collect()))
    }

    async fn check(&self, registered: &Registered, step: i64) -> Test {
        let values = self.run(registered, step).await??;
        let x = step as f32;
        assert_eq!(values, [Tensor::vector(&[x + 1.0, 12.0])?, Tensor::vector(&[x + 3.0, 14.0])?]);
        Ok(())
    }

    fn reductions(&self) -> usize {
        self.fabric.reductions.load(Ordering::Acquire)
    }

    fn downloads(&self) -> Vec<usize> {
        self.processors.iter().map(|processor| processor.downloads.load(Ordering::Acquire)).collect()
    }

    fn set(&self, mode: Mode) {
        *self.fabric.mode.lock() = mode;
    }
}

/// Returns the graph of two sums over both tasks; the reductions have the places that a master would assign.
fn graph(hint: &str) -> Test<Graph> {
    let sum = |name: &str, input: &str, task: usize, key: usize| {
        format!(
            "{name} = CollectiveReduce[T=float, group_size=2, group_key=1, instance_key={key}, merge_op=\"Add\", \
             final_op=\"Id\", subdiv_offsets=[0], communication_hint=\"{hint}\"]({input}) \
             @\"/job:w/replica:0/task:{task}/device:GPU:0\"\n"
        )
    };
    let text = [
        "x = Placeholder[dtype=float, shape=<2>] @\"/job:w/replica:0/task:0/device:CPU:0\"\n".to_owned(),
        "c = Const[dtype=float, value=float<2>{1.0, 2.0}] @\"/job:w/replica:0/task:1/device:CPU:0\"\n"
            .to_owned(),
        "d = Const[dtype=float, value=float<2>{3.0, 4.0}] @\"/job:w/replica:0/task:1/device:CPU:0\"\n"
            .to_owned(),
        sum("a_2", "x", 0, 8),
        sum("a_1", "x", 0, 7),
        sum("b_1", "c", 1, 7),
        sum("b_2", "d", 1, 8),
        "y = Identity[T=float](a_1) @\"/job:w/replica:0/task:0/device:CPU:0\"\n".to_owned(),
        "z = Identity[T=float](a_2) @\"/job:w/replica:0/task:0/device:CPU:0\"\n".to_owned(),
    ];
    let mut graph = Graph::from_text(&text.concat())?;
    place_reductions(&mut graph)?;
    Ok(graph)
}

const TWO: [Option<&str>; 2] = [Some("machine/gpu 0"), Some("machine/gpu 1")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_are_reduced_in_device_memory_and_later_steps_make_no_calls() -> Test {
    let cluster = TestCluster::new(TWO).await?;
    let registered = cluster.register(&graph("auto")?).await?;
    cluster.check(&registered, 1).await?;
    cluster.tasks.iter().for_each(|task| task.calls.lock().clear());
    let before = cluster.downloads();
    for step in 2..20 {
        cluster.check(&registered, step).await?;
    }
    assert_eq!(cluster.reductions(), 2 * 19);
    // The reduced tensors stay on the device: only the two fetched tensors are copied to host memory.
    assert_eq!(cluster.downloads(), [before[0] + 2 * 18, before[1]]);
    let calls: Vec<String> = cluster.tasks.iter().flat_map(|task| task.calls.lock().clone()).collect();
    assert!(!calls.iter().any(|call| call.contains("Complete")), "{calls:?}");
    assert_eq!(cluster.fabric.communicators.lock().len(), 1);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_go_through_host_memory_if_a_member_has_no_library() -> Test {
    let cluster = TestCluster::new([TWO[0], None]).await?;
    let registered = cluster.register(&graph("auto")?).await?;
    for step in 1..5 {
        cluster.check(&registered, step).await?;
    }
    assert_eq!((cluster.reductions(), cluster.fabric.keys.load(Ordering::Acquire)), (0, 1));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_device_twice_is_refused_before_the_library_is_called() -> Test {
    let cluster = TestCluster::new([TWO[0], TWO[0]]).await?;
    let registered = cluster.register(&graph("auto")?).await?;
    for step in 1..4 {
        cluster.check(&registered, step).await?;
    }
    assert_eq!(cluster.fabric.keys.load(Ordering::Acquire), 1);
    // A program that demands the library gets an error with the reason.
    let registered = cluster.register(&graph("nccl")?).await?;
    let error = cluster.run(&registered, 9).await?.err().ok_or("the step succeeded")?;
    assert!(error.message.contains("are one physical device, machine/gpu 0"), "{error:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_program_chooses_host_memory_by_the_hint() -> Test {
    let cluster = TestCluster::new(TWO).await?;
    let registered = cluster.register(&graph("ring")?).await?;
    cluster.check(&registered, 1).await?;
    assert_eq!(cluster.reductions(), 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_library_that_hangs_or_fails_ends_the_step_and_the_next_one_works() -> Test {
    let cluster = TestCluster::new(TWO).await?;
    let registered = cluster.register(&graph("auto")?).await?;
    let expected = [
        (Mode::HangsInConnect, "waits for the members to connect in epoch "),
        (Mode::HangsInReduction, "a member has not started its part in epoch "),
        (Mode::Fails, "the next step creates a new one"),
    ];
    for (round, (mode, text)) in (1..).zip(expected) {
        cluster.set(mode);
        let start = Instant::now();
        let error = cluster.run(&registered, 10 * round).await?.err().ok_or("the step succeeded")?;
        assert!(start.elapsed() < Duration::from_secs(5), "{mode:?} took {:?}", start.elapsed());
        assert!(error.message.contains(text), "{mode:?}: {error:?}");
        cluster.set(Mode::Works);
        for step in 1..4 {
            cluster.check(&registered, 10 * round + step).await?;
        }
    }
    Ok(())
}
