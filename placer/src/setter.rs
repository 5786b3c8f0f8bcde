//! Device functions that place variables on parameter servers and other ops on a worker while a graph of
//! replicas is built.

use graph::{DType, DeviceSpec, Node, PartialShape};
use std::cell::{Cell, RefCell};
use std::fmt;

/// The default list of ops that are placed on parameter servers.
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

/// A strategy that chooses a parameter server task for each op.
pub trait PsStrategy {
    /// Returns the index of the parameter server task for `node`.
    fn task(&self, node: &Node) -> u32;
}

impl<F: Fn(&Node) -> u32> PsStrategy for F {
    fn task(&self, node: &Node) -> u32 {
        self(node)
    }
}

/// A strategy that cycles through the tasks.
#[derive(Clone, Debug)]
pub struct RoundRobin {
    tasks: u32,
    next: Cell<u32>,
}

impl RoundRobin {
    /// Creates a strategy over `tasks` tasks, at least one.
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

/// A strategy that chooses the task with the least accumulated load, and the first of equally loaded tasks.
pub struct GreedyLoadBalancing {
    loads: RefCell<Vec<f64>>,
    load: Box<dyn Fn(&Node) -> f64>,
}

impl GreedyLoadBalancing {
    /// Creates a strategy over `tasks` tasks, at least one. `load` returns the load that an op adds to its
    /// task, for example [`byte_size_load`].
    pub fn new(tasks: u32, load: impl Fn(&Node) -> f64 + 'static) -> GreedyLoadBalancing {
        GreedyLoadBalancing { loads: RefCell::new(vec![0.0; tasks.max(1) as usize]), load: Box::new(load) }
    }

    /// Returns the accumulated load of each task.
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

/// Returns the bytes of a variable: the number of elements of its `shape` times the size of its `dtype`, or 0
/// if either is unknown.
pub fn byte_size_load(node: &Node) -> f64 {
    let Ok(dtype) = node.attr::<DType>("dtype") else { return 0.0 };
    let Ok(shape) = node.attr::<PartialShape>("shape") else { return 0.0 };
    match (shape.num_elements(), dtype.size()) {
        (Some(elements), Some(size)) => elements as f64 * size as f64,
        _ => 0.0,
    }
}

/// A strategy that derives the task from a hash of the op's name and a seed: equal names get equal tasks, and
/// different names are spread evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RandomTask {
    tasks: u32,
    seed: i64,
}

impl RandomTask {
    /// Creates a strategy over `tasks` tasks, at least one.
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

/// Parameters of [`replica_device_setter`].
pub struct ReplicaDeviceSetter {
    /// Number of tasks of the parameter server job, which is the job of `ps_device`.
    pub ps_tasks: u32,
    /// The device of the ops in `ps_ops`; if it is empty, these ops are placed like all other ops.
    pub ps_device: DeviceSpec,
    /// The device of all ops that are not in `ps_ops`.
    pub worker_device: DeviceSpec,
    /// True if an op that requests some fields of a device gets the remaining fields from the setter.
    pub merge_devices: bool,
    pub ps_ops: Vec<String>,
    /// The strategy that chooses the parameter server task; [`RoundRobin`] by default.
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
    /// Returns the setter with `ps_tasks` taken from a cluster, given as job names and task counts: 0 if the
    /// cluster has no parameter server job.
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

/// Returns a function for `Scope::device_fn` that spreads variables over parameter servers and places other
/// ops on the worker, or `None` if there are no parameter servers. The scope merges the returned device with
/// the op's own request, which takes precedence.
///
/// The strategy is called only if its task can take effect, so not for an op that requests another job.
pub fn replica_device_setter(setter: ReplicaDeviceSetter) -> Option<impl Fn(&Node) -> DeviceSpec + 'static> {
    if setter.ps_tasks == 0 {
        return None;
    }
    let ReplicaDeviceSetter { ps_tasks, ps_device, worker_device, merge_devices, ps_ops, strategy } = setter;
    let strategy = strategy.unwrap_or_else(|| Box::new(RoundRobin::new(ps_tasks)));
    Some(move |node: &Node| {
        // An invalid device specification is ignored here, because an error is reported when the node is added to the
        // graph.
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
