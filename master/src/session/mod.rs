//! A session: a graph placed over some of the cluster's devices, and the steps that run on it.

mod open;
mod place;
mod runs;

use self::place::place;
use crate::callables::Callables;
use crate::cluster::{Members, SessionCluster};
use crate::options::Reported;
use crate::partial_run::PartialRun;
use crate::plan_cache::PlanCache;
use bytes::Bytes;
use graph::{Code, DeviceAttributes, Graph, TaskName};
use parking_lot::Mutex;
use placer::{Kernels, Names};
use proto::{Status, convert, pb};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// A worker that does not answer the end of a session within this time is left to itself.
const DELETE_DEADLINE: Duration = Duration::from_secs(10);

/// As long as the end of a session waits for its workers' word; they are told in any case.
const DELETE_PATIENCE: Duration = Duration::from_secs(1);

const CLOSED: &str = "Step was cancelled by an explicit call to `Session::Close()`.";

/// What a master lends its sessions.
#[derive(Clone)]
pub(crate) struct Engine {
    pub(crate) kernels: Arc<dyn Kernels + Send + Sync>,
    pub(crate) evaluator: Arc<dyn graph::ops::Evaluate + Send + Sync>,
    pub(crate) reported: Arc<Reported>,
    /// How long a task that a session needs is waited for.
    pub(crate) connect_deadline: Duration,
    /// The master's task under its own name, and its incarnation.
    pub(crate) master: (Arc<str>, u64),
}

pub(crate) struct Session {
    pub(crate) handle: Arc<str>,
    pub(crate) config: pb::ConfigProto,
    members: Members,
    engine: Engine,
    state: Mutex<State>,
    /// One extension at a time.
    extending: tokio::sync::Mutex<()>,
    plans: PlanCache,
    callables: Callables,
    partial_runs: Mutex<PartialRuns>,
    closed: CancellationToken,
    /// What steps that the end of the session cut off are told.
    end: OnceLock<Status>,
    /// Steps in flight.
    steps: TaskTracker,
    /// Carries what steps leave to be done behind them.
    pub(crate) runtime: Handle,
}

struct State {
    cluster: Arc<SessionCluster>,
    /// Every node carries the full name of its device.
    placed: Arc<Graph>,
    /// The same graph as the client sent it.
    requested: Arc<Graph>,
    version: i64,
}

#[derive(Default)]
struct PartialRuns {
    begun: u64,
    by_handle: FxHashMap<Arc<str>, Arc<PartialRun>>,
}

impl Session {
    /// Places the graph over the devices of those who take part. What cannot be placed leaves nothing behind:
    /// the workers are told later, by [`Session::start`].
    pub(crate) fn new(
        handle: Arc<str>,
        config: pb::ConfigProto,
        members: Members,
        devices: BTreeMap<TaskName, Vec<DeviceAttributes>>,
        requested: Graph,
        engine: Engine,
        runtime: Handle,
    ) -> Result<Session, Status> {
        let cluster = Arc::new(SessionCluster::new(&members, devices, Arc::new(Names::master()))?);
        let placed = Arc::new(place(&requested, None, &config, &cluster, &engine)?);
        let state = State { cluster, placed, requested: Arc::new(requested), version: 0 };
        Ok(Session {
            handle,
            config,
            members,
            engine,
            state: Mutex::new(state),
            extending: tokio::sync::Mutex::new(()),
            plans: PlanCache::default(),
            callables: Callables::default(),
            partial_runs: Mutex::default(),
            closed: CancellationToken::new(),
            end: OnceLock::new(),
            steps: TaskTracker::new(),
            runtime,
        })
    }

    pub(crate) fn cluster(&self) -> Arc<SessionCluster> {
        self.state.lock().cluster.clone()
    }

    /// Adds nodes. Stateful nodes keep the device that they have; tasks that only the new nodes name join.
    pub(crate) async fn extend(self: &Arc<Self>, nodes: Bytes, version: i64) -> Result<i64, Status> {
        let _one = self.extending.lock().await;
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
                graph::Error::DuplicateName { node } if requested.find(&node).is_some() => {
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
        let (this, graph, on) = (self.clone(), requested.clone(), cluster.clone());
        let before = self.state.lock().placed.clone();
        let placed =
            on_blocking_thread(move || place(&graph, Some(&before), &this.config, &on, &this.engine)).await?;
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

    /// Ends the steps in flight, which are told why, and the worker sessions. The caller may give up waiting.
    pub(crate) async fn close(self: Arc<Self>, end: Status) {
        // The first reason holds.
        let _ = self.end.set(end);
        self.closed.cancel();
        let runtime = self.runtime.clone();
        let ended = runtime.spawn(async move {
            self.idle().await;
            self.plans.clear();
            self.callables.clear();
            self.partial_runs.lock().by_handle.clear();
            self.delete_on_workers().await;
        });
        // Fails only when the process ends, and the session with it.
        let _ = ended.await;
    }

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
        let _ = tokio::time::timeout(DELETE_PATIENCE, deleted).await;
    }
}

/// What steps are told that a client's CloseSession cut off.
pub(crate) fn closed_by_client() -> Status {
    Status::new(Code::Cancelled, CLOSED)
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Session({})", self.handle)
    }
}

/// A failure of placing or splitting, as clients are told of it.
pub(crate) fn from_placer(error: placer::Error) -> Status {
    Status::new(error.code(), error.to_string())
}

/// Runs what takes long away from the threads that answer calls.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Status> + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .unwrap_or_else(|e| Err(Status::new(Code::Internal, format!("the master's planning failed: {e}"))))
}
