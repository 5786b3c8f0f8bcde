//! The worker: its state, and the functions that carry out the requests of masters after decoding.

use crate::collective::Leader;
use crate::config::WorkerConfig;
use crate::debug_streams::TaskStreams;
use crate::devices::Devices;
use crate::epochs::Epochs;
use crate::graphs::RegisteredGraph;
use crate::handler::Handler;
use crate::local::LocalWorker;
use crate::peers::Peers;
use crate::rendezvous::Remote;
use crate::replication::{Primary, Replication};
use crate::service::WorkerRpc;
use crate::session::{Session, Sessions};
use crate::steps::{StepState, Steps};
use crate::transfers::Transfers;
use crate::transport::{LinkTable, LinkedWorker};
use device::Device;
use device::debug_stream::DebugStreams;
use device::gpu_options::{GpuOptions, GpuSelection};
use device::journal::Journal;
use device::resource::ResourceStore;
use device::{Error, Pool, shared_memory};
use graph::{Code, DeviceAttributes, TaskName};
use parking_lot::Mutex;
use proto::channel::Peer;
use proto::event_stream::EventStreams;
use proto::grpc::MAX_MESSAGE_SIZE;
use proto::link::{CreateWorkerSession, RegisterGraph, RunGraph, RunGraphOutcome, WorkerLink};
use proto::pb::ConfigProto;
use proto::replication::replication_service_server::ReplicationServiceServer;
use proto::step_ids::next_step_id;
use proto::{RecentIds, RemoteWorker, Rewrites, Status};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::time::timeout;

/// Number of request ids that are remembered, so that a repeated request is refused.
const MAX_REMEMBERED: usize = 14_000;
/// Delay before unused memory is released, so that a client that opens one session after another can reuse it.
const REOPEN_TIME: Duration = Duration::from_millis(200);

/// One task's devices, with the sessions and steps that use them.
pub struct Worker {
    pub(crate) config: WorkerConfig,
    pub(crate) devices: Devices,
    pub(crate) sessions: Sessions,
    epochs: Epochs,
    pub(crate) steps: Arc<Steps>,
    /// The runtime for receives from other tasks; the compute threads that start these receives belong to no runtime.
    pub(crate) runtime: Handle,
    pub(crate) pool: Arc<Pool>,
    seen_runs: Mutex<RecentIds>,
    seen_receives: Mutex<RecentIds>,
    pub(crate) transfers: Arc<Transfers>,
    /// The groups of collectives that this task leads.
    pub(crate) leader: Arc<Leader>,
    pub(crate) link_table: Arc<LinkTable>,
    /// The streams to debuggers of clients.
    event_streams: Arc<EventStreams>,
    /// The replication state, if the task is replicated.
    primary: Option<Arc<Primary>>,
}

impl Worker {
    /// Creates a worker with new devices. It calls other tasks on the runtime in which it is created.
    ///
    /// # Errors
    /// `FailedPrecondition` outside a runtime; `ResourceExhausted` if threads cannot be started.
    pub fn new(config: WorkerConfig) -> Result<Arc<Worker>, Status> {
        let no_gpus = GpuOptions { visible: GpuSelection::Listed(Vec::new()), ..config.gpus.clone() };
        let gpus = if config.replica_address.is_some() { &no_gpus } else { &config.gpus };
        let devices = Devices::new(&config.task, config.cpu_devices, config.memory_limit, gpus)?;
        Worker::with_device_set(config, devices)
    }

    /// Creates a worker with existing devices, the first of which must be a CPU; the device settings in
    /// `config` are ignored.
    ///
    /// # Errors
    /// Those of [`Worker::new`].
    pub fn with_devices(config: WorkerConfig, devices: Vec<Arc<Device>>) -> Result<Arc<Worker>, Status> {
        Worker::with_device_set(config, Devices::of(devices))
    }

