//! Workers on loopback ports, and a minimal master: it partitions a graph, registers the partitions and runs
//! them.
#![allow(dead_code, unreachable_pub)]

use anabranch_worker as worker;
use futures::future::BoxFuture;
use graph::{DeviceAttributes, Graph, TaskName, Tensor};
use parking_lot::Mutex;
use placer::{DeviceSet, Names, PartitionOptions, Split, partition, placed_devices, rewrite_for_run};
use proto::link::{CreateWorkerSession, RegisterGraph, RunGraph, RunGraphOutcome, WorkerLink};
use proto::service::WorkerServiceClient;
use proto::{Cluster, RemoteWorker, Status, channel, pb};
use std::collections::BTreeMap;
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::server::NamedService;
use tonic::transport::Channel;
use worker::{Worker, WorkerConfig, WorkerRpc};

pub type Test<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;
pub type Client = WorkerServiceClient<Channel>;

/// Time after which a test counts as hanging.
pub const LONG: Duration = Duration::from_secs(60);

/// Returns the deadline of a call that should end soon: [`LONG`] from now.
pub fn soon() -> Option<Instant> {
    Some(Instant::now() + LONG)
}

/// A worker with its server on a separate runtime. Dropping the task ends the runtime and its connections,
/// like the end of a process does.
pub struct Task {
    pub worker: Arc<Worker>,
    pub address: String,
    /// The paths of the calls that the worker has got.
    pub calls: Arc<Mutex<Vec<String>>>,
    runtime: Option<Runtime>,
}

/// A worker's service, whose calls are recorded.
struct Recorded {
    service: WorkerRpc,
    calls: Arc<Mutex<Vec<String>>>,
}

impl NamedService for Recorded {
    const NAME: &'static str = WorkerRpc::NAME;
}

impl rpc::Service for Recorded {
    fn call(&self, call: rpc::Call) -> BoxFuture<'static, rpc::Answer> {
        self.calls.lock().push(call.path().to_owned());
        rpc::Service::call(&self.service, call)
    }
}

impl Task {
    /// Starts a worker with the settings `config`, which serves on `listener`.
    pub fn serve(config: WorkerConfig, listener: std::net::TcpListener) -> Test<Task> {
        Task::serve_with(listener, || Worker::new(config))
    }

    /// Starts the worker that `make` creates on the task's runtime; it serves on `listener`.
    pub fn serve_with(
        listener: std::net::TcpListener,
        make: impl FnOnce() -> Result<Arc<Worker>, Status>,
    ) -> Test<Task> {
        let address = listener.local_addr()?.to_string();
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let context = runtime.enter();
        let worker = make()?;
        listener.set_nonblocking(true)?;
        let incoming = channel::incoming(TcpListener::from_std(listener)?);
        let calls = Arc::new(Mutex::new(Vec::new()));
        let service = Recorded { service: worker.service(), calls: calls.clone() };
        let services = rpc::Services::default().with(service);
        runtime.spawn(services.serve(incoming, std::future::pending()));
        drop(context);
        Ok(Task { worker, address, calls, runtime: Some(runtime) })
    }

    /// Returns the name of the task.
    pub fn name(&self) -> String {
        self.worker.task().to_string()
    }

    /// Returns the attributes of the first device.
    pub fn device(&self) -> DeviceAttributes {
        self.worker.devices()[0].clone()
    }

    /// Returns a gRPC client of the worker, with which a test sends protobuf messages.
    pub async fn client(&self) -> Test<Client> {
        let client = Client::connect(format!("http://{}", self.address)).await?;
        Ok(client.max_decoding_message_size(usize::MAX).max_encoding_message_size(usize::MAX))
    }
}

impl Drop for Task {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Binds a free loopback port.
pub fn listen() -> Test<std::net::TcpListener> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?)
}

