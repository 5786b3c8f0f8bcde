//! A plan: what a step of one signature asks of which workers.

use crate::callables::connect;
use crate::cluster::SessionCluster;
use crate::optimise::optimise;
use crate::options::collective_graph_key;
use crate::session::{Engine, from_placer, on_blocking_thread};
use crate::signature::without_zero_port;
use futures::future::join_all;
use graph::{Code, Graph, TaskName, Tensor};
use placer::{Partition, PartitionOptions, Split, partition, placed_devices, rewrite_for_run};
use proto::link::{RegisterGraph, RunGraphOutcome, WorkerLink};
use proto::{Status, pb};
use rustc_hash::FxHashMap;
use std::fmt;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

/// What a plan is made from. Feeds and fetches of `step` are spelled without `:0`.
pub(crate) struct PlanRequest {
    pub(crate) keep: Keep,
    /// Placed.
    pub(crate) graph: Arc<Graph>,
    pub(crate) cluster: Arc<SessionCluster>,
    pub(crate) engine: Engine,
    pub(crate) config: pb::ConfigProto,
    pub(crate) step: pb::CallableOptions,
    pub(crate) deadline: Option<Instant>,
}

/// The session that a plan belongs to.
#[derive(Clone, Debug)]
pub(crate) struct Keep {
    pub(crate) session: Arc<str>,
    /// Ended sessions have no graphs to forget.
    pub(crate) closed: CancellationToken,
    pub(crate) runtime: Handle,
}

/// Registered parts of a graph, and the keys under which the client's values enter and leave. Who drops the last
/// reference makes the workers forget the parts.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) keep: Keep,
    pub(crate) parts: Vec<Part>,
    feeds: FxHashMap<String, Arc<str>>,
    fetches: FxHashMap<String, Arc<str>>,
}

/// One worker's part.
pub(crate) struct Part {
    pub(crate) task: TaskName,
    pub(crate) link: Arc<dyn WorkerLink>,
    /// The worker's handle for it.
    pub(crate) graph: Arc<str>,
    /// Whether feeds enter and fetches leave here.
    pub(crate) is_client: bool,
}

/// What the client and the part with the client's device give each other, by rendezvous key.
#[derive(Debug, Default)]
pub(crate) struct Exchange {
    pub(crate) send: Vec<(Arc<str>, Tensor)>,
    pub(crate) recv: Vec<Arc<str>>,
}

impl Plan {
    /// Rewrites the graph for the step, optimises, splits it by task, and registers every part.
    pub(crate) async fn make(request: PlanRequest) -> Result<Plan, Status> {
        let PlanRequest { keep, cluster, config, .. } = &request;
        let (keep, cluster, config) = (keep.clone(), cluster.clone(), config.clone());
        let client_task = cluster.client_device.name.task_name();
        let keys = |names: &[String]| names.iter().map(|n| (n.clone(), cluster.client_key(n))).collect();
        let (feeds, fetches) = (keys(&request.step.feed), keys(&request.step.fetch));
        let run_options = request.step.run_options.clone().unwrap_or_default();
        let (group, deadline) = (collective_graph_key(&run_options), request.deadline);
        let split = on_blocking_thread(move || split(&request)).await?;
        let registered = split.into_iter().map(|part| {
            let (session, config, link) = (keep.session.clone(), config.clone(), cluster.link(&part.task));
            let is_client = part.task == client_task;
            async move {
                let link = link?;
                let register = RegisterGraph {
                    session,
                    graph: part.graph,
                    graph_options: None,
                    config: Some(config),
                    collective_graph_key: group,
                    deadline,
                };
                let graph = link.register_graph(register).await?;
                Ok::<Part, Status>(Part { task: part.task, link, graph, is_client })
            }
        });
        let mut plan = Plan { keep: keep.clone(), parts: Vec::new(), feeds, fetches };
        let mut failure = None;
        for part in join_all(registered).await {
            match part {
                Ok(part) => plan.parts.push(part),
                Err(status) => failure = failure.or(Some(status)),
            }
        }
        failure.map_or(Ok(plan), Err)
    }

    /// What enters and what leaves. A key leaves once however often it is fetched.
    pub(crate) fn exchange(
        &self,
        feeds: impl IntoIterator<Item = (impl AsRef<str>, Tensor)>,
        fetches: &[String],
    ) -> Result<Exchange, Status> {
        let send = feeds.into_iter().map(|(name, value)| Ok((key(&self.feeds, name.as_ref())?, value)));
        let send = send.collect::<Result<_, Status>>()?;
        let mut recv = Vec::with_capacity(fetches.len());
        for name in fetches {
            let key = key(&self.fetches, name)?;
            if !recv.contains(&key) {
                recv.push(key);
            }
        }
        Ok(Exchange { send, recv })
    }

    /// The fetched values, in order, from the answers of the step's parts.
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
        if self.keep.closed.is_cancelled() {
            return;
        }
        for part in std::mem::take(&mut self.parts) {
            let session = self.keep.session.clone();
            self.keep.runtime.spawn(async move {
                if let Err(status) = part.link.deregister_graph(&session, &part.graph).await {
                    tracing::debug!(task = %part.task, "a graph could not be deregistered: {status}");
                }
            });
        }
    }
}

impl fmt::Debug for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Part({}, {})", self.task, self.graph)
    }
}

fn key(keys: &FxHashMap<String, Arc<str>>, name: &str) -> Result<Arc<str>, Status> {
    let found = keys.get(without_zero_port(name)).cloned();
    found.ok_or_else(|| Status::new(Code::Internal, format!("the plan of the step does not know '{name}'")))
}

fn split(request: &PlanRequest) -> Result<Vec<Partition>, Status> {
    let PlanRequest { graph, cluster, step, config, engine, .. } = request;
    let connected = match step.tensor_connection.is_empty() {
        true => graph.clone(),
        false => Arc::new(connect(graph, step)?),
    };
    let devices = &cluster.devices;
    let rewritten =
        rewrite_for_run(&connected, &step.feed, &step.fetch, &step.target, devices, cluster.client_index)
            .map_err(from_placer)?;
    let optimised = optimise(rewritten, &step.target, config, &*engine.evaluator)?;
    let placement = placed_devices(&optimised, devices).map_err(from_placer)?;
    let options = PartitionOptions { devices, split: Split::Task, names: &cluster.names };
    partition(&optimised, &placement, &options).map_err(from_placer)
}
