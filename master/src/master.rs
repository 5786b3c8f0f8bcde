//! The master of a task: its sessions, and the workers it may use.

use crate::session::{Session, SessionCluster, closed_by_client, on_blocking_thread};
use async_trait::async_trait;
use graph::{Code, DeviceAttributes, DeviceSpec, Graph, TaskName};
use parking_lot::Mutex;
use placer::{DeviceSet, Kernels, Names};
use prost::Message;
use proto::link::{
    CreateSession, CreateWorkerSession, CreatedSession, ExtendSession, ListedDevices, MasterLink, RunStep,
    RunStepOutcome, WorkerLink,
};
use proto::{SeenIds, Status, pb};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Requests that are remembered, so that a repeat is refused.
const REQUESTS: usize = 10_000;

/// What a master is made of.
pub struct MasterConfig {
    /// The task whose process this is.
    pub task: TaskName,
    /// Every task of the cluster, this one included, with the way to its worker.
    pub workers: BTreeMap<TaskName, Arc<dyn WorkerLink>>,
    /// Under the options that a session brings.
    pub default_config: pb::ConfigProto,
    /// How long a new session waits for workers that do not answer.
    pub connect_deadline: Duration,
    /// Which device types have kernels for which nodes.
    pub kernels: Arc<dyn Kernels + Send + Sync>,
    /// Computes constants while a plan is made.
    pub evaluator: Arc<dyn graph::ops::Evaluate + Send + Sync>,
}

impl fmt::Debug for MasterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterConfig({}, {} workers)", self.task, self.workers.len())
    }
}

/// A master. Its calls are those of [`MasterLink`].
pub struct Master {
    config: MasterConfig,
    /// Tells this master from an earlier one of the same task.
    incarnation: u64,
    sessions: Mutex<FxHashMap<Arc<str>, Arc<Session>>>,
    requests_seen: Mutex<SeenIds>,
    stopping: CancellationToken,
}

impl Master {
    pub fn new(config: MasterConfig) -> Arc<Master> {
        Arc::new(Master {
            incarnation: rand::random::<u64>() | 1,
            config,
            sessions: Mutex::default(),
            requests_seen: Mutex::new(SeenIds::new(REQUESTS)),
            stopping: CancellationToken::new(),
        })
    }

    pub(crate) fn check_request_id(&self, method: &str, id: i64) -> Result<(), Status> {
        self.requests_seen.lock().accept(method, None, id)
    }

    /// Takes no more sessions and steps; those in flight end within `grace`, or fail as unavailable. Then every
    /// session is closed.
    pub async fn shutdown(&self, grace: Duration) {
        self.stopping.cancel();
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let idle = futures::future::join_all(sessions.iter().map(|s| s.idle()));
        // What is late is ended now.
        let _ = tokio::time::timeout(grace, idle).await;
        self.close_all(&self.stopped()).await;
    }

    async fn close_all(&self, end: &Status) {
        let sessions: Vec<Arc<Session>> = self.sessions.lock().drain().map(|(_, s)| s).collect();
        futures::future::join_all(sessions.into_iter().map(|s| s.close(end.clone()))).await;
    }

    fn stopped(&self) -> Status {
        Status::new(Code::Unavailable, format!("{} is shutting down", self.config.task))
    }

    fn session(&self, handle: &str) -> Result<Arc<Session>, Status> {
        if self.stopping.is_cancelled() {
            return Err(self.stopped());
        }
        let found = self.sessions.lock().get(handle).cloned();
        found.ok_or_else(|| Status::new(Code::Aborted, format!("Session {handle} is not found.")))
    }

    /// The workers that a session with these filters uses: those that a filter matches, and this task's.
    fn workers(&self, filters: &[String]) -> Result<BTreeMap<TaskName, Arc<dyn WorkerLink>>, Status> {
        let filters = filters.iter().map(|f| DeviceSpec::parse(f)).collect::<Result<Vec<_>, _>>()?;
        let wanted = |task: &TaskName| {
            let spec = DeviceSpec {
                job: Some(task.job.clone()),
                replica: Some(task.replica),
                task: Some(task.task),
                ..DeviceSpec::default()
            };
            filters.is_empty() || *task == self.config.task || filters.iter().any(|f| f.is_compatible(&spec))
        };
        let all = self.config.workers.iter();
        Ok(all.filter(|(task, _)| wanted(task)).map(|(task, link)| (task.clone(), link.clone())).collect())
    }

