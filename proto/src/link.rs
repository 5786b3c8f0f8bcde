//! The interfaces between clients, masters and workers, which are the same within a process and over gRPC.

use crate::epoch::Epoch;
use crate::pb;
use crate::status::Status;
use crate::step_ids::SequenceEnd;
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use graph::{Code, DeviceAttributes, Graph, Tensor};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// The future of a call's result, boxed by the callee: its code is compiled once, and no caller makes the compiler
/// prove again that it is `Send`.
pub type Call<'a, T> = BoxFuture<'a, Result<T, Status>>;

/// The interface of a worker for its master. Every call with a `deadline` ends by it with `DeadlineExceeded`
/// naming the task. Dropping the future of a call cancels the call on the worker.
pub trait WorkerLink: Send + Sync + fmt::Debug {
    /// Returns the worker's own devices.
    fn status(&self, deadline: Option<Instant>) -> Call<'_, Vec<DeviceAttributes>>;

    fn create_session(&self, session: CreateWorkerSession) -> Call<'_, ()>;

    fn delete_session<'a>(&'a self, session: &'a str, deadline: Option<Instant>) -> Call<'a, ()>;

    /// Registers the worker's partition of a graph, in which every node has a full device name; returns the
    /// handle to run it.
    fn register_graph(&self, part: RegisterGraph) -> Call<'_, Arc<str>>;

    fn deregister_graph<'a>(&'a self, session: &'a str, graph: &'a str) -> Call<'a, ()>;

    /// Runs a registered partition once.
    fn run_graph(&self, run: RunGraph) -> Call<'_, RunGraphOutcome>;

    /// Removes the state that a step left on the worker.
    fn cleanup_graph(&self, step_id: i64) -> Call<'_, ()>;

    /// Does the same as [`WorkerLink::cleanup_graph`] without waiting. Returns `false` if the worker was not
    /// notified.
    fn forget_step(&self, _step_id: i64) -> bool {
        false
    }

    /// Switches the logging of transfers between tasks on or off, and returns the logged transfers of the
    /// requested steps.
    fn logging(&self, request: pb::LoggingRequest) -> Call<'_, Vec<pb::LabeledStepStats>>;

    /// Returns the step id that every master uses next for the steps with this graph key.
    fn next_step_id(&self, graph_key: i64, _deadline: Option<Instant>) -> Call<'_, i64> {
        let text = format!("step ids of graph key {graph_key} are not given out here");
        Box::pin(std::future::ready(Err(Status::new(Code::Unimplemented, text))))
    }

    /// Ends a sequence of step ids: masters that ask later get the ids of another sequence, and members of collectives
    /// that wait for the session's part of the step get an error.
    fn end_step_ids(&self, _end: SequenceEnd) -> Call<'_, ()> {
        Box::pin(std::future::ready(Ok(())))
    }

    /// Clears resource containers; an empty name is the default container.
    fn cleanup_all<'a>(&'a self, containers: &'a [String]) -> Call<'a, ()>;
}

/// Parameters of a master's session on a worker.
#[derive(Clone, Debug, Default)]
pub struct CreateWorkerSession {
    /// The session handle, chosen by the master.
    pub session: Arc<str>,
    pub server_def: pb::ServerDef,
    /// True if the session has its own resources.
    pub isolate_session_state: bool,
    pub cluster_devices: Vec<DeviceAttributes>,
    pub master_task: String,
    /// Incarnation of the master's process. A new incarnation of the same task ends the sessions of the old
    /// one.
    pub master_incarnation: u64,
    /// Epoch of all calls that name the session; the worker rejects them once it has received a later epoch.
    pub epoch: Option<Epoch>,
    pub deadline: Option<Instant>,
}

#[derive(Clone, Debug)]
pub struct RegisterGraph {
    pub session: Arc<str>,
    pub graph: Graph,
    pub graph_options: Option<pb::GraphOptions>,
    pub config: Option<pb::ConfigProto>,
    /// The tensors whose values the worker writes to debug URLs.
    pub debug_options: Option<pb::DebugOptions>,
    pub collective_graph_key: i64,
    pub deadline: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
pub struct RunGraph {
    pub session: Arc<str>,
    pub graph: Arc<str>,
    pub step_id: i64,
    /// Fed values by rendezvous key.
    pub send: Vec<(Arc<str>, Tensor)>,
    /// Rendezvous keys of the values to return.
    pub recv: Vec<Arc<str>>,
    pub options: pb::ExecutorOpts,
    pub extent: Extent,
    pub deadline: Option<Instant>,
}

/// The extent of a step that a call runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    #[default]
    Whole,
    /// A part of a partial run: the call feeds and fetches, and leaves the step running.
    Part,
    /// The last part of a partial run: the call also waits for the end of the step.
    LastPart,
}

