//! A session: a graph placed over devices of the cluster, and the steps that run on it.

mod open;
mod placement;
mod runs;

use self::placement::place;
use crate::callables::Callables;
use crate::cluster::{Members, SessionCluster};
use crate::collective_steps::{RetainedSteps, StepSequences};
use crate::options::IgnoredOptions;
use crate::partial_run::PartialRun;
use crate::plan_cache::PlanCache;
use bytes::Bytes;
use graph::{Code, DeviceAttributes, Graph, TaskName};
use parking_lot::Mutex;
use placer::{Kernels, Names};
use proto::event_stream::EventStreams;
use proto::link::WorkerLink;
use proto::{Status, convert, pb};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// The time limit of a request that deletes the session on a worker.
const DELETE_DEADLINE: Duration = Duration::from_secs(10);

/// The time for which the close of a session waits for its workers to delete it; requests that take longer
/// continue in the background.
const DELETE_WAIT: Duration = Duration::from_secs(1);

const CLOSED: &str = "Step was cancelled by an explicit call to `Session::Close()`.";

/// The parts of a master that its sessions use.
#[derive(Clone)]
pub(crate) struct MasterContext {
    pub(crate) kernels: Arc<dyn Kernels + Send + Sync>,
    pub(crate) evaluator: Arc<dyn graph::ops::Evaluate + Send + Sync>,
    pub(crate) ignored_options: Arc<IgnoredOptions>,
    /// The longest time that a session waits for a task that it needs.
    pub(crate) connect_deadline: Duration,
    /// The name of the master's task in the server's cluster, and the incarnation of the master.
    pub(crate) master: (Arc<str>, u64),
    /// The streams to debuggers of clients.
    pub(crate) event_streams: Arc<EventStreams>,
    /// The link to the task that leads the groups of collectives; `None` if no task does.
    pub(crate) leader: Option<Arc<dyn WorkerLink>>,
}

/// A client's session: its graph, its cluster, and the plans, callables and partial runs made from the graph.
pub(crate) struct Session {
    pub(crate) handle: Arc<str>,
    pub(crate) config: pb::ConfigProto,
    members: Members,
    context: MasterContext,
    state: Mutex<SessionState>,
    /// The lock that serialises extensions of the graph.
    extending: tokio::sync::Mutex<()>,
    plans: PlanCache,
    callables: Callables,
    partial_runs: Mutex<PartialRuns>,
    step_sequences: Arc<StepSequences>,
    retained_steps: RetainedSteps,
    /// The number of whole steps that have begun.
    steps_begun: AtomicU64,
    closed: CancellationToken,
    /// The status of the steps that the end of the session interrupts; set when the session ends.
    end: OnceLock<Status>,
    /// The tracker of the steps in flight, for which the end of the session waits.
    steps: TaskTracker,
    /// The runtime for work that may outlive the call that started it, such as planning and cleanup.
    pub(crate) runtime: Handle,
}

/// The graph of a session and the cluster that it is placed on.
struct SessionState {
    cluster: Arc<SessionCluster>,
    /// The placed graph: every node has the full name of its device.
    placed: Arc<Graph>,
    /// The graph as sent by the client, before lowering and placement.
    requested: Arc<Graph>,
    version: i64,
}

/// The partial runs of a session.
#[derive(Default)]
struct PartialRuns {
    begun: u64,
    by_handle: FxHashMap<Arc<str>, Arc<PartialRun>>,
}

impl Session {
    /// Creates a session and places its graph over the devices of its tasks. A failure leaves no state on the
    /// workers, because the session is opened on them later, by [`Session::start`].
    pub(crate) fn new(
        handle: Arc<str>,
        config: pb::ConfigProto,
        members: Members,
        devices: BTreeMap<TaskName, Vec<DeviceAttributes>>,
        requested: Graph,
        context: MasterContext,
        runtime: Handle,
    ) -> Result<Session, Status> {
        let cluster = Arc::new(SessionCluster::new(&members, devices, Arc::new(Names::master()))?);
        let placed = Arc::new(place(&requested, None, &config, &cluster, &context)?);
        let state = SessionState { cluster, placed, requested: Arc::new(requested), version: 0 };
        Ok(Session {
            handle,
            config,
            members,
            context,
            state: Mutex::new(state),
            extending: tokio::sync::Mutex::new(()),
            plans: PlanCache::default(),
            callables: Callables::default(),
            partial_runs: Mutex::default(),
            step_sequences: Arc::default(),
            retained_steps: RetainedSteps::default(),
            steps_begun: AtomicU64::new(0),
            closed: CancellationToken::new(),
            end: OnceLock::new(),
            steps: TaskTracker::new(),
            runtime,
        })
    }