    /// Asks all workers for their devices at once; one error for all that did not answer.
    async fn devices_of(
        &self,
        workers: &BTreeMap<TaskName, Arc<dyn WorkerLink>>,
        deadline: Instant,
    ) -> Result<Vec<DeviceAttributes>, Status> {
        let asked =
            workers.iter().map(|(task, link)| async move { (task, link.status(Some(deadline)).await) });
        let mut devices = Vec::new();
        let mut missing = Vec::new();
        for (task, answer) in futures::future::join_all(asked).await {
            match answer {
                Ok(found) => {
                    if let Some(stranger) = found.iter().find(|d| d.name.task_name() != *task) {
                        missing.push(format!(
                            "{task}: its address is answered by {}",
                            stranger.name.task_name()
                        ));
                    }
                    devices.extend(found);
                }
                Err(status) => missing.push(format!("{task}: {status}")),
            }
        }
        if missing.is_empty() {
            return Ok(devices);
        }
        Err(Status::new(
            Code::Unavailable,
            format!(
                "{} of the {} tasks that the session uses cannot be reached; start them, or leave them out by \
                 device_filters:\n{}",
                missing.len(),
                workers.len(),
                missing.join("\n")
            ),
        ))
    }

    /// The merged options of a session; what a distributed session cannot honour is refused.
    fn session_config(&self, requested: &pb::ConfigProto) -> Result<pb::ConfigProto, Status> {
        let mut config = self.config.default_config.clone();
        config
            .merge(requested.encode_to_vec().as_slice())
            .map_err(|e| Status::invalid(format!("the session's ConfigProto cannot be merged: {e}")))?;
        if config.use_per_session_threads || !config.session_inter_op_thread_pool.is_empty() {
            return Err(Status::invalid("Distributed session does not support session thread pool options."));
        }
        if config.graph_options.as_ref().is_some_and(|o| o.place_pruned_graph) {
            tracing::warn!("place_pruned_graph is ignored: a distributed session places its whole graph");
        }
        if config.cluster_def.is_some() {
            return Err(Status::new(
                Code::Unimplemented,
                "ClusterSpec propagation (ConfigProto.cluster_def) is not implemented by this server",
            ));
        }
        Ok(config)
    }

    async fn session_cluster(&self, filters: &[String], deadline: Instant) -> Result<SessionCluster, Status> {
        let links = self.workers(filters)?;
        let attributes = self.devices_of(&links, deadline).await?;
        let client_device = attributes
            .iter()
            .find(|d| d.name.task_name() == self.config.task && &*d.name.device_type == "CPU")
            .cloned()
            .ok_or_else(|| {
                Status::new(
                    Code::FailedPrecondition,
                    format!("the master's task {} has no CPU device", self.config.task),
                )
            })?;
        let devices = DeviceSet::new(attributes.iter().map(|d| (d.name.clone(), d.incarnation)));
        let devices = devices.with_local(self.config.task.clone());
        let client_index = devices.find(&client_device.name).ok_or_else(|| {
            Status::new(Code::Internal, format!("{} is no device of the session", client_device.name))
        })?;
        Ok(SessionCluster {
            links,
            devices,
            client_index,
            names: Names::master(),
            attributes,
            client_device,
            kernels: self.config.kernels.clone(),
            evaluator: self.config.evaluator.clone(),
        })
    }

    /// Opens the session on every worker; if one refuses, or the caller does not wait, those that did not are
    /// told to forget it.
    async fn open_on_workers(&self, session: Session, deadline: Instant) -> Result<Arc<Session>, Status> {
        let session = Arc::new(session);
        let (give, given) = oneshot::channel();
        let (master_task, master_incarnation) = (self.config.task.to_string(), self.incarnation);
        tokio::spawn(async move {
            let opened = open(&session, &master_task, master_incarnation, deadline).await;
            let unclaimed = Unclaimed(Some(session));
            // Unclaimed, the session ends.
            drop(give.send(opened.map(|()| unclaimed)));
        });
        let lost = |_| Err(Status::new(Code::Internal, "a session's start ended without a word"));
        let unclaimed: Result<Unclaimed, Status> = given.await.unwrap_or_else(lost);
        unclaimed?.0.take().ok_or_else(|| Status::new(Code::Internal, "a session was claimed twice"))
    }