#[derive(Clone, Debug, Default)]
pub struct RunGraphOutcome {
    /// The fetched values, in the order of the request.
    pub recv: Vec<(Arc<str>, Tensor)>,
    pub step_stats: Option<pb::StepStats>,
    pub partition_graphs: Vec<pb::GraphDef>,
    /// The measured costs of the nodes; `None` unless the run requests them.
    pub cost_graph: Option<pb::CostGraphDef>,
}

/// The interface of a master for its clients. Dropping the future of a call cancels the call.
#[async_trait]
pub trait MasterLink: Send + Sync + fmt::Debug {
    /// Opens a session on a graph, and places all nodes of the graph on devices.
    async fn create_session(&self, request: CreateSession) -> Result<CreatedSession, Status>;

    /// Adds nodes to a session's graph; returns the new version.
    async fn extend_session(&self, request: ExtendSession) -> Result<i64, Status>;

    async fn run_step(&self, request: RunStep) -> Result<RunStepOutcome, Status>;

    /// Sets up a step that runs in parts; returns the handle for [`RunStep::partial_run`].
    async fn partial_run_setup(&self, request: PartialRunSetup) -> Result<Arc<str>, Status>;

    /// Prepares a step that will be run many times; returns its handle.
    async fn make_callable(&self, request: MakeCallable) -> Result<i64, Status>;

    async fn run_callable(&self, request: RunCallable) -> Result<RunCallableOutcome, Status>;

    async fn release_callable(&self, session: &str, handle: i64) -> Result<(), Status>;

    async fn close_session(&self, session: &str) -> Result<(), Status>;

    /// Lists the devices of a session, or of the whole cluster.
    async fn list_devices(&self, session: Option<&str>) -> Result<ListedDevices, Status>;

    /// Clears the named resource containers on the workers that match the device filters, and closes every session.
    async fn reset(&self, containers: Vec<String>, device_filters: Vec<String>) -> Result<(), Status>;
}

#[derive(Clone, Debug, Default)]
pub struct CreateSession {
    pub graph: Graph,
    pub config: pb::ConfigProto,
    pub target: String,
    pub deadline: Option<Instant>,
}

#[derive(Clone, Debug)]
pub struct CreatedSession {
    pub session: Arc<str>,
    pub graph_version: i64,
}

#[derive(Clone, Debug)]
pub struct ExtendSession {
    pub session: Arc<str>,
    /// A serialised GraphDef of only the new nodes, which may name older nodes as inputs.
    pub nodes: Bytes,
    /// The graph version that the client believes to be current.
    pub graph_version: i64,
}

#[derive(Clone, Debug, Default)]
pub struct RunStep {
    pub session: Arc<str>,
    /// Fed values by `name` or `name:port`.
    pub feeds: Vec<(String, Tensor)>,
    pub fetches: Vec<String>,
    /// Nodes to run without returning their outputs.
    pub targets: Vec<String>,
    pub options: pb::RunOptions,
    /// Handle of the partial run that this call is a part of.
    pub partial_run: Option<Arc<str>>,
    pub deadline: Option<Instant>,
}

/// All feeds, fetches and targets of the parts of a partial run.
#[derive(Clone, Debug, Default)]
pub struct PartialRunSetup {
    pub session: Arc<str>,
    pub feeds: Vec<String>,
    pub fetches: Vec<String>,
    pub targets: Vec<String>,
}

#[derive(Clone, Debug, Default)]
pub struct MakeCallable {
    pub session: Arc<str>,
    pub options: pb::CallableOptions,
}

#[derive(Clone, Debug, Default)]
pub struct RunCallable {
    pub session: Arc<str>,
    pub handle: i64,
    /// Values in the order of the callable's feeds.
    pub feeds: Vec<Tensor>,
    pub deadline: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
pub struct RunCallableOutcome {
    /// Values in the order of the callable's fetches.
    pub fetches: Vec<Tensor>,
    pub metadata: Option<pb::RunMetadata>,
}

#[derive(Clone, Debug, Default)]
pub struct RunStepOutcome {
    /// Fetched values in the order of the request, under the names of the request.
    pub fetches: Vec<(String, Tensor)>,
    pub metadata: Option<pb::RunMetadata>,
}

#[derive(Clone, Debug, Default)]
pub struct ListedDevices {
    pub local: Vec<DeviceAttributes>,
    pub remote: Vec<DeviceAttributes>,
}
