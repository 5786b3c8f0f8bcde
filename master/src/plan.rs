//! A plan: the registered partitions of a step's graph on its workers.

use crate::callables::connect;
use crate::cluster::SessionCluster;
use crate::collective_steps::{self, GraphKey};
use crate::optimise::optimise;
use crate::options::{collective_graph_key, watches};
use crate::session::{MasterContext, from_placer, on_blocking_thread};
use crate::signature::without_zero_port;
use futures::future::join_all;
use graph::{Code, Graph, TaskName, Tensor};
use placer::{Partition, PartitionOptions, Split, partition, placed_devices, rewrite_for_run};
use proto::link::{RegisterGraph, RunGraphOutcome, WorkerLink};
use proto::{Status, pb};
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Instant;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// The inputs of planning. Feeds and fetches of `step` are spelled without `:0`.
pub(crate) struct PlanRequest {
    pub(crate) owner: PlanOwner,
    /// The placed graph of the session.
    pub(crate) graph: Arc<Graph>,
    pub(crate) cluster: Arc<SessionCluster>,
    pub(crate) context: MasterContext,
    pub(crate) config: pb::ConfigProto,
    pub(crate) step: pb::CallableOptions,
    pub(crate) deadline: Option<Instant>,
}

/// The session that owns a plan.
#[derive(Clone, Debug)]
pub(crate) struct PlanOwner {
    pub(crate) session: Arc<str>,
    /// The token that is cancelled when the session ends. Plans are not deregistered after the end of their
    /// session, because the workers then delete all graphs of the session.
    pub(crate) closed: CancellationToken,
    pub(crate) runtime: Handle,
}

/// The registered partitions of a graph, and the rendezvous keys of fed and fetched tensors. The drop of a
/// plan deregisters the partitions.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) owner: PlanOwner,
    pub(crate) partitions: Vec<RegisteredPartition>,
    /// The key of a step with collectives.
    pub(crate) graph_key: Option<GraphKey>,
    /// Number of runs of a plan whose tensors are watched.
    pub(crate) watched_runs: AtomicU64,
    feeds: FxHashMap<String, Arc<str>>,
    fetches: FxHashMap<String, Arc<str>>,
}

/// A partition registered on a worker.
pub(crate) struct RegisteredPartition {
    pub(crate) task: TaskName,
    pub(crate) link: Arc<dyn WorkerLink>,
    /// The worker's handle of the partition.
    pub(crate) graph: Arc<str>,
    /// True if the partition has the client device, which receives feeds and sends fetches.
    pub(crate) is_client: bool,
}

/// The tensors that the client exchanges with the partition on the client device: the fed tensors with their
/// rendezvous keys, and the rendezvous keys of the fetched tensors.
#[derive(Debug, Default)]
pub(crate) struct ClientTensors {
    pub(crate) send: Vec<(Arc<str>, Tensor)>,
    pub(crate) recv: Vec<Arc<str>>,
}

impl Plan {
    /// Rewrites the graph for the step, optimises it, partitions it by task, and registers every partition.
    pub(crate) async fn build(request: PlanRequest) -> Result<Plan, Status> {
        let PlanRequest { owner, cluster, config, .. } = &request;
        let (owner, cluster, config) = (owner.clone(), cluster.clone(), config.clone());
        let client_task = cluster.client_device.name.task_name();
        let keys = |names: &[String]| names.iter().map(|n| (n.clone(), cluster.client_key(n))).collect();
        let (feeds, fetches) = (keys(&request.step.feed), keys(&request.step.fetch));
        let run_options = request.step.run_options.clone().unwrap_or_default();
        let (group, deadline) = (collective_graph_key(&run_options), request.deadline);
        let debug_options = watches(&run_options).cloned();
        let (split, graph_key) = on_blocking_thread(move || split(&request, group)).await?;
        let registered = split.into_iter().map(|partition| {
            let (session, config, link) =
                (owner.session.clone(), config.clone(), cluster.link(&partition.task));
            let debug_options = debug_options.clone();
            let is_client = partition.task == client_task;
            async move {
                let link = link?;
                let register = RegisterGraph {
                    session,
                    graph: partition.graph,
                    graph_options: None,
                    config: Some(config),
                    debug_options,
                    collective_graph_key: graph_key.map_or(group, |graph_key| graph_key.key),
                    deadline,
                };
                let graph = link.register_graph(register).await?;
                Ok::<RegisteredPartition, Status>(RegisteredPartition {
                    task: partition.task,
                    link,
                    graph,
                    is_client,
                })
            }
        });
        let (owner, watched_runs) = (owner.clone(), AtomicU64::new(0));
        let mut plan = Plan { owner, partitions: Vec::new(), graph_key, watched_runs, feeds, fetches };
        let mut failure = None;
        for partition in join_all(registered).await {
            match partition {
                Ok(partition) => plan.partitions.push(partition),
                Err(status) => failure = failure.or(Some(status)),
            }
        }
        failure.map_or(Ok(plan), Err)
    }