    async fn start_session(&self, request: CreateSession) -> Result<CreatedSession, Status> {
        let config = self.session_config(&request.config)?;
        let longest = Instant::now() + self.config.connect_deadline;
        let deadline = request.deadline.map_or(longest, |d| d.min(longest));
        let cluster = self.session_cluster(&config.device_filters, deadline).await?;
        let handle: Arc<str> = format!("{:016x}", rand::random::<u64>()).into();
        let graph: Graph = request.graph;
        let (named, runtime) = (handle.clone(), Handle::current());
        let session =
            on_blocking_thread(move || Session::new(named, config, cluster, graph, runtime)).await?;
        let session = self.open_on_workers(session, deadline).await?;
        self.sessions.lock().insert(handle.clone(), session);
        Ok(CreatedSession { session: handle, graph_version: 0 })
    }
}

/// An open session that nobody knows of yet.
struct Unclaimed(Option<Arc<Session>>);

impl Drop for Unclaimed {
    fn drop(&mut self) {
        if let Some(session) = self.0.take() {
            let runtime = session.runtime.clone();
            runtime.spawn(session.close(closed_by_client()));
        }
    }
}

async fn open(
    session: &Session,
    master_task: &str,
    master_incarnation: u64,
    deadline: Instant,
) -> Result<(), Status> {
    let opened = session.cluster.links.iter().map(|(task, link)| async move {
        let request = CreateWorkerSession {
            session: session.handle.clone(),
            server_def: pb::ServerDef {
                job_name: task.job.to_string(),
                task_index: task.task as i32,
                protocol: "grpc".to_owned(),
                ..Default::default()
            },
            isolate_session_state: session.config.isolate_session_state,
            cluster_devices: Vec::new(),
            master_task: master_task.to_owned(),
            master_incarnation,
            deadline: Some(deadline),
        };
        link.create_session(request).await.map_err(|s| Status { message: format!("{task}: {s}"), ..s })
    });
    futures::future::join_all(opened).await.into_iter().collect()
}

#[async_trait]
impl MasterLink for Master {
    async fn create_session(&self, request: CreateSession) -> Result<CreatedSession, Status> {
        tokio::select! {
            biased;
            () = self.stopping.cancelled() => Err(self.stopped()),
            created = self.start_session(request) => created,
        }
    }

    async fn extend_session(&self, request: ExtendSession) -> Result<i64, Status> {
        self.session(&request.session)?.extend(request.nodes, request.graph_version).await
    }

    async fn run_step(&self, request: RunStep) -> Result<RunStepOutcome, Status> {
        self.session(&request.session)?.run_step(request).await
    }

    async fn close_session(&self, handle: &str) -> Result<(), Status> {
        let session = self.sessions.lock().remove(handle);
        match session {
            Some(session) => {
                session.close(closed_by_client()).await;
                Ok(())
            }
            None => Err(Status::new(
                Code::Aborted,
                format!("Session {handle} is not found. Possibly, this master has restarted."),
            )),
        }
    }

    async fn list_devices(&self, session: Option<&str>) -> Result<ListedDevices, Status> {
        if let Some(handle) = session {
            let session = self.session(handle).map_err(|_| {
                Status::invalid(format!(
                    "Session {handle} is not found. Possibly, this master has restarted."
                ))
            })?;
            return Ok(ListedDevices { local: session.cluster.attributes.clone(), remote: Vec::new() });
        }
        let deadline = Instant::now() + self.config.connect_deadline;
        let all = self.devices_of(&self.workers(&[])?, deadline).await?;
        let (local, remote) = all.into_iter().partition(|d| d.name.task_name() == self.config.task);
        Ok(ListedDevices { local, remote })
    }

    async fn reset(&self, containers: Vec<String>, device_filters: Vec<String>) -> Result<(), Status> {
        let containers = if containers.is_empty() { vec![String::new()] } else { containers };
        let workers = self.workers(&device_filters)?;
        let cleared = workers.iter().map(|(task, link)| {
            let containers = &containers;
            async move {
                link.cleanup_all(containers)
                    .await
                    .map_err(|s| Status { message: format!("{task}: {s}"), ..s })
            }
        });
        let results = futures::future::join_all(cleared).await;
        self.close_all(&closed_by_client()).await;
        results.into_iter().collect()
    }
}

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Master({}, {} sessions)", self.config.task, self.sessions.lock().len())
    }
}
