//! The master of a task: its sessions, and the workers that they may use.

use crate::cluster::{Links, Members};
use crate::options::{self, IgnoredOptions};
use crate::session::{MasterContext, Session, closed_by_client, on_blocking_thread};
use async_trait::async_trait;
use graph::{Code, Graph, TaskName};
use parking_lot::Mutex;
use placer::Kernels;
use proto::event_stream::EventStreams;
use proto::link::{
    CreateSession, CreatedSession, ExtendSession, ListedDevices, MakeCallable, MasterLink, PartialRunSetup,
    RunCallable, RunCallableOutcome, RunStep, RunStepOutcome, WorkerLink,
};
use proto::{RecentIds, Status, pb};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// The number of remembered request ids, by which repeated requests are refused.
const MAX_REQUEST_IDS: usize = 7_000;

/// The time after a failed session start within which another start that needs the same tasks counts as a
/// retry.
const REPEAT_WINDOW: Duration = Duration::from_secs(2);
/// The time for which a retry of a failed session start waits for missing tasks.
const REPEAT_TIMEOUT: Duration = Duration::from_millis(250);

/// The parameters of a [`Master`]: its task, the links to all workers, the defaults and limits of new sessions,
/// and the kernels and the evaluator with which it prepares graphs.
pub struct MasterConfig {
    /// The task of this process.
    pub task: TaskName,
    /// The links to the workers of all tasks of the cluster, including the task of this process.
    pub workers: Links,
    /// The address of this task, `host:port`; empty for a process without a cluster. The master finds its
    /// task by this address in the `cluster_def` of a session.
    pub address: String,
    /// The default options, which a session's options override.
    pub default_config: pb::ConfigProto,
    /// The longest time that a new session waits for workers.
    pub connect_deadline: Duration,
    /// The table of kernels, which gives the device types that can run a node.
    pub kernels: Arc<dyn Kernels + Send + Sync>,
    /// The streams to debuggers of clients, which the worker of the same task uses too.
    pub event_streams: Arc<EventStreams>,
    /// The evaluator for constant folding.
    pub evaluator: Arc<dyn graph::ops::Evaluate + Send + Sync>,
}

impl fmt::Debug for MasterConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MasterConfig({}, {} workers)", self.task, self.workers.len())
    }
}

/// The master of a task, which keeps the sessions that clients open. Clients call it through [`MasterLink`].
pub struct Master {
    config: MasterConfig,
    /// A random number that distinguishes this master from an earlier one of the same task.
    incarnation: u64,
    sessions: Mutex<FxHashMap<Arc<str>, Arc<Session>>>,
    requests_seen: Mutex<RecentIds>,
    ignored_options: Arc<IgnoredOptions>,
    /// The tasks needed by the last session start that could not reach all its tasks, and the time of its
    /// failure.
    failed_start: Mutex<Option<(BTreeSet<TaskName>, Instant)>>,
    stopping: CancellationToken,
}

impl Master {
    /// Returns a master without sessions.
    pub fn new(config: MasterConfig) -> Arc<Master> {
        Arc::new(Master {
            incarnation: rand::random::<u64>() | 1,
            config,
            sessions: Mutex::default(),
            requests_seen: Mutex::new(RecentIds::new(MAX_REQUEST_IDS)),
            ignored_options: Arc::default(),
            failed_start: Mutex::default(),
            stopping: CancellationToken::new(),
        })
    }

    /// Records a request id, or fails if the id has been used before.
    pub(crate) fn check_request_id(&self, method: &str, id: i64) -> Result<(), Status> {
        self.requests_seen.lock().accept(method, None, id)
    }

    /// Refuses new sessions and steps. Steps in flight may end within `grace`; then all sessions are closed,
    /// and the steps that still run fail as unavailable.
    pub async fn shutdown(&self, grace: Duration) {
        self.stopping.cancel();
        let sessions: Vec<Arc<Session>> = self.sessions.lock().values().cloned().collect();
        let idle = futures::future::join_all(sessions.iter().map(|s| s.idle()));
        // Steps that still run after `grace` are ended by the close of their sessions.
        let _ = tokio::time::timeout(grace, idle).await;
        self.close_all(&self.stopped()).await;
    }

    /// Closes all sessions with the status `end`.
    async fn close_all(&self, end: &Status) {
        let sessions: Vec<Arc<Session>> = self.sessions.lock().drain().map(|(_, s)| s).collect();
        futures::future::join_all(sessions.into_iter().map(|s| s.close(end.clone()))).await;
    }

    /// Returns the status with which requests are refused during shutdown.
    fn stopped(&self) -> Status {
        Status::new(Code::Unavailable, format!("{} is shutting down", self.config.task))
    }

