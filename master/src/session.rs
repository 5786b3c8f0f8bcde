//! A session: a graph placed over some of the cluster's devices, and the steps that run on it.

use crate::plan::{Exchange, Keep, Plan, PlanRequest};
use crate::plan_cache::PlanCache;
use crate::signature::{Signature, without_zero_port};
use crate::step_run::{StepRun, Verdict};
use futures::stream::{FuturesUnordered, StreamExt};
use graph::passes::lower;
use graph::{Code, DeviceAttributes, DeviceName, Graph, RendezvousKey, TaskName};
use parking_lot::Mutex;
use placer::{DeviceSet, Kernels, Names, PlaceRequest};
use proto::link::{RunGraph, RunGraphOutcome, RunStep, RunStepOutcome, WorkerLink};
use proto::{Status, convert, pb};
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

/// A worker that does not take note of a step's end within this time forgets it in its own time.
const CLEANUP_DEADLINE: Duration = Duration::from_secs(10);

const CLOSED: &str = "Step was cancelled by an explicit call to `Session::Close()`.";

/// What a session knows of the cluster; fixed at its creation.
pub(crate) struct SessionCluster {
    pub(crate) links: BTreeMap<TaskName, Arc<dyn WorkerLink>>,
    pub(crate) devices: DeviceSet,
    pub(crate) attributes: Vec<DeviceAttributes>,
    /// Where feeds enter and fetches leave, and its index in the set.
    pub(crate) client_device: DeviceAttributes,
    pub(crate) client_index: u32,
    /// For the nodes that splitting the session's graphs adds.
    pub(crate) names: Names,
    pub(crate) kernels: Arc<dyn Kernels + Send + Sync>,
    pub(crate) evaluator: Arc<dyn graph::ops::Evaluate + Send + Sync>,
}

impl SessionCluster {
    pub(crate) fn link(&self, task: &TaskName) -> Result<Arc<dyn WorkerLink>, Status> {
        let link = self.links.get(task).cloned();
        link.ok_or_else(|| Status::new(Code::Internal, format!("the session does not use {task}")))
    }

    /// The rendezvous key of a fed or fetched tensor.
    pub(crate) fn client_key(&self, name: &str) -> Arc<str> {
        let device = self.client_device.name.to_string();
        let edge = placer::normalise_endpoint(name);
        RendezvousKey::new(&device, self.client_device.incarnation, &device, &edge).text
    }
}

pub(crate) struct Session {
    pub(crate) handle: Arc<str>,
    pub(crate) config: pb::ConfigProto,
    pub(crate) cluster: Arc<SessionCluster>,
    state: Mutex<State>,
    /// One extension at a time.
    extending: tokio::sync::Mutex<()>,
    plans: PlanCache,
    closed: CancellationToken,
    /// What steps that the end of the session cut off are told.
    end: OnceLock<Status>,
    /// Steps in flight.
    steps: TaskTracker,
    /// Carries what steps leave to be done behind them.
    pub(crate) runtime: Handle,
}

struct State {
    /// Every node carries the full name of its device.
    placed: Arc<Graph>,
    /// The same graph as the client sent it.
    requested: Arc<Graph>,
    version: i64,
}

impl Session {
    /// Places the graph and makes the session's worker sessions, in that order: what cannot be placed leaves
    /// nothing behind.
    pub(crate) fn new(
        handle: Arc<str>,
        config: pb::ConfigProto,
        cluster: SessionCluster,
        requested: Graph,
        runtime: Handle,
    ) -> Result<Session, Status> {
        let placed = place(&requested, None, &config, &cluster)?;
        Ok(Session {
            handle,
            config,
            cluster: Arc::new(cluster),
            state: Mutex::new(State { placed: Arc::new(placed), requested: Arc::new(requested), version: 0 }),
            extending: tokio::sync::Mutex::new(()),
            plans: PlanCache::default(),
            closed: CancellationToken::new(),
            end: OnceLock::new(),
            steps: TaskTracker::new(),
            runtime,
        })
    }

