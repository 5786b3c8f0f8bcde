//! What a worker is told when it starts.

use crate::transport::Transport;
use device::gpu_options::GpuOptions;
use graph::TaskName;
use proto::Cluster;
use proto::channel::CONNECT_DEADLINE;
use std::time::Duration;

/// One task of a cluster, and what it may use.
#[derive(Clone, Debug)]
pub struct WorkerConfig {
    pub task: TaskName,
    /// Where the other tasks listen.
    pub cluster: Cluster,
    /// Where this process serves, of a task that two hold: variables, queues and accumulators are all that it has then,
    /// on CPUs.
    pub replica_at: Option<String>,
    /// Devices `CPU:0`, `CPU:1` and so on, which share the process's threads and memory.
    pub cpu_devices: u32,
    /// Which GPUs become devices `GPU:0`, `GPU:1` and so on, and how they are used.
    pub gpus: GpuOptions,
    /// Compute threads.
    pub threads: usize,
    /// What a device says of its memory, bytes.
    pub memory_limit: u64,
    /// How long another task that does not answer is tried.
    pub connect_deadline: Duration,
    /// Which ways tensors may take to and from tasks of this kind.
    pub transport: Transport,
    /// Connections to each other task for tensors.
    pub data_connections: usize,
    /// How long a receive waits for its step to start here.
    pub start_deadline: Duration,
    /// How long the kernels of a failed step are waited for before its failure is answered.
    pub cancel_grace: Duration,
    /// How long the values of a step are kept that has ended and that nobody cleans up.
    pub retention: Duration,
    /// Makes the program's allocator give back to the system what the calling thread has freed: called when the last
    /// graph has gone, on the threads that compute, one that plans and one that serves.
    pub give_back: fn(),
}

impl WorkerConfig {
    /// The defaults: one CPU device, and a thread a core.
    pub fn new(task: TaskName, cluster: Cluster) -> WorkerConfig {
        WorkerConfig {
            task,
            cluster,
            replica_at: None,
            cpu_devices: 1,
            gpus: GpuOptions::default(),
            threads: std::thread::available_parallelism().map_or(1, |n| n.get()),
            memory_limit: 256 << 20,
            connect_deadline: CONNECT_DEADLINE,
            transport: Transport::default(),
            data_connections: 2,
            start_deadline: Duration::from_secs(300),
            cancel_grace: Duration::from_secs(10),
            retention: Duration::from_secs(600),
            give_back: || {},
        }
    }
}