    /// Returns a session by its handle.
    fn session(&self, handle: &str) -> Result<Arc<Session>, Status> {
        if self.stopping.is_cancelled() {
            return Err(self.stopped());
        }
        let found = self.sessions.lock().get(handle).cloned();
        found.ok_or_else(|| Status::new(Code::Aborted, format!("Session {handle} is not found.")))
    }

    /// Returns the tasks that a session with the configuration `config` may use.
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
                let connect_timeout = self.config.connect_deadline;
                Members::of_session(def, &addresses, own, &config.device_filters, connect_timeout)
            }
            _ => Members::of_server(task, links, &config.device_filters),
        }
    }

    /// Returns the parts of the master that a session with the configuration `config` uses.
    ///
    /// # Errors
    /// `InvalidArgument` for a leader of collectives that is no task.
    fn context(&self, config: &pb::ConfigProto) -> Result<MasterContext, Status> {
        let named = config.experimental.as_ref().map(|e| e.collective_group_leader.as_str());
        let named = named.filter(|name| !name.is_empty()).map(TaskName::parse).transpose()?;
        Ok(MasterContext {
            kernels: self.config.kernels.clone(),
            evaluator: self.config.evaluator.clone(),
            ignored_options: self.ignored_options.clone(),
            connect_deadline: self.config.connect_deadline,
            master: (self.config.task.to_string().into(), self.incarnation),
            event_streams: self.config.event_streams.clone(),
            leader: self.leader(named.as_ref()),
        })
    }

    /// Returns the link to the task that leads the groups of collectives: the named one, or task 0 of job `chief`, else of
    /// job `worker`, else of the first job.
    fn leader(&self, named: Option<&TaskName>) -> Option<Arc<dyn WorkerLink>> {
        let workers = &self.config.workers;
        let first_of = |job: &str| workers.get(&TaskName::new(job, 0));
        let leader = match named {
            Some(leader) => workers.get(leader),
            None => first_of("chief").or_else(|| first_of("worker")).or_else(|| workers.values().next()),
        };
        leader.cloned()
    }

    /// Opens the session on its workers. If a worker refuses or the caller stops waiting, the session is
    /// closed, which deletes it on the workers.
    async fn open_on_workers(&self, session: Session, deadline: Instant) -> Result<Arc<Session>, Status> {
        let session = Arc::new(session);
        let (sender, receiver) = oneshot::channel();
        tokio::spawn(async move {
            let opened = session.start(deadline).await;
            let unclaimed = UnclaimedSession(Some(session));
            // If the caller no longer waits, `send` fails, and the drop of the guard closes the session.
            drop(sender.send(opened.map(|()| unclaimed)));
        });
        let lost = |_| Err(Status::new(Code::Internal, "a session's start ended without a result"));
        let unclaimed: Result<UnclaimedSession, Status> = receiver.await.unwrap_or_else(lost);
        unclaimed?.0.take().ok_or_else(|| Status::new(Code::Internal, "a session was claimed twice"))
    }

    /// Returns the longest time for which a new session waits for the tasks in `needed`. After `Unavailable`,
    /// a client repeats its call many times within about a second, so a repeated call waits for less time.
    fn connect_timeout(&self, needed: &BTreeSet<TaskName>) -> Duration {
        match &*self.failed_start.lock() {
            Some((tasks, when)) if tasks == needed && when.elapsed() < REPEAT_WINDOW => REPEAT_TIMEOUT,
            _ => self.config.connect_deadline,
        }
    }

    /// Queries the devices of the session's tasks, places the graph, and opens the session on its workers.
    async fn start_session(&self, request: CreateSession) -> Result<CreatedSession, Status> {
        let config = options::merge(&self.config.default_config, &request.config)?;
        self.ignored_options.session(&config);
        let longest = Instant::now() + self.config.connect_deadline;
        let deadline = request.deadline.map_or(longest, |d| d.min(longest));
        let members = self.members(&config, &request.target)?;
        let graph: Graph = request.graph;
        let needs = members.needs(&graph);
        let needed = members.links.keys().filter(|t| needs(t)).cloned().collect();
        let deadline = deadline.min(Instant::now() + self.connect_timeout(&needed));
        let devices = members.devices(&members.links, needs, deadline).await;
        let devices =
            devices.inspect_err(|_| drop(self.failed_start.lock().replace((needed, Instant::now()))))?;
        let handle: Arc<str> = format!("{:016x}", rand::random::<u64>()).into();
        let (session_handle, context, runtime) = (handle.clone(), self.context(&config)?, Handle::current());
        let session = on_blocking_thread(move || {
            Session::new(session_handle, config, members, devices, graph, context, runtime)
        })
        .await?;
        let session = self.open_on_workers(session, deadline).await?;
        self.sessions.lock().insert(handle.clone(), session);
        Ok(CreatedSession { session: handle, graph_version: 0 })
    }
}

/// A guard of an open session whose handle has not been returned yet; closes the session on drop.
struct UnclaimedSession(Option<Arc<Session>>);

impl Drop for UnclaimedSession {
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