/// Starts a cluster `/job:w` with `tasks` tasks, each with settings changed by `tweak`.
pub fn cluster(tasks: u32, tweak: impl Fn(&mut WorkerConfig)) -> Test<Vec<Task>> {
    let mut listeners = Vec::new();
    let mut cluster = Cluster::new();
    for task in 0..tasks {
        let listener = listen()?;
        cluster.insert("w", task, &listener.local_addr()?.to_string())?;
        listeners.push(listener);
    }
    (0..)
        .zip(listeners)
        .map(|(task, listener)| {
            let mut config =
                WorkerConfig { threads: 2, ..WorkerConfig::new(TaskName::new("w", task), cluster.clone()) };
            tweak(&mut config);
            Task::serve(config, listener)
        })
        .collect()
}

/// A session over all tasks of a cluster; the client feeds and fetches at the first task.
pub struct Session {
    pub links: BTreeMap<TaskName, Arc<dyn WorkerLink>>,
    devices: DeviceSet,
    attributes: Vec<DeviceAttributes>,
    names: Names,
}

/// The graph handles of a registered graph, by task.
pub struct Registered {
    pub parts: BTreeMap<TaskName, Arc<str>>,
}

pub const SESSION: &str = "session";

impl Session {
    /// Creates a session in which all workers are called over gRPC.
    pub async fn remote(tasks: &[Task]) -> Test<Session> {
        let mut links: BTreeMap<TaskName, Arc<dyn WorkerLink>> = BTreeMap::new();
        for task in tasks {
            let name = task.worker.task().clone();
            links.insert(name.clone(), Arc::new(RemoteWorker::new(name, &task.address, LONG)?));
        }
        Session::with_links(links).await
    }

    /// Creates a session in which the first worker is called within this process, and the other workers over
    /// gRPC.
    pub async fn mixed(tasks: &[Task]) -> Test<Session> {
        let mut session = Session::remote(tasks).await?;
        session.links.insert(tasks[0].worker.task().clone(), tasks[0].worker.link());
        Ok(session)
    }

    /// Creates a session on the workers at the other ends of `links`.
    pub async fn with_links(links: BTreeMap<TaskName, Arc<dyn WorkerLink>>) -> Test<Session> {
        let mut attributes = Vec::new();
        for link in links.values() {
            attributes.extend(link.status(soon()).await?);
            let create = CreateWorkerSession { session: SESSION.into(), ..Default::default() };
            link.create_session(create).await?;
        }
        let devices = DeviceSet::new(attributes.iter().map(|d| (d.name.clone(), d.incarnation)));
        Ok(Session { links, devices, attributes, names: Names::master() })
    }

    /// Rewrites the graph for the feeds and fetches, partitions it by task and registers the partitions.
    pub async fn register(
        &self,
        graph: &Graph,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
    ) -> Test<Registered> {
        self.register_as(graph, feeds, fetches, targets, |_| {}).await
    }

    /// Registers like [`Session::register`], after `change` has changed the request to each task.
    pub async fn register_as(
        &self,
        graph: &Graph,
        feeds: &[&str],
        fetches: &[&str],
        targets: &[&str],
        change: impl Fn(&mut RegisterGraph),
    ) -> Test<Registered> {
        let graph = rewrite_for_run(graph, feeds, fetches, targets, &self.devices, 0)?;
        let placement = placed_devices(&graph, &self.devices)?;
        let options = PartitionOptions { devices: &self.devices, split: Split::Task, names: &self.names };
        let mut parts = BTreeMap::new();
        for part in partition(&graph, &placement, &options)? {
            let link = self.links.get(&part.task).ok_or("a part of no task")?;
            let mut register = RegisterGraph {
                session: SESSION.into(),
                graph: part.graph,
                graph_options: None,
                config: None,
                debug_options: None,
                collective_graph_key: 0,
                deadline: soon(),
            };
            change(&mut register);
            parts.insert(part.task, link.register_graph(register).await?);
        }
        Ok(Registered { parts })
    }

