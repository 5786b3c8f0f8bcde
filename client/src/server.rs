//! The server of one task of a cluster: a worker with the devices of this process, and a master that reaches
//! the workers of all tasks. Calls to the local worker stay within the process.

use crate::error::Result;
use crate::runtime;

use futures::future::BoxFuture;
use graph::TaskName;
use master::{Master, MasterConfig, MasterRpc};
use proto::channel::CONNECT_DEADLINE;
use proto::link::{MasterLink, WorkerLink};
use proto::{Cluster, Status, channel, pb};
use rpc::Services;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::Future;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use worker::gpu_options::GpuOptions;
use worker::{Device, KernelTables, Standby, Transport, Worker, WorkerConfig};

/// The identity and the resources of a server's task.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub task: TaskName,
    /// The address of every task of the cluster; empty for a process without a cluster.
    pub cluster: Cluster,
    /// Number of CPU devices. `CPU:0`, `CPU:1`, … share the same cores.
    pub cpu_devices: u32,
    /// The GPUs that the task offers, and their options.
    pub gpus: GpuOptions,
    /// Number of threads that run kernels.
    pub threads: usize,
    /// Time limit for connecting to a task that does not respond, at the start of a session or at a step's
    /// first call to the task.
    pub connect_deadline: Duration,
    /// The transports that tensors may take between two tasks that are servers of this project.
    pub transport: Transport,
    /// The address at which this process serves its task if a standby replicates it ([`Server::standby`]).
    /// The cluster then names the addresses of both processes.
    pub replica_address: Option<String>,
    /// The deadline of a collective whose node sets none.
    pub collective_timeout: Duration,
    /// Time after which a collective that waits is logged, with the actions of the missing members.
    pub stall_warn: Duration,
    /// The default options of sessions.
    pub session_config: pb::ConfigProto,
    /// A function that returns freed memory to the system, as in [`WorkerConfig::trim_memory`].
    pub trim_memory: fn(),
}

impl Default for ServerConfig {
    /// Returns the configuration of a process without a cluster: `/job:localhost/task:0` with one CPU device for all
    /// cores.
    fn default() -> ServerConfig {
        ServerConfig {
            task: TaskName::new("localhost", 0),
            cluster: Cluster::default(),
            cpu_devices: 1,
            gpus: GpuOptions::default(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            connect_deadline: CONNECT_DEADLINE,
            transport: Transport::default(),
            replica_address: None,
            collective_timeout: worker::COLLECTIVE_TIMEOUT,
            stall_warn: worker::STALL_WARN,
            session_config: pb::ConfigProto::default(),
            trim_memory: || {},
        }
    }
}

/// Interval of maintenance: trimming memory and logging slow steps. Cached memory that was not used for
/// [`MEMORY_RETENTION`] is returned to the system; the retention exceeds the pauses between the steps of a
/// job.
const MAINTENANCE_INTERVAL: Duration = Duration::from_secs(5);
const MEMORY_RETENTION: Duration = Duration::from_secs(10);

/// Time for responses to be sent after all steps have ended, before connections are closed.
const RESPONSE_FLUSH_TIME: Duration = Duration::from_secs(1);

/// The worker and the master of a task.
#[derive(Debug)]
pub struct Server {
    worker: Arc<Worker>,
    master: Arc<Master>,
}

/// Returns the task that the server's configuration names as the leader of the groups of collectives.
///
/// # Errors
/// `InvalidArgument` for a malformed name.
fn collective_leader(config: &ServerConfig) -> Result<Option<TaskName>, Status> {
    let named = config.session_config.experimental.as_ref().map(|e| e.collective_group_leader.as_str());
    let named = named.filter(|name| !name.is_empty());
    named.map(|name| TaskName::parse(name).map_err(Status::from)).transpose()
}

fn worker_config(config: &ServerConfig) -> Result<WorkerConfig, Status> {
    Ok(WorkerConfig {
        collective_leader: collective_leader(config)?,
        collective_timeout: config.collective_timeout,
        stall_warn: config.stall_warn,
        cpu_devices: config.cpu_devices,
        gpus: config.gpus.clone(),
        threads: config.threads,
        connect_deadline: config.connect_deadline,
        transport: config.transport,
        replica_address: config.replica_address.clone(),
        trim_memory: config.trim_memory,
        ..WorkerConfig::new(config.task.clone(), config.cluster.clone())
    })
}

impl Server {
    /// Creates a server with its devices and the links to the other tasks, without connecting to them.
    pub fn new(config: ServerConfig) -> Result<Server> {
        let _in_runtime = runtime::handle()?.enter();
        Ok(Server::in_runtime(config)?)
    }

