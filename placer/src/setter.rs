//! Device functions: where variables and the rest go while a graph of replicas is built.

use graph::{DType, DeviceSpec, Node, PartialShape};
use std::cell::{Cell, RefCell};
use std::fmt;

/// Ops that go to parameter servers unless said otherwise.
pub const STANDARD_PS_OPS: &[&str] = &[
    "Variable",
    "VariableV2",
    "AutoReloadVariable",
    "MutableHashTable",
    "MutableHashTableV2",
    "MutableHashTableOfTensors",
    "MutableHashTableOfTensorsV2",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "VarHandleOp",
    "BoostedTreesEnsembleResourceHandleOp",
    "BoostedTreesQuantileStreamResourceHandleOp",
    "ResourceConditionalAccumulator",
    "DecisionTreeResource",
];

/// Chooses the parameter server task of one op after another.
pub trait PsStrategy {
    fn task(&self, node: &Node) -> u32;
}

impl<F: Fn(&Node) -> u32> PsStrategy for F {
    fn task(&self, node: &Node) -> u32 {
        self(node)
    }
}

/// One task after the other.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    tasks: u32,
    next: Cell<u32>,
}

impl RoundRobin {
    /// Over `tasks` tasks, at least one.
    pub fn new(tasks: u32) -> RoundRobin {
        RoundRobin { tasks: tasks.max(1), next: Cell::new(0) }
    }
}

impl PsStrategy for RoundRobin {
    fn task(&self, _: &Node) -> u32 {
        let task = self.next.get();
        self.next.set((task + 1) % self.tasks);
        task
    }
}

/// The task with the least load so far, the first of them where several are equal.
pub struct GreedyLoadBalancing {
    loads: RefCell<Vec<f64>>,
    load: Box<dyn Fn(&Node) -> f64>,
}

impl GreedyLoadBalancing {
    /// Over `tasks` tasks, at least one; `load` is what an op adds to its task, [`byte_size_load`] for example.
    pub fn new(tasks: u32, load: impl Fn(&Node) -> f64 + 'static) -> GreedyLoadBalancing {
        GreedyLoadBalancing { loads: RefCell::new(vec![0.0; tasks.max(1) as usize]), load: Box::new(load) }
    }

    /// What each task has to carry.
    pub fn loads(&self) -> Vec<f64> {
        self.loads.borrow().clone()
    }
}

impl PsStrategy for GreedyLoadBalancing {
    fn task(&self, node: &Node) -> u32 {
        let load = (self.load)(node);
        let mut loads = self.loads.borrow_mut();
        let mut least = 0;
        for task in 1..loads.len() {
            if loads[task] < loads[least] {
                least = task;
            }
        }
        loads[least] += load;
        least as u32
    }
}

impl fmt::Debug for GreedyLoadBalancing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GreedyLoadBalancing").field("loads", &self.loads).finish_non_exhaustive()
    }
}

/// The bytes of a variable: elements of its `shape` times the size of its `dtype`, 0 where either is not known.
pub fn byte_size_load(node: &Node) -> f64 {
    let Ok(dtype) = node.attr::<DType>("dtype") else { return 0.0 };
    let Ok(shape) = node.attr::<PartialShape>("shape") else { return 0.0 };
    match (shape.num_elements(), dtype.size()) {
        (Some(elements), Some(size)) => elements as f64 * size as f64,
        _ => 0.0,
    }
}

/// A task that follows from the op's name: equal for one name and seed, spread evenly over names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomTask {
    tasks: u32,
    seed: i64,
}

impl RandomTask {
    /// Over `tasks` tasks, at least one.
    pub fn new(tasks: u32, seed: i64) -> RandomTask {
        RandomTask { tasks: tasks.max(1), seed }
    }
}

impl PsStrategy for RandomTask {
    fn task(&self, node: &Node) -> u32 {
        let digest = md5::compute(format!("{}_{}", node.name, self.seed));
        (u128::from_be_bytes(digest.0) % u128::from(self.tasks)) as u32
    }
}

/// What [`replica_device_setter`] takes.
pub struct ReplicaDeviceSetter {
    /// Tasks of the parameter server job; with a cluster, the size of the job that `ps_device` names.
    pub ps_tasks: u32,
    /// Where `ps_ops` go; empty for nowhere in particular.
    pub ps_device: DeviceSpec,
    /// Where the rest goes.
    pub worker_device: DeviceSpec,
    /// Whether an op that asks for some part of a device gets the other parts.
    pub merge_devices: bool,
    pub ps_ops: Vec<String>,
    /// Without one, [`RoundRobin`].
    pub strategy: Option<Box<dyn PsStrategy>>,
}

impl Default for ReplicaDeviceSetter {
    fn default() -> ReplicaDeviceSetter {
        let job = |name: &str| DeviceSpec { job: Some(name.into()), ..DeviceSpec::default() };
        ReplicaDeviceSetter {
            ps_tasks: 0,
            ps_device: job("ps"),
            worker_device: job("worker"),
            merge_devices: true,
            ps_ops: STANDARD_PS_OPS.iter().map(|s| s.to_string()).collect(),
            strategy: None,
        }
    }
}

impl ReplicaDeviceSetter {
    /// The setter with the number of tasks that a cluster, as jobs and their numbers of tasks, has for its
    /// parameter server job: 0 if it has no such job.
    pub fn with_cluster<'a>(mut self, jobs: impl IntoIterator<Item = (&'a str, u32)>) -> ReplicaDeviceSetter {
        let job = self.ps_device.job.as_deref();
        self.ps_tasks = jobs.into_iter().find(|(name, _)| Some(*name) == job).map_or(0, |(_, tasks)| tasks);
        self
    }
}

impl fmt::Debug for ReplicaDeviceSetter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplicaDeviceSetter")
            .field("ps_tasks", &self.ps_tasks)
            .field("ps_device", &self.ps_device.to_string())
            .field("worker_device", &self.worker_device.to_string())
            .field("merge_devices", &self.merge_devices)
            .field("ps_ops", &self.ps_ops)
            .finish_non_exhaustive()
    }
}

/// A function for `Scope::device_fn` that spreads variables over parameter servers and keeps the rest at the
/// worker: what it returns is merged under what the op itself asks for. `None` if there are no parameter servers.
///
/// The strategy is asked only where its task can count: not for an op that asks for another job.
pub fn replica_device_setter(setter: ReplicaDeviceSetter) -> Option<impl Fn(&Node) -> DeviceSpec + 'static> {
    if setter.ps_tasks == 0 {
        return None;
    }
    let ReplicaDeviceSetter { ps_tasks, ps_device, worker_device, merge_devices, ps_ops, strategy } = setter;
    let strategy = strategy.unwrap_or_else(|| Box::new(RoundRobin::new(ps_tasks)));
    Some(move |node: &Node| {
        // What is no device specification is reported where the node is added.
        let own = DeviceSpec::parse(&node.device).unwrap_or_default();
        if !merge_devices && !own.is_empty() {
            return DeviceSpec::default();
        }
        if ps_device.is_empty() || !ps_ops.iter().any(|op| op == node.op.name()) {
            return worker_device.clone();
        }
        let mut device = ps_device.clone();
        if ps_device.job.is_some() && (own.job.is_none() || own.job == ps_device.job) {
            device.task = Some(strategy.task(node));
        }
        device
    })
}