    /// Returns the tasks and devices that the session uses.
    pub(crate) fn cluster(&self) -> Arc<SessionCluster> {
        self.state.lock().cluster.clone()
    }

    /// Adds nodes to the graph and returns the graph's new version. Stateful nodes stay on their devices;
    /// tasks that only the new nodes need are added to the session.
    pub(crate) async fn extend(self: &Arc<Self>, nodes: Bytes, version: i64) -> Result<i64, Status> {
        let _guard = self.extending.lock().await;
        let (requested, current) = {
            let state = self.state.lock();
            (state.requested.clone(), state.version)
        };
        if version != current {
            return Err(Status::new(
                Code::Aborted,
                format!("Current version is {current} but caller expected {version}."),
            ));
        }
        let requested = on_blocking_thread(move || {
            let graph = (*requested).clone();
            let extended = convert::extend_graph(graph, nodes, &mut convert::Budget::default());
            extended.map(Arc::new).map_err(|error| match error {
                graph::Error::DuplicateName { node } if requested.has_name(&node) => {
                    Status::invalid(format!(
                        "GraphDef argument to Extend includes node '{node}', which was created by a previous \
                         call to Create or Extend in this session."
                    ))
                }
                other => other.into(),
            })
        })
        .await?;
        let cluster = self.join(&requested).await?;
        let (this, graph, new_cluster) = (self.clone(), requested.clone(), cluster.clone());
        let before = self.state.lock().placed.clone();
        let placed = on_blocking_thread(move || {
            place(&graph, Some(&before), &this.config, &new_cluster, &this.context)
        })
        .await?;
        let mut state = self.state.lock();
        state.cluster = cluster;
        state.placed = Arc::new(placed);
        state.requested = requested;
        state.version += 1;
        Ok(state.version)
    }

    /// Waits until no step is in flight.
    pub(crate) async fn idle(&self) {
        self.steps.close();
        self.steps.wait().await;
    }

    /// Ends the steps in flight with the status `end`, and deletes the session on the workers. The deletion
    /// continues if the caller drops the future.
    pub(crate) async fn close(self: Arc<Self>, end: Status) {
        // `set` fails if the session was closed before; the first status is kept.
        let _ = self.end.set(end);
        self.closed.cancel();
        let runtime = self.runtime.clone();
        let ended = runtime.spawn(async move {
            self.idle().await;
            self.plans.clear();
            self.callables.clear();
            self.partial_runs.lock().by_handle.clear();
            self.retained_steps.release(&self.runtime);
            if let Some(leader) = &self.context.leader {
                self.step_sequences.close(&self.handle, leader).await;
            }
            self.delete_on_workers().await;
        });
        // Awaiting the spawned task fails only when the process ends.
        let _ = ended.await;
    }

    /// Deletes the session on its workers, and logs failures.
    async fn delete_on_workers(self: &Arc<Self>) {
        let deadline = Some(Instant::now() + DELETE_DEADLINE);
        let cluster = self.cluster();
        let deletions = cluster.links.iter().map(|(task, link)| {
            let (session, task, link) = (self.handle.clone(), task.clone(), link.clone());
            self.runtime.spawn(async move {
                if let Err(status) = link.delete_session(&session, deadline).await {
                    tracing::warn!(%session, %task, "the worker's session could not be ended: {status}");
                }
            })
        });
        let deleted = futures::future::join_all(deletions);
        let _ = tokio::time::timeout(DELETE_WAIT, deleted).await;
    }
}

/// Returns the status of steps that a client's CloseSession interrupts.
pub(crate) fn closed_by_client() -> Status {
    Status::new(Code::Cancelled, CLOSED)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.handle)
    }
}

/// Converts an error of placement or partitioning to a status for clients.
pub(crate) fn from_placer(error: placer::Error) -> Status {
    Status::new(error.code(), error.to_string())
}

/// Runs long work on a thread for blocking work, so that the threads that answer calls stay free.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(Status::new(Code::Internal, format!("the master's planning failed: {e}"))))
}