    /// Creates a server with devices made by the caller, like [`Worker::with_devices`].
    pub fn with_devices(config: ServerConfig, devices: Vec<Arc<Device>>) -> Result<Server> {
        let _in_runtime = runtime::handle()?.enter();
        let worker = Worker::with_devices(worker_config(&config)?, devices)?;
        Ok(Server::over(worker, config)?)
    }

    /// Creates a server from inside a tokio runtime, on which the server's calls run.
    pub fn in_runtime(config: ServerConfig) -> Result<Server, Status> {
        let worker = Worker::new(worker_config(&config)?)?;
        Server::over(worker, config)
    }

    fn over(worker: Arc<Worker>, config: ServerConfig) -> Result<Server, Status> {
        let mut workers: BTreeMap<TaskName, Arc<dyn WorkerLink>> = BTreeMap::new();
        for (task, address) in config.cluster.tasks() {
            if task != config.task {
                workers.insert(task.clone(), worker.connect_to(&task, address)?);
            }
        }
        workers.insert(config.task.clone(), worker.link());
        let master = Master::new(MasterConfig {
            address: config.cluster.address(&config.task).unwrap_or_default().to_owned(),
            task: config.task,
            workers,
            default_config: config.session_config,
            connect_deadline: config.connect_deadline,
            event_streams: worker.event_streams(),
            kernels: Arc::new(KernelTables),
            evaluator: Arc::new(worker::host_evaluator()),
        });
        Ok(Server { worker, master })
    }

    /// Returns the master, for sessions of this process.
    pub fn master(&self) -> Arc<dyn MasterLink> {
        self.master.clone()
    }

    /// Returns the worker, for process groups.
    pub(crate) fn worker(&self) -> &Arc<Worker> {
        &self.worker
    }

    /// Creates a standby that replicates the state of the primary, which serves the task at `other`. The
    /// standby keeps a presence port open at `host`, bound to `bind`, by which the primary detects that the
    /// standby is alive.
    ///
    /// # Errors
    /// `Unavailable` if no port is available.
    pub fn standby<'a>(
        &'a self,
        other: &'a str,
        host: &'a str,
        bind: IpAddr,
    ) -> BoxFuture<'a, Result<Standby, Status>> {
        Box::pin(Standby::new(&self.worker, other, host, bind))
    }

    /// Waits until this process must stop serving, because its standby has the task's state and this process
    /// does not.
    pub async fn wait_until_superseded(&self) {
        self.worker.wait_until_superseded().await;
    }

    /// Answers calls on the listener until `stop` is ready. Then steps in progress have `grace` to finish
    /// before they are cancelled, and the function returns even if peers keep their connections open.
    pub fn serve<'a>(
        &'a self,
        listener: TcpListener,
        stop: impl Future<Output = ()> + Send + 'a,
        grace: Duration,
    ) -> BoxFuture<'a, ()> {
        Box::pin(self.serve_until(listener, Box::pin(stop), grace))
    }

    /// Serves like [`Server::serve`]. It takes a boxed future, so that the services are compiled in this crate and not
    /// again in each program.
    async fn serve_until(&self, listener: TcpListener, stop: BoxFuture<'_, ()>, grace: Duration) {
        let (drained, when_drained) = tokio::sync::oneshot::channel::<()>();
        let serving = Services::default()
            .with(MasterRpc::new(self.master.clone()))
            .with(self.worker.service())
            .with(self.worker.replication_service())
            .serve(channel::incoming(listener), async {
                // An error means that the sender was dropped, which is the signal to stop.
                let _ = when_drained.await;
            });
        let stopping = async {
            stop.await;
            // The worker and the master stop at the same time, because both reject new steps and wait for the
            // steps in progress.
            tokio::join!(self.worker.shutdown(grace), self.master.shutdown(grace));
            drop(drained);
            tokio::time::sleep(RESPONSE_FLUSH_TIME).await;
        };
        tokio::select! {
            () = serving => {}
            () = stopping => {}
            never = self.run_maintenance() => match never {},
        }
    }

    /// Periodically returns unused memory of tensors to the system, and logs the waits of slow steps.
    async fn run_maintenance(&self) -> Infallible {
        loop {
            tokio::time::sleep(MAINTENANCE_INTERVAL).await;
            graph::tensor::trim_memory(MEMORY_RETENTION);
            self.worker.log_slow_steps();
        }
    }
}