    /// Adds nodes. Stateful nodes keep the device that they have.
    pub(crate) async fn extend(self: &Arc<Self>, nodes: pb::GraphDef, version: i64) -> Result<i64, Status> {
        let _one = self.extending.lock().await;
        let (placed, requested, current) = {
            let state = self.state.lock();
            (state.placed.clone(), state.requested.clone(), state.version)
        };
        if version != current {
            return Err(Status::new(
                Code::Aborted,
                format!("Current version is {current} but caller expected {version}."),
            ));
        }
        let this = self.clone();
        let (placed, requested) = on_blocking_thread(move || {
            if let Some(known) = nodes.node.iter().find(|n| requested.find(&n.name).is_some()) {
                return Err(Status::invalid(format!(
                    "GraphDef argument to Extend includes node '{}', which was created by a previous call to \
                     Create or Extend in this session.",
                    known.name
                )));
            }
            let graph = (*requested).clone();
            let requested = convert::extend_graph(graph, nodes, &mut convert::Budget::default())?;
            let placed = place(&requested, Some(&placed), &this.config, &this.cluster)?;
            Ok((placed, requested))
        })
        .await?;
        let mut state = self.state.lock();
        state.placed = Arc::new(placed);
        state.requested = Arc::new(requested);
        state.version += 1;
        Ok(state.version)
    }

