//! One task of a cluster: a worker over this process's devices, and a master that reaches every worker, the
//! local one without the wire.

use crate::error::Result;
use crate::runtime;

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
use worker::gpus::GpuOptions;
use worker::{Device, KernelTables, Standby, Transport, Worker, WorkerConfig};

/// Who the task is and what it offers.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    pub task: TaskName,
    /// Every task of the cluster with its address; empty for a process by itself.
    pub cluster: Cluster,
    /// How many CPU devices to offer: `CPU:0`, `CPU:1`, … share the same cores.
    pub cpu_devices: u32,
    /// Which GPUs of the machine to offer, and how to use them.
    pub gpus: GpuOptions,
    /// Threads that run kernels.
    pub threads: usize,
    /// How long a session's start, or a step's first contact with a task, waits for a task that is not there.
    pub connect_deadline: Duration,
    /// Which ways tensors may take between tasks of this kind.
    pub transport: Transport,
    /// Where this process serves, of a task that two hold ([`Server::standby`]): the cluster names both.
    pub replica_at: Option<String>,
    /// Under the options that sessions bring.
    pub session_config: pb::ConfigProto,
    /// As [`WorkerConfig::give_back`].
    pub give_back: fn(),
}

impl Default for ServerConfig {
    /// A process by itself: `/job:localhost/task:0` with one CPU device over all cores.
    fn default() -> ServerConfig {
        ServerConfig {
            task: TaskName::new("localhost", 0),
            cluster: Cluster::default(),
            cpu_devices: 1,
            gpus: GpuOptions::default(),
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            connect_deadline: CONNECT_DEADLINE,
            transport: Transport::default(),
            replica_at: None,
            session_config: pb::ConfigProto::default(),
            give_back: || {},
        }
    }
}

/// Memory that tensors have left is looked for so often, as are steps that take long; it is given back when it was not
/// wanted for so long: longer than the pauses between the steps of a job.
const KEEP_HOUSE_EVERY: Duration = Duration::from_secs(5);
const WANTED_WITHIN: Duration = Duration::from_secs(10);

/// After all steps have ended, answers have so long to leave before connections are cut.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// A task's worker and master.
#[derive(Debug)]
pub struct Server {
    worker: Arc<Worker>,
    master: Arc<Master>,
}

fn worker_config(config: &ServerConfig) -> WorkerConfig {
    WorkerConfig {
        cpu_devices: config.cpu_devices,
        gpus: config.gpus.clone(),
        threads: config.threads,
        connect_deadline: config.connect_deadline,
        transport: config.transport,
        replica_at: config.replica_at.clone(),
        give_back: config.give_back,
        ..WorkerConfig::new(config.task.clone(), config.cluster.clone())
    }
}

impl Server {
    /// Makes the devices and the ways to the other tasks; contacts nobody yet.
    pub fn new(config: ServerConfig) -> Result<Server> {
        let _in_runtime = runtime::handle()?.enter();
        Ok(Server::in_runtime(config)?)
    }

    /// As [`Server::new`], over devices of the caller's, as [`Worker::with_devices`] takes them.
    pub fn with_devices(config: ServerConfig, devices: Vec<Arc<Device>>) -> Result<Server> {
        let _in_runtime = runtime::handle()?.enter();
        let worker = Worker::with_devices(worker_config(&config), devices)?;
        Ok(Server::over(worker, config)?)
    }

    /// As [`Server::new`], for a caller that is inside a tokio runtime, which will carry the calls.
    pub fn in_runtime(config: ServerConfig) -> Result<Server, Status> {
        let worker = Worker::new(worker_config(&config))?;
        Server::over(worker, config)
    }

    fn over(worker: Arc<Worker>, config: ServerConfig) -> Result<Server, Status> {
        let mut workers: BTreeMap<TaskName, Arc<dyn WorkerLink>> = BTreeMap::new();
        for (task, address) in config.cluster.tasks() {
            if task != config.task {
                workers.insert(task.clone(), worker.reach(&task, address)?);
            }
        }
        workers.insert(config.task.clone(), worker.link());
        let master = Master::new(MasterConfig {
            address: config.cluster.address(&config.task).unwrap_or_default().to_owned(),
            task: config.task,
            workers,
            default_config: config.session_config,
            connect_deadline: config.connect_deadline,
            kernels: Arc::new(KernelTables),
            evaluator: Arc::new(worker::host_evaluator()),
        });
        Ok(Server { worker, master })
    }

    /// The master, for sessions of this process.
    pub fn master(&self) -> Arc<dyn MasterLink> {
        self.master.clone()
    }

    /// The part of a process that does not serve its task yet: it follows the one that does, at `other`. That one sees
    /// by a port at `host`, held open on `bind`, that this one lives.
    ///
    /// # Errors
    /// `Unavailable` if no port can be had.
    pub async fn standby(&self, other: &str, host: &str, bind: IpAddr) -> Result<Standby, Status> {
        Standby::new(&self.worker, other, host, bind).await
    }

    /// Ends when this process has nothing and its standby what the task had: it is to serve no longer.
    pub async fn yields(&self) {
        self.worker.yields().await;
    }

    /// Answers calls on the listener until `stop` is ready; then ends steps in flight, which have `grace` to
    /// finish by themselves, and returns, whatever the other ends of open connections do.
    pub async fn serve(&self, listener: TcpListener, stop: impl Future<Output = ()>, grace: Duration) {
        let (drained, when_drained) = tokio::sync::oneshot::channel::<()>();
        let serving = Services::default()
            .with(MasterRpc::new(self.master.clone()))
            .with(self.worker.service())
            .with(self.worker.replication_service())
            .serve(channel::incoming(listener), async {
                // The sender going away means the same.
                let _ = when_drained.await;
            });
        let stopping = async {
            stop.await;
            // Both refuse new steps from now on, and wait for the same ones.
            tokio::join!(self.worker.shutdown(grace), self.master.shutdown(grace));
            drop(drained);
            tokio::time::sleep(LAST_WORDS).await;
        };
        tokio::select! {
            () = serving => {}
            () = stopping => {}
            never = self.keep_house() => match never {},
        }
    }

    /// Gives back what the tensors of earlier steps have left, and says what steps wait for that take long.
    async fn keep_house(&self) -> Infallible {
        loop {
            tokio::time::sleep(KEEP_HOUSE_EVERY).await;
            graph::tensor::trim_memory(WANTED_WITHIN);
            self.worker.tell_slow_steps();
        }
    }
}