    fn with_device_set(config: WorkerConfig, devices: Devices) -> Result<Arc<Worker>, Status> {
        let runtime = Handle::try_current()
            .map_err(|e| Status::new(Code::FailedPrecondition, format!("a worker needs a runtime: {e}")))?;
        let event_streams = Arc::<EventStreams>::default();
        let debug_streams: Arc<dyn DebugStreams> =
            Arc::new(TaskStreams { streams: event_streams.clone(), runtime: runtime.clone() });
        let devices = devices.with_debug_streams(&debug_streams);
        let pool = Pool::new(config.threads).map_err(|e| crate::failure(&e))?;
        let primary = match config.replica_address.is_some() {
            true => Some(attach_journal(&config.task, &devices)?),
            false => None,
        };
        if config.transport.shares_memory() && config.cluster.shares_host(&config.task) {
            shared_memory::install();
        }
        let incarnations = devices.attributes().iter().map(|d| d.incarnation).collect();
        let (deadline, connections) = (config.connect_deadline, config.data_connections);
        let caller = (&config.task, incarnations);
        let address = config.replica_address.as_deref().or(config.cluster.address(&config.task));
        let link_table = LinkTable::new(
            config.transport,
            connections,
            runtime.clone(),
            caller,
            address.unwrap_or_default(),
            config.cluster.clone(),
        );
        if let Some(fabric) = &config.fabric {
            link_table.set_fabric(fabric.clone());
        }
        let peers = Peers::new(config.cluster.clone(), deadline, connections, link_table.clone());
        let worker = Arc::new(Worker {
            sessions: Sessions::new(config.task.clone(), devices.clone(), Arc::new(peers)),
            epochs: Epochs::new(config.task.clone()),
            steps: Arc::new(Steps::new(config.task.clone(), config.retention)),
            devices,
            runtime,
            pool,
            seen_runs: Mutex::new(RecentIds::new(MAX_REMEMBERED)),
            seen_receives: Mutex::new(RecentIds::new(MAX_REMEMBERED)),
            transfers: Arc::default(),
            leader: Arc::default(),
            link_table,
            event_streams,
            primary,
            config,
        });
        worker.link_table.set_worker(Arc::downgrade(&worker));
        Ok(worker)
    }

    /// Returns the streams to debuggers of clients, for a master in this process.
    pub fn event_streams(&self) -> Arc<EventStreams> {
        self.event_streams.clone()
    }

    /// Returns a link to another task's worker, for a master in this process.
    ///
    /// # Errors
    /// `InvalidArgument` for a malformed address.
    pub fn connect_to(&self, task: &TaskName, address: &str) -> Result<Arc<dyn WorkerLink>, Status> {
        let deadline = self.config.connect_deadline;
        let remote = RemoteWorker::new(task.clone(), address, deadline)?;
        let peer = Arc::new(Peer::new(task.clone(), address, deadline, 1)?);
        Ok(Arc::new(LinkedWorker::new(remote, &peer, self.link_table.clone())))
    }

    /// Returns the name of the worker's task.
    pub fn task(&self) -> &TaskName {
        &self.config.task
    }

    /// Returns the attributes of the worker's devices.
    pub fn devices(&self) -> Vec<DeviceAttributes> {
        self.devices.attributes()
    }

    /// Returns whether this worker's part of a step runs.
    pub fn is_running(&self, step_id: i64) -> bool {
        self.steps.is_running(step_id)
    }

    /// Returns the end of an error message that names the values which a step awaits from other tasks; empty
    /// if there are none.
    pub fn awaited(&self, step_id: i64) -> String {
        self.steps.awaited(step_id)
    }

    /// Logs the slow steps for which a message is due, with the values from other tasks that they await.
    pub fn log_slow_steps(&self) {
        self.steps.take_slow_reports(Instant::now()).iter().for_each(|text| tracing::info!("{text}"));
    }

    /// Returns the numbers of open links over which this worker sends and over which it receives.
    pub fn links(&self) -> (usize, usize) {
        self.link_table.links()
    }

    /// Closes all links and opens no more, so that later tensors are fetched over gRPC.
    pub fn close_links(&self) {
        self.link_table.close();
    }

    /// Returns a link to this worker for a master in the same process; values pass by pointer.
    pub fn link(self: &Arc<Self>) -> Arc<dyn WorkerLink> {
        Arc::new(LocalWorker::new(self.clone()))
    }

    /// Returns the gRPC service of this worker.
    pub fn service(self: &Arc<Self>) -> WorkerRpc {
        WorkerRpc::new(Handler::new(self.clone()))
    }

    /// Returns the replication service for the standby of this worker's task.
    pub fn replication_service(&self) -> ReplicationServiceServer<Replication> {
        let service = ReplicationServiceServer::new(Replication::new(self.primary.clone()));
        service.max_decoding_message_size(MAX_MESSAGE_SIZE).max_encoding_message_size(MAX_MESSAGE_SIZE)
    }