    /// Returns the rendezvous key of a feed or fetch, which is sent and received on the first device.
    pub fn client_key(&self, endpoint: &str) -> Arc<str> {
        key(&self.attributes[0], &self.attributes[0], endpoint).into()
    }

    /// Returns the request to run one task's part of a step. Only the request to the first task has the feeds
    /// and fetches.
    pub fn part(
        &self,
        registered: &Registered,
        task: &TaskName,
        step_id: i64,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
    ) -> RunGraph {
        let is_client = *task == self.attributes[0].name.task_name();
        let send = feeds.iter().map(|(name, value)| (self.client_key(name), value.clone()));
        RunGraph {
            session: SESSION.into(),
            graph: registered.parts.get(task).cloned().unwrap_or_default(),
            step_id,
            send: if is_client { send.collect() } else { Vec::new() },
            recv: if is_client { fetches.iter().map(|f| self.client_key(f)).collect() } else { Vec::new() },
            deadline: soon(),
            ..RunGraph::default()
        }
    }

    /// Runs the parts of a step on all tasks at the same time, and cleans the step up. Returns the outcomes
    /// by task.
    pub async fn outcomes(
        &self,
        registered: &Registered,
        step_id: i64,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
    ) -> BTreeMap<TaskName, Result<RunGraphOutcome, Status>> {
        let runs = registered.parts.keys().map(|task| {
            let run = self.part(registered, task, step_id, feeds, fetches);
            let link = self.links[task].clone();
            async move { (task.clone(), link.run_graph(run).await) }
        });
        let outcomes = futures::future::join_all(runs).await.into_iter().collect();
        for link in self.links.values() {
            let _ = link.cleanup_graph(step_id).await;
        }
        outcomes
    }

    /// Runs the parts of a step on all tasks. Returns the fetched values.
    pub async fn run(
        &self,
        registered: &Registered,
        step_id: i64,
        feeds: &[(&str, Tensor)],
        fetches: &[&str],
    ) -> Test<Vec<Tensor>> {
        let mut values = Vec::new();
        for (_, outcome) in self.outcomes(registered, step_id, feeds, fetches).await {
            values.extend(outcome?.recv.into_iter().map(|(_, value)| value));
        }
        Ok(values)
    }
}

/// Returns the rendezvous key of a value that `from` sends to `to` along `edge`.
pub fn key(from: &DeviceAttributes, to: &DeviceAttributes, edge: &str) -> String {
    format!("{};{:016x};{};{edge};0:0", from.name, from.incarnation, to.name)
}

/// Registers an empty graph in a new session, for steps that only transfer their feeds. Returns the graph
/// handle.
pub async fn register_nothing(client: &mut Client) -> Test<String> {
    let request = pb::CreateWorkerSessionRequest { session_handle: SESSION.into(), ..Default::default() };
    client.create_worker_session(request).await?;
    let request = pb::RegisterGraphRequest {
        session_handle: SESSION.into(),
        create_worker_session_called: true,
        ..Default::default()
    };
    Ok(client.register_graph(request).await?.into_inner().graph_handle)
}

/// Returns the protobuf request to run a registered graph.
pub fn bare_run(graph: &str, step_id: i64, feeds: &[(&str, &Tensor)]) -> pb::RunGraphRequest {
    pb::RunGraphRequest {
        graph_handle: graph.to_owned(),
        session_handle: SESSION.into(),
        create_worker_session_called: true,
        step_id,
        send: feeds.iter().map(|(key, value)| proto::convert::named_tensor_to_proto(key, value)).collect(),
        ..Default::default()
    }
}

/// Returns the protobuf request to receive a tensor.
pub fn bare_receive(step_id: i64, key: &str) -> pb::RecvTensorRequest {
    pb::RecvTensorRequest { step_id, rendezvous_key: key.to_owned(), ..Default::default() }
}
