//! What a master asks of a worker, and how, whether both are one process or the wire is between them.

use crate::epoch::Epoch;
use crate::pb;
use crate::status::Status;
use async_trait::async_trait;
use bytes::Bytes;
use graph::{DeviceAttributes, Graph, Tensor};
use std::fmt;
use std::sync::Arc;
use std::time::Instant;

/// A worker as its master sees it. Every call ends by `deadline`, where there is one, with `DeadlineExceeded`
/// naming the task; dropping a call's future cancels it on the worker.
#[async_trait]
pub trait WorkerLink: Send + Sync + fmt::Debug {
    /// The worker's own devices.
    async fn status(&self, deadline: Option<Instant>) -> Result<Vec<DeviceAttributes>, Status>;

    async fn create_session(&self, session: CreateWorkerSession) -> Result<(), Status>;

    async fn delete_session(&self, session: &str, deadline: Option<Instant>) -> Result<(), Status>;

    /// Hands over the worker's part of a graph, every node placed in full; gives the handle to run it by.
    async fn register_graph(&self, part: RegisterGraph) -> Result<Arc<str>, Status>;

    async fn deregister_graph(&self, session: &str, graph: &str) -> Result<(), Status>;

    /// Runs a registered part once.
    async fn run_graph(&self, run: RunGraph) -> Result<RunGraphOutcome, Status>;

    /// Forgets what a step left behind.
    async fn cleanup_graph(&self, step_id: i64) -> Result<(), Status>;

    /// As [`WorkerLink::cleanup_graph`], if the worker can be told without waiting; false if it was not told.
    fn forget_step(&self, _step_id: i64) -> bool {
        false
    }

    /// Switches the record of transfers between tasks, and gives what it has of the steps asked for.
    async fn logging(&self, request: pb::LoggingRequest) -> Result<Vec<pb::LabeledStepStats>, Status>;

    /// Clears resource containers; an empty name is the default container.
    async fn cleanup_all(&self, containers: &[String]) -> Result<(), Status>;
}

/// Opens a master's session on a worker.
#[derive(Clone, Debug, Default)]
pub struct CreateWorkerSession {
    /// Chosen by the master.
    pub session: Arc<str>,
    pub server_def: pb::ServerDef,
    /// Whether the session has resources of its own.
    pub isolate_session_state: bool,
    pub cluster_devices: Vec<DeviceAttributes>,
    pub master_task: String,
    /// The master's own incarnation: a new one from the same task ends the sessions of the old.
    pub master_incarnation: u64,
    /// All calls that name the session are of this epoch; the worker refuses them once it has seen a later one.
    pub epoch: Option<Epoch>,
    pub deadline: Option<Instant>,
}

#[derive(Clone, Debug)]
pub struct RegisterGraph {
    pub session: Arc<str>,
    pub graph: Graph,
    pub graph_options: Option<pb::GraphOptions>,
    pub config: Option<pb::ConfigProto>,
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

/// How much of a step a call runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extent {
    #[default]
    Whole,
    /// A step in parts: this call, the first or a later one, feeds and fetches, and leaves the step running.
    Part,
    /// The last part: this call also waits for the step's end.
    LastPart,
}

#[derive(Clone, Debug, Default)]
pub struct RunGraphOutcome {
    /// In the order of the request.
    pub recv: Vec<(Arc<str>, Tensor)>,
    pub step_stats: Option<pb::StepStats>,
    pub partition_graphs: Vec<pb::GraphDef>,
}

/// A master as its clients see it. Dropping a call's future cancels it.
#[async_trait]
pub trait MasterLink: Send + Sync + fmt::Debug {
    /// Opens a session over a graph, which is placed in whole.
    async fn create_session(&self, request: CreateSession) -> Result<CreatedSession, Status>;

    /// Adds nodes to a session's graph; gives the new version.
    async fn extend_session(&self, request: ExtendSession) -> Result<i64, Status>;

    async fn run_step(&self, request: RunStep) -> Result<RunStepOutcome, Status>;

    /// Announces a step that will run in parts; gives the handle for [`RunStep::partial_run`].
    async fn partial_run_setup(&self, request: PartialRunSetup) -> Result<Arc<str>, Status>;

    /// Prepares a step that will be run many times; gives its handle.
    async fn make_callable(&self, request: MakeCallable) -> Result<i64, Status>;

    async fn run_callable(&self, request: RunCallable) -> Result<RunCallableOutcome, Status>;

    async fn release_callable(&self, session: &str, handle: i64) -> Result<(), Status>;

    async fn close_session(&self, session: &str) -> Result<(), Status>;

    /// The devices of a session, or of the whole cluster.
    async fn list_devices(&self, session: Option<&str>) -> Result<ListedDevices, Status>;

    /// Clears containers on the matching workers and closes every session.
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
    /// A serialised GraphDef of the new nodes alone; they name older ones as inputs.
    pub nodes: Bytes,
    /// The version that the client believes to be current.
    pub graph_version: i64,
}

#[derive(Clone, Debug, Default)]
pub struct RunStep {
    pub session: Arc<str>,
    /// By `name` or `name:port`.
    pub feeds: Vec<(String, Tensor)>,
    pub fetches: Vec<String>,
    /// Nodes to run without returning anything.
    pub targets: Vec<String>,
    pub options: pb::RunOptions,
    /// The step that this is a part of.
    pub partial_run: Option<Arc<str>>,
    pub deadline: Option<Instant>,
}

/// Everything that the parts of a step will feed, fetch and run.
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
    /// In the order of the callable's feeds.
    pub feeds: Vec<Tensor>,
    pub deadline: Option<Instant>,
}

#[derive(Clone, Debug, Default)]
pub struct RunCallableOutcome {
    /// In the order of the callable's fetches.
    pub fetches: Vec<Tensor>,
    pub metadata: Option<pb::RunMetadata>,
}

#[derive(Clone, Debug, Default)]
pub struct RunStepOutcome {
    /// In the order of the request, under the names of the request.
    pub fetches: Vec<(String, Tensor)>,
    pub metadata: Option<pb::RunMetadata>,
}

#[derive(Clone, Debug, Default)]
pub struct ListedDevices {
    pub local: Vec<DeviceAttributes>,
    pub remote: Vec<DeviceAttributes>,
}