    /// Waits until this process must stop serving, see `Primary::wait_until_superseded`; forever if the task is
    /// not replicated.
    pub async fn wait_until_superseded(&self) {
        match &self.primary {
            Some(primary) => primary.wait_until_superseded().await,
            None => std::future::pending().await,
        }
    }

    /// Returns the resource stores of all devices.
    pub(crate) fn stores(&self) -> impl Iterator<Item = &ResourceStore> {
        self.devices.iter().map(|device| device.resources())
    }

    /// Waits until the task's standby has applied all changes made so far; returns at once if the task is not
    /// replicated.
    ///
    /// # Errors
    /// Those of [`Primary::wait_replicated`].
    pub(crate) async fn wait_replicated(&self, deadline: Option<Instant>) -> Result<(), Status> {
        match &self.primary {
            Some(primary) => primary.wait_replicated(deadline).await,
            None => Ok(()),
        }
    }

    /// Refuses new steps. Steps in progress may end within `grace`, after which they are cancelled with an
    /// error that names this task.
    pub async fn shutdown(&self, grace: Duration) {
        self.steps.close();
        let in_time = timeout(grace, self.steps.idle()).await.is_ok();
        self.link_table.announce_shutdown();
        self.steps.cancel_all(&Error::new(Code::Unavailable, format!("{} is shutting down", self.task())));
        if !in_time {
            // Cancelled steps end soon, except those whose kernels are computing.
            let _ = timeout(self.config.cancel_grace, self.steps.idle()).await;
        }
    }

    /// Creates a session. If the request has a leader epoch ([`proto::Epoch`]), this function first cancels the
    /// steps of all sessions in earlier epochs of the same job, and waits until they have ended.
    ///
    /// # Errors
    /// Those of [`Sessions::create`] and [`Epochs::begin`], and `Unavailable` if steps of an earlier epoch
    /// take too long to end.
    pub(crate) async fn create_session(&self, request: &CreateWorkerSession) -> Result<(), Status> {
        self.wait_until_certain().await;
        let session_epoch = match &request.epoch {
            Some(epoch) => Some(self.epochs.begin(epoch, self.config.cancel_grace).await?),
            None => None,
        };
        self.sessions.create(request, session_epoch)
    }

    /// Records the time from which this process serves the task.
    pub(crate) fn mark_serving(&self) {
        if let Some(primary) = &self.primary {
            primary.mark_serving();
        }
    }

    /// Records that no other process holds more of the task's state than this one.
    pub(crate) fn mark_certain(&self) {
        if let Some(primary) = &self.primary {
            primary.mark_certain();
        }
    }

    /// Waits until no other process with more of the task's state is expected; returns at once if the task is
    /// not replicated.
    async fn wait_until_certain(&self) {
        if let Some(primary) = &self.primary {
            primary.wait_until_certain().await;
        }
    }

    pub(crate) async fn register_graph(&self, part: RegisterGraph) -> Result<Arc<str>, Status> {
        self.wait_until_certain().await;
        let session = self.sessions.get(&part.session)?;
        let (pool, link_table) = (self.pool.clone(), self.link_table.clone());
        blocking(move || {
            let only_graph_options =
                || ConfigProto { graph_options: part.graph_options, ..Default::default() };
            let rewrites = Rewrites::of(&part.config.unwrap_or_else(only_graph_options));
            let watches = part.debug_options.filter(|options| !options.debug_tensor_watch_opts.is_empty());
            let mut graph =
                RegisteredGraph::compile(&part.graph, &session, &pool, &rewrites, watches.as_ref())?;
            graph.collective_graph_key = part.collective_graph_key;
            // The handshakes of the links begin before the first step, so that the step finds the links open.
            graph.receivers.iter().for_each(|route| drop(route.link_or_connect(&link_table)));
            Ok(session.add_graph(graph))
        })
        .await
    }

    pub(crate) fn deregister_graph(self: &Arc<Self>, session: &str, graph: &str) -> Result<(), Status> {
        self.sessions.get(session)?.remove_graph(graph)?;
        self.release_idle_memory();
        Ok(())
    }

    /// Removes a session, if it exists.
    pub(crate) fn delete_session(self: &Arc<Self>, session: &str) {
        self.sessions.delete(session);
        self.leader.close_session(session);
        self.release_idle_memory();
    }

