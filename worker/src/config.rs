//! The settings of a worker.

use crate::transport::{Fabric, Transport};
use device::gpu_options::GpuOptions;
use graph::TaskName;
use proto::Cluster;
use proto::channel::CONNECT_DEADLINE;
use std::sync::Arc;
use std::time::Duration;

/// The default deadline of a collective whose node sets none.
pub const COLLECTIVE_TIMEOUT: Duration = Duration::from_secs(120);

/// The default time after which a collective that waits is logged.
pub const STALL_WARN: Duration = Duration::from_secs(10);

/// The settings of one task's worker.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    pub task: TaskName,
    /// The addresses of the other tasks.
    pub cluster: Cluster,
    /// The address of this process if the task is replicated: one of two processes serves the task then. A
    /// replicated task has only CPU devices, and only its variables, queues and accumulators are replicated.
    pub replica_address: Option<String>,
    /// Number of CPU devices (`CPU:0`, `CPU:1` and so on), which share the process's threads and memory.
    pub cpu_devices: u32,
    /// The GPUs that become devices `GPU:0`, `GPU:1` and so on, and their options.
    pub gpus: GpuOptions,
    /// Number of compute threads.
    pub threads: usize,
    /// The memory limit that a CPU device reports, bytes.
    pub memory_limit: u64,
    /// Time for which connecting to another task that does not answer is retried.
    pub connect_deadline: Duration,
    /// The routes that tensors may take to and from the other tasks of this implementation.
    pub transport: Transport,
    /// The fabric by which links over TCP exchange large tensors with tasks that have one of the same kind; `None` for TCP
    /// alone.
    pub fabric: Option<Arc<dyn Fabric>>,
    /// Number of connections to each other task for tensors.
    pub data_connections: usize,
    /// Time for which a receive waits for its step to start on this worker.
    pub start_deadline: Duration,
    /// Time for which the answer to a failed run waits for kernels that are still running.
    pub cancel_grace: Duration,
    /// Time for which the state of an ended step is retained if no master cleans the step up.
    pub retention: Duration,
    /// The task that leads the groups of collectives; `None` for task 0 of job `chief`, else of job `worker`, else of
    /// the first job.
    pub collective_leader: Option<TaskName>,
    /// The deadline of a collective whose node sets none.
    pub collective_timeout: Duration,
    /// Time after which a collective that waits is logged, with the actions of the missing members; it is logged again
    /// whenever the time has doubled.
    pub stall_warn: Duration,
    /// Makes the allocator return the calling thread's freed memory to the operating system. The worker calls
    /// it after the last graph was removed: on each compute thread, on one thread of the runtime's blocking
    /// pool and on one thread of the runtime.
    pub trim_memory: fn(),
}

impl WorkerConfig {
    /// Returns the default settings: one CPU device, and one compute thread per core.
    pub fn new(task: TaskName, cluster: Cluster) -> WorkerConfig {
        WorkerConfig {
            task,
            cluster,
            replica_address: None,
            cpu_devices: 1,
            gpus: GpuOptions::default(),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_limit: 256 << 20,
            connect_deadline: CONNECT_DEADLINE,
            transport: Transport::default(),
            fabric: None,
            data_connections: 2,
            start_deadline: Duration::from_secs(300),
            cancel_grace: Duration::from_secs(10),
            retention: Duration::from_secs(600),
            collective_leader: None,
            collective_timeout: COLLECTIVE_TIMEOUT,
            stall_warn: STALL_WARN,
            trim_memory: || {},
        }
    }
}
