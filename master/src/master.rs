//! The master of a task: its sessions, and the workers it may use.

use crate::cluster::{Links, Members};
use crate::options::{self, Reported};
use crate::session::{Engine, Session, closed_by_client, on_blocking_thread};
use async_trait::async_trait;
use graph::{Code, Graph, TaskName};
use parking_lot::Mutex;
use placer::Kernels;
use proto::link::{
    CreateSession, CreatedSession, ExtendSession, ListedDevices, MakeCallable, MasterLink, PartialRunSetup,
    RunCallable, RunCallableOutcome, RunStep, RunStepOutcome,
};
use proto::{SeenIds, Status, pb};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Requests that are remembered, so that a repeat is refused.
const REQUESTS: usize = 7_000;

/// A session's start that comes so soon after one that waited in vain for the same tasks is its repetition.
const REPEATS: Duration = Duration::from_secs(2);
const REPEAT_PATIENCE: Duration = Duration::from_millis(250);

/// What a master is made of.
pub struct MasterConfig {
    /// The task whose process this is.
    pub task: TaskName,
    /// Every task of the cluster, this one included, with the way to its worker.
    pub workers: Links,
    /// Where this task listens, `host:port`; empty for a process by itself. A session that brings its own cluster
    /// knows the task by its address.
    pub address: String,
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
    reported: Arc<Reported>,
    /// The tasks that the last session needed which did not find them all, and when it gave up.
    given_up: Mutex<Option<(BTreeSet<TaskName>, Instant)>>,
    stopping: CancellationToken,
}

impl Master {
    pub fn new(config: MasterConfig) -> Arc<Master> {
        Arc::new(Master {
            incarnation: rand::random::<u64>() | 1,
            config,
            sessions: Mutex::default(),
            requests_seen: Mutex::new(SeenIds::new(REQUESTS)),
            reported: Arc::default(),
            given_up: Mutex::default(),
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

    /// Whom a session with this configuration may use.
    fn members(&self, config: &pb::ConfigProto, target: &str) -> Result<Members, Status> {
        let (task, links) = (&self.config.task, &self.config.workers);
        match &config.cluster_def {
            Some(def) if !def.job.is_empty() => {
                let dialled = target.strip_prefix("grpc://").unwrap_or(target);
                let mut addresses = vec![dialled, self.config.address.as_str()];
                addresses.retain(|a| !a.is_empty());
                let own = links.get(task).ok_or_else(|| {
                    Status::new(Code::Internal, format!("the master's task {task} has no worker"))
                })?;
                let patience = self.config.connect_deadline;
                Members::of_session(def, &addresses, own, &config.device_filters, patience)
            }
            _ => Members::of_server(task, links, &config.device_filters),
        }
    }

    fn engine(&self) -> Engine {
        Engine {
            kernels: self.config.kernels.clone(),
            evaluator: self.config.evaluator.clone(),
            reported: self.reported.clone(),
            connect_deadline: self.config.connect_deadline,
            master: (self.config.task.to_string().into(), self.incarnation),
        }
    }

    /// Opens the session on every worker; if one refuses, or the caller does not wait, those that did not are
    /// told to forget it.
    async fn open_on_workers(&self, session: Session, deadline: Instant) -> Result<Arc<Session>, Status> {
        let session = Arc::new(session);
        let (give, given) = oneshot::channel();
        tokio::spawn(async move {
            let opened = session.start(deadline).await;
            let unclaimed = Unclaimed(Some(session));
            // Unclaimed, the session ends.
            drop(give.send(opened.map(|()| unclaimed)));
        });
        let lost = |_| Err(Status::new(Code::Internal, "a session's start ended without a word"));
        let unclaimed: Result<Unclaimed, Status> = given.await.unwrap_or_else(lost);
        unclaimed?.0.take().ok_or_else(|| Status::new(Code::Internal, "a session was claimed twice"))
    }

    /// How long these tasks are waited for. Clients repeat a call that failed as unavailable, many times within
    /// a second or so: who was waited for a moment ago is not waited for again.
    fn patience(&self, needed: &BTreeSet<TaskName>) -> Duration {
        match &*self.given_up.lock() {
            Some((tasks, when)) if tasks == needed && when.elapsed() < REPEATS => REPEAT_PATIENCE,
            _ => self.config.connect_deadline,
        }
    }

    async fn start_session(&self, request: CreateSession) -> Result<CreatedSession, Status> {
        let config = options::merge(&self.config.default_config, &request.config)?;
        self.reported.session(&config);
        let longest = Instant::now() + self.config.connect_deadline;
        let deadline = request.deadline.map_or(longest, |d| d.min(longest));
        let members = self.members(&config, &request.target)?;
        let graph: Graph = request.graph;
        let needs = members.needs(&graph);
        let needed = members.links.keys().filter(|t| needs(t)).cloned().collect();
        let deadline = deadline.min(Instant::now() + self.patience(&needed));
        let devices = members.devices(&members.links, needs, deadline).await;
        let devices =
            devices.inspect_err(|_| drop(self.given_up.lock().replace((needed, Instant::now()))))?;
        let handle: Arc<str> = format!("{:016x}", rand::random::<u64>()).into();
        let (named, engine, runtime) = (handle.clone(), self.engine(), Handle::current());
        let session =
            on_blocking_thread(move || Session::new(named, config, members, devices, graph, engine, runtime))
                .await?;
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

    async fn partial_run_setup(&self, request: PartialRunSetup) -> Result<Arc<str>, Status> {
        self.session(&request.session)?.partial_run_setup(request).await
    }

    async fn make_callable(&self, request: MakeCallable) -> Result<i64, Status> {
        self.session(&request.session)?.make_callable(request.options).await
    }

    async fn run_callable(&self, request: RunCallable) -> Result<RunCallableOutcome, Status> {
        self.session(&request.session)?.run_callable(request).await
    }

    async fn release_callable(&self, session: &str, handle: i64) -> Result<(), Status> {
        self.session(session)?.release_callable(handle)
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
            let local = session.cluster().attributes.values().flatten().cloned().collect();
            return Ok(ListedDevices { local, remote: Vec::new() });
        }
        let deadline = Instant::now() + self.config.connect_deadline;
        let members = Members::of_server(&self.config.task, &self.config.workers, &[])?;
        let all = members.devices(&members.links, |_| true, deadline).await?;
        let all = all.into_values().flatten();
        let (local, remote) = all.partition(|d| d.name.task_name() == self.config.task);
        Ok(ListedDevices { local, remote })
    }

    async fn reset(&self, containers: Vec<String>, device_filters: Vec<String>) -> Result<(), Status> {
        let containers = if containers.is_empty() { vec![String::new()] } else { containers };
        let members = Members::of_server(&self.config.task, &self.config.workers, &device_filters)?;
        let cleared = members.matching().map(|(task, link)| {
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