    /// Returns unused memory to the operating system after [`REOPEN_TIME`], unless a session has a graph
    /// then.
    fn release_idle_memory(self: &Arc<Self>) {
        if self.sessions.have_graphs() {
            return;
        }
        let own = Arc::downgrade(self);
        self.runtime.spawn(async move {
            tokio::time::sleep(REOPEN_TIME).await;
            let Some(worker) = own.upgrade().filter(|worker| !worker.sessions.have_graphs()) else { return };
            let trim_memory = worker.config.trim_memory;
            let trim = move || {
                graph::tensor::trim_memory(Duration::ZERO);
                trim_memory();
            };
            // An error means that the runtime is shutting down.
            let _ = tokio::task::spawn_blocking(trim).await;
            worker.pool.on_each_thread(trim_memory);
            trim_memory();
        });
    }

    /// Returns the objects by which the steps of a session send to and receive from other tasks.
    pub(crate) fn remote(&self, session: &Session) -> Remote {
        Remote {
            runtime: self.runtime.clone(),
            peers: session.peers.clone(),
            link_table: self.link_table.clone(),
            own_prefix: session.own_prefix.clone(),
            transfers: self.transfers.clone(),
            primary: self.primary.clone(),
        }
    }

    /// Runs this worker's part of a step.
    pub(crate) async fn run_graph(self: &Arc<Self>, run: RunGraph) -> Result<RunGraphOutcome, Status> {
        crate::run::run_graph(self, run).await
    }

    /// Clears the named resource containers on all devices. The default container has an empty name; an empty
    /// list also means the default container.
    pub(crate) async fn cleanup_all(&self, containers: &[String]) -> Result<(), Status> {
        self.wait_until_certain().await;
        let default = [String::new()];
        let containers = if containers.is_empty() { &default } else { containers };
        for device in self.devices.iter() {
            for container in containers {
                device.resources().clear(container);
            }
        }
        self.wait_replicated(None).await
    }

    /// Returns the step of a pushed value, see [`Steps::get_or_insert_early`].
    pub(crate) fn get_or_insert_early(&self, step_id: i64) -> Result<Arc<StepState>, Status> {
        self.steps.get_or_insert_early(step_id, &self.runtime, self.config.start_deadline)
    }

    /// Cancels the parts on this worker of a step with collectives that has failed in another session, and of the step
    /// after it.
    pub(crate) fn fail_step_of_members(&self, step_id: i64, reason: &Error) {
        for id in [step_id, next_step_id(step_id)] {
            if let Ok(step) = self.get_or_insert_early(id) {
                step.cancel(reason.clone());
            }
        }
    }

    /// Returns the other tasks of the cluster that the process was started with.
    pub(crate) fn peers(&self) -> &Arc<Peers> {
        self.sessions.own_peers()
    }

    /// Cancels a step because a value pushed by a peer could not be stored.
    pub(crate) fn cancel_for_value(&self, step_id: i64, key: &str, peer: &str, error: &Error) {
        if let Ok(step) = self.get_or_insert_early(step_id) {
            step.cancel(Error::new(error.code(), format!("{key} from {peer}: {error}")));
        }
    }

    /// Checks that the request id of a RunGraph call is new.
    ///
    /// # Errors
    /// `Aborted` if the id was seen before.
    pub(crate) fn accept_run(&self, request_id: i64, step_id: i64) -> Result<(), Status> {
        self.seen_runs.lock().accept("RunGraph (Worker)", Some(step_id), request_id)
    }

    /// Checks that the request id of a RecvTensor call is new, see [`Worker::accept_run`].
    pub(crate) fn accept_receive(&self, request_id: i64, step_id: i64) -> Result<(), Status> {
        self.seen_receives.lock().accept("RecvTensor (GrpcWorker)", Some(step_id), request_id)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.link_table.close();
    }
}

impl fmt::Debug for Worker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Worker({})", self.config.task)
    }
}

/// Makes the replication state of a task, whose journal records the changes of the devices' resources for a
/// standby.
fn attach_journal(task: &TaskName, devices: &Devices) -> Result<Arc<Primary>, Status> {
    let journal = Arc::<Journal>::default();
    for (number, device) in (0..).zip(devices.iter()) {
        device.resources().attach(&journal, number).map_err(|e| crate::failure(&e))?;
    }
    Ok(Primary::new(task.clone(), journal))
}

/// Runs `work`, which may take long and does not await, on a thread of the runtime's blocking pool.
pub(crate) async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    let ended = tokio::task::spawn_blocking(work).await;
    ended.unwrap_or_else(|e| Err(Status::new(Code::Internal, format!("registration failed: {e}"))))
}