    /// Returns the fed tensors with their rendezvous keys, and the rendezvous keys of the fetched tensors
    /// without repetitions.
    pub(crate) fn client_tensors(
        &self,
        feeds: impl IntoIterator<Item = (impl AsRef<str>, Tensor)>,
        fetches: &[String],
    ) -> Result<ClientTensors, Status> {
        let send = feeds.into_iter().map(|(name, value)| Ok((key(&self.feeds, name.as_ref())?, value)));
        let send = send.collect::<Result<_, Status>>()?;
        let mut recv = Vec::with_capacity(fetches.len());
        for name in fetches {
            let key = key(&self.fetches, name)?;
            if !recv.contains(&key) {
                recv.push(key);
            }
        }
        Ok(ClientTensors { send, recv })
    }

    /// Returns the fetched values, taken from the answers of the partitions, in the order of `fetches`.
    pub(crate) fn fetched(
        &self,
        fetches: &[String],
        outcomes: Vec<RunGraphOutcome>,
    ) -> Result<Vec<Tensor>, Status> {
        let values: FxHashMap<Arc<str>, Tensor> = outcomes.into_iter().flat_map(|o| o.recv).collect();
        let value = |name: &String| {
            values.get(&key(&self.fetches, name)?).cloned().ok_or_else(|| {
                let text = format!("the step ended well without the fetched tensor '{name}'");
                Status::new(Code::Internal, text)
            })
        };
        fetches.iter().map(value).collect()
    }
}

impl Drop for Plan {
    fn drop(&mut self) {
        if self.owner.closed.is_cancelled() {
            return;
        }
        for partition in std::mem::take(&mut self.partitions) {
            let session = self.owner.session.clone();
            self.owner.runtime.spawn(async move {
                if let Err(status) = partition.link.deregister_graph(&session, &partition.graph).await {
                    tracing::debug!(task = %partition.task, "a graph could not be deregistered: {status}");
                }
            });
        }
    }
}

impl fmt::Debug for RegisteredPartition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegisteredPartition({}, {})", self.task, self.graph)
    }
}

/// Returns the rendezvous key of a fed or fetched tensor.
fn key(keys: &FxHashMap<String, Arc<str>>, name: &str) -> Result<Arc<str>, Status> {
    let found = keys.get(without_zero_port(name)).cloned();
    found.ok_or_else(|| Status::new(Code::Internal, format!("the plan of the step has no tensor '{name}'")))
}

/// Fails if a step names a node that cannot run because an op is missing.
fn check_available(graph: &Graph, step: &pb::CallableOptions) -> Result<(), Status> {
    let connected = step.tensor_connection.iter().flat_map(|c| [&c.from_tensor, &c.to_tensor]);
    let named = step.feed.iter().chain(&step.fetch).chain(connected);
    let tensors = named.filter_map(|name| graph::parse_output_name(name));
    let nodes = tensors.map(|(node, _)| node).chain(step.target.iter().map(String::as_str));
    match nodes.filter_map(|node| graph.unavailable.error(node)).next() {
        Some(error) => Err(error.into()),
        None => Ok(()),
    }
}

/// Rewrites, optimises and partitions the graph. Also returns the key of a graph with collectives; `requested` is the
/// key that the client requests, or 0.
fn split(request: &PlanRequest, requested: i64) -> Result<(Vec<Partition>, Option<GraphKey>), Status> {
    let PlanRequest { graph, cluster, step, config, context, .. } = request;
    check_available(graph, step)?;
    let connected = match step.tensor_connection.is_empty() {
        true => graph.clone(),
        false => Arc::new(connect(graph, step)?),
    };
    let devices = &cluster.devices;
    let rewritten =
        rewrite_for_run(&connected, &step.feed, &step.fetch, &step.target, devices, cluster.client_index)
            .map_err(from_placer)?;
    // Every tensor of a watched step keeps its name.
    let is_watched = step.run_options.as_ref().is_some_and(|options| watches(options).is_some());
    let optimised = match is_watched {
        true => rewritten,
        false => optimise(rewritten, &connected, &step.target, config, &*context.evaluator)?,
    };
    let placement = placed_devices(&optimised, devices).map_err(from_placer)?;
    let options = PartitionOptions { devices, split: Split::Task, names: &cluster.names };
    let parts = partition(&optimised, &placement, &options).map_err(from_placer)?;
    Ok((parts, collective_steps::graph_key(&optimised, requested)))
}