    /// Runs one step; ends early when the session is closed or the deadline passes.
    pub(crate) async fn run_step(self: &Arc<Self>, step: RunStep) -> Result<RunStepOutcome, Status> {
        let token = self.steps.token();
        let deadline = self.deadline_of(&step);
        let expired = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
                None => std::future::pending().await,
            }
        };
        let result = tokio::select! {
            biased;
            () = self.closed.cancelled() => Err(self.end.get().cloned().unwrap_or_else(closed_by_client)),
            result = self.run_planned(step, deadline) => result,
            () = expired => Err(Status::new(
                Code::DeadlineExceeded,
                format!("the step did not end within its deadline; session {}", self.handle),
            )),
        };
        drop(token);
        result
    }

    fn deadline_of(&self, step: &RunStep) -> Option<Instant> {
        let timeout = match step.options.timeout_in_ms {
            0 => self.config.operation_timeout_in_ms,
            set => set,
        };
        let of_options = u64::try_from(timeout)
            .ok()
            .filter(|&ms| ms > 0)
            .map(|ms| Instant::now() + Duration::from_millis(ms));
        match (of_options, step.deadline) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    async fn run_planned(
        self: &Arc<Self>,
        step: RunStep,
        deadline: Option<Instant>,
    ) -> Result<RunStepOutcome, Status> {
        let plan = self.plan(&step).await?;
        let step_id = (rand::random::<u64>() & ((1 << 57) - 1)) as i64;
        let mut exchange = plan.exchange(&step)?;
        let _cleanup = Cleanup { session: self, plan: plan.clone(), step_id };
        let options = executor_options(&step.options);
        let mut run = StepRun::new(plan.parts.len());
        let mut parts = FuturesUnordered::new();
        for part in &plan.parts {
            let Exchange { send, recv } =
                if part.is_client { std::mem::take(&mut exchange) } else { Exchange::default() };
            let request = RunGraph {
                session: self.handle.clone(),
                graph: part.graph.clone(),
                step_id,
                send,
                recv,
                options,
                deadline,
            };
            parts.push(async move { (part, part.link.run_graph(request).await) });
        }
        let mut outcomes: Vec<(&TaskName, RunGraphOutcome)> = Vec::with_capacity(plan.parts.len());
        let mut verdict = run.at(Instant::now());
        loop {
            let until = match verdict {
                Verdict::Succeed => break,
                Verdict::Fail(status) => return Err(status),
                Verdict::Wait { until } => until,
            };
            verdict = tokio::select! {
                Some((part, result)) = parts.next() => {
                    let result = result.map(|outcome| outcomes.push((&part.task, outcome)));
                    run.part_ended(result.map_err(|s| at_task(s, part, plan.parts.len())), Instant::now())
                }
                () = wait_until(until) => run.at(Instant::now()),
            };
        }
        plan.collect(&step, outcomes)
    }

    /// The plan for a step's signature: from the cache, or made now.
    async fn plan(self: &Arc<Self>, step: &RunStep) -> Result<Arc<Plan>, Status> {
        let signature = Signature::new(
            step.feeds.iter().map(|f| f.0.as_str()),
            step.fetches.iter().map(String::as_str),
            step.targets.iter().map(String::as_str),
        );
        let make = || {
            let request = PlanRequest {
                keep: Keep {
                    session: self.handle.clone(),
                    closed: self.closed.clone(),
                    runtime: self.runtime.clone(),
                },
                graph: self.state.lock().placed.clone(),
                cluster: self.cluster.clone(),
                config: self.config.clone(),
                feeds: step.feeds.iter().map(|f| without_zero_port(&f.0).to_owned()).collect(),
                fetches: step.fetches.iter().map(|f| without_zero_port(f).to_owned()).collect(),
                targets: step.targets.clone(),
            };
            Plan::make(request)
        };
        self.plans.get(&self.runtime, signature, make).await
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
            self.delete_on_workers().await;
        });
        // Fails only when the process ends, and the session with it.
        let _ = ended.await;
    }

    async fn delete_on_workers(self: &Arc<Self>) {
        let deadline = Some(Instant::now() + DELETE_DEADLINE);
        let deletions = self.cluster.links.iter().map(|(task, link)| {
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

/// Tells the workers to forget a step, however it ended, without delaying its answer.
struct Cleanup<'a> {
    session: &'a Session,
    plan: Arc<Plan>,
    step_id: i64,
}

impl Drop for Cleanup<'_> {
    fn drop(&mut self) {
        let (plan, step_id) = (self.plan.clone(), self.step_id);
        self.session.runtime.spawn(async move {
            let cleanups = plan.parts.iter().map(|part| async move {
                if let Err(status) = part.link.cleanup_graph(step_id).await {
                    tracing::debug!(task = %part.task, step_id, "cleanup failed: {status}");
                }
            });
            // What is late is left to the worker.
            let _ = tokio::time::timeout(CLEANUP_DEADLINE, futures::future::join_all(cleanups)).await;
        });
    }
}

/// Lowers what calls functions, and gives every node the full name of its device. Stateful nodes that `before` has stay where they are there.
fn place(
    requested: &Graph,
    before: Option<&Graph>,
    config: &pb::ConfigProto,
    cluster: &SessionCluster,
) -> Result<Graph, Status> {
    let requested = &lower(requested)?;
    let mut assigned = Vec::new();
    // By name: what is lowered comes after what the client sent, so numbers change as the graph grows.
    for (_, node) in before.iter().flat_map(|g| g.nodes()).filter(|(_, n)| n.op.is_stateful()) {
        if let Some(id) = requested.find(&node.name) {
            assigned.push((id, DeviceName::parse(&node.device)?));
        }
    }
    let request = PlaceRequest {
        devices: &cluster.devices,
        kernels: &*cluster.kernels,
        allow_soft_placement: config.allow_soft_placement,
        assigned: &assigned,
    };
    let placement = placer::place(requested, &request).map_err(from_placer)?;
    for warning in &placement.warnings {
        tracing::warn!("{warning}");
    }
    if config.log_device_placement {
        for line in placement.log(requested) {
            tracing::info!("{line}");
        }
    }
    let mut placed = requested.clone();
    placement.apply(&mut placed);
    Ok(placed)
}

async fn wait_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}

/// A root failure of a step over several tasks says where it comes from.
fn at_task(mut status: Status, part: &crate::plan::Part, parts: usize) -> Status {
    if parts > 1 && !status.derived {
        status.message = format!("From {}:\n{}", part.task, status.message);
    }
    status
}

fn executor_options(options: &pb::RunOptions) -> pb::ExecutorOpts {
    pb::ExecutorOpts {
        record_timeline: options.trace_level >= pb::run_options::TraceLevel::SoftwareTrace as i32,
        record_partition_graphs: options.output_partition_graphs,
        report_tensor_allocations_upon_oom: options.report_tensor_allocations_upon_oom,
        ..Default::default()
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
