//! Runs of a plan: every partition's worker runs its partition, and the answers are combined.

use crate::collective_steps::{GraphKey, StepSequences};
use crate::plan::{ClientTensors, Plan, RegisteredPartition};
use crate::session::MasterContext;
use crate::step_run::{NextAction, StepRun};
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use proto::link::{Extent, RunGraph, RunGraphOutcome};
use proto::step_ids::random_step_id;
use proto::{Status, pb};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// The time limit of requests that remove a step's state from a worker. A worker that does not answer in time
/// removes the state later without a request.
const CLEANUP_DEADLINE: Duration = Duration::from_secs(10);

/// One step of a plan. When a step is dropped, the workers are notified to remove its state, after the step's
/// answer has been sent. The notification may follow the end of the session, because workers accept it for
/// any step id.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) id: i64,
    pub(crate) plan: Arc<Plan>,
    runtime: Handle,
    /// The sequence and the graph key that the step's id comes from; `None` for a random id.
    sequence: Option<(Arc<StepSequences>, i64)>,
}

/// The inputs of one call, which runs a step or a part of it.
#[derive(Debug)]
pub(crate) struct StepCall {
    pub(crate) tensors: ClientTensors,
    pub(crate) options: pb::ExecutorOpts,
    pub(crate) extent: Extent,
    pub(crate) deadline: Option<Instant>,
}

impl Step {
    /// Returns a step with an id that its plan's graph key determines, or with a random id.
    ///
    /// # Errors
    /// Those of the call to the leader of the plan's groups.
    pub(crate) async fn begin(
        plan: Arc<Plan>,
        runtime: Handle,
        context: &MasterContext,
        sequences: &Arc<StepSequences>,
        deadline: Option<Instant>,
    ) -> Result<Step, Status> {
        let graph_key = plan.graph_key.filter(|graph_key| graph_key.is_shared);
        let (Some(GraphKey { key: graph_key, .. }), Some(leader)) = (graph_key, &context.leader) else {
            return Ok(Step::new(plan, runtime));
        };
        let id = sequences.next(graph_key, leader, deadline).await?;
        let sequence = Some((sequences.clone(), graph_key));
        Ok(Step { id, plan, runtime, sequence })
    }

    /// Returns a step with a random id.
    pub(crate) fn new(plan: Arc<Plan>, runtime: Handle) -> Step {
        Step { id: random_step_id(), plan, runtime, sequence: None }
    }

    /// Reports the end of the step to the sequence that assigned its id.
    pub(crate) async fn end(&self, failure: Option<&Status>, context: &MasterContext) {
        if let Some((sequences, graph_key)) = &self.sequence {
            let session = &self.plan.owner.session;
            sequences.end(session, *graph_key, self.id, failure, context.leader.as_ref()).await;
        }
    }

    /// Returns the graph key of the sequence that assigned the step's id.
    pub(crate) fn graph_key(&self) -> Option<i64> {
        self.sequence.as_ref().map(|(_, graph_key)| *graph_key)
    }

    /// Runs all partitions for one call, and records the transfers between tasks if the call requests a
    /// timeline.
    ///
    /// # Errors
    /// The first failure that is not the consequence of another failure; see [`StepRun`].
    pub(crate) async fn run(&self, mut call: StepCall) -> Result<Vec<RunGraphOutcome>, Status> {
        let trace = call.options.record_timeline;
        if trace {
            let enable = pb::LoggingRequest { enable_rpc_logging: true, ..Default::default() };
            self.logging(enable).await;
        }
        let result = self.run_partitions(&mut call).await;
        if !trace {
            return result;
        }
        let (disable_rpc_logging, fetch_step_id) = (true, vec![self.id]);
        let fetch = pb::LoggingRequest { disable_rpc_logging, fetch_step_id, ..Default::default() };
        let transfers = self.logging(fetch).await;
        let mut outcomes = result?;
        outcomes.extend(
            transfers
                .into_iter()
                .map(|stats| RunGraphOutcome { step_stats: Some(stats), ..RunGraphOutcome::default() }),
        );
        Ok(outcomes)
    }

    /// Runs all partitions and waits for their answers.
    async fn run_partitions(&self, call: &mut StepCall) -> Result<Vec<RunGraphOutcome>, Status> {
        let partitions = &self.plan.partitions;
        let session = &self.plan.owner.session;
        let mut run = StepRun::new(
            session.clone(),
            partitions.iter().map(|partition| &partition.task),
            call.deadline,
            Instant::now(),
        );
        let mut running = FuturesUnordered::new();
        for (index, partition) in partitions.iter().enumerate() {
            let tensors = if partition.is_client {
                std::mem::take(&mut call.tensors)
            } else {
                ClientTensors::default()
            };
            let request = RunGraph {
                session: session.clone(),
                graph: partition.graph.clone(),
                step_id: self.id,
                send: tensors.send,
                recv: tensors.recv,
                options: call.options,
                extent: call.extent,
                deadline: run.workers_deadline(),
            };
            running.push(async move { (index, partition.link.run_graph(request).await) });
        }
        let mut outcomes = Vec::with_capacity(partitions.len());
        let mut action = run.next_action(Instant::now());
        loop {
            let until = match action {
                NextAction::Succeed => return Ok(outcomes),
                NextAction::Fail(status) => return Err(status),
                NextAction::Wait { until } => until,
            };
            action = tokio::select! {
                Some((index, result)) = running.next() => {
                    let result = result.map(|outcome| outcomes.push(outcome));
                    run.partition_ended(index, result, Instant::now())
                }
                () = wait_until(until) => run.next_action(Instant::now()),
            };
        }
    }

    /// Sends a logging request to every worker, and returns the tensor transfers that the workers have
    /// recorded. A worker that fails the request contributes no transfers.
    async fn logging(&self, request: pb::LoggingRequest) -> Vec<pb::StepStats> {
        let requests = self.plan.partitions.iter().map(|partition| {
            let request = request.clone();
            async move {
                partition.link.logging(request).await.unwrap_or_else(|status| {
                    tracing::debug!(task = %partition.task, "no record of transfers: {status}");
                    Vec::new()
                })
            }
        });
        join_all(requests).await.into_iter().flatten().filter_map(|labelled| labelled.step_stats).collect()
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let (plan, step_id, runtime) = (self.plan.clone(), self.id, self.runtime.clone());
        visit::defer(move || forget(plan, step_id, &runtime));
    }
}

/// Notifies the workers that a step is over, so that they remove its state.
fn forget(plan: Arc<Plan>, step_id: i64, runtime: &Handle) {
    // `forget_step` notifies most workers directly, without waking another thread.
    let notify = |partition: &RegisteredPartition| partition.link.forget_step(step_id);
    let unnotified: Vec<usize> =
        (0..plan.partitions.len()).filter(|&i| !notify(&plan.partitions[i])).collect();
    if unnotified.is_empty() {
        return;
    }
    runtime.spawn(async move {
        let cleanups = unnotified.iter().map(|&i| &plan.partitions[i]).map(|partition| async move {
            if let Err(status) = partition.link.cleanup_graph(step_id).await {
                tracing::debug!(task = %partition.task, step_id, "cleanup failed: {status}");
            }
        });
        // If a cleanup request times out, its worker removes the step's state later without the request.
        let _ = tokio::time::timeout(CLEANUP_DEADLINE, join_all(cleanups)).await;
    });
}

/// Returns the recordings that the options request, merged over all workers with one timeline for each
/// device.
pub(crate) fn metadata(
    outcomes: &mut [RunGraphOutcome],
    options: &pb::ExecutorOpts,
) -> Option<pb::RunMetadata> {
    if !options.record_timeline && !options.record_partition_graphs && !options.record_costs {
        return None;
    }
    let mut partition_graphs = Vec::new();
    let mut costs = pb::CostGraphDef::default();
    let mut devices: BTreeMap<String, pb::DeviceStepStats> = BTreeMap::new();
    for outcome in outcomes {
        partition_graphs.append(&mut outcome.partition_graphs);
        outcome.cost_graph.take().into_iter().for_each(|of_task| append(&mut costs, of_task));
        for stats in outcome.step_stats.take().into_iter().flat_map(|s| s.dev_stats) {
            let device = devices.entry(stats.device.clone()).or_default();
            device.device = stats.device;
            device.node_stats.extend(stats.node_stats);
            device.thread_names.extend(stats.thread_names);
        }
    }
    let dev_stats: Vec<_> = devices.into_values().collect();
    let step_stats = options.record_timeline.then_some(pb::StepStats { dev_stats });
    let cost_graph = options.record_costs.then_some(costs);
    Some(pb::RunMetadata { step_stats, partition_graphs, cost_graph, ..Default::default() })
}

/// Appends the costs of a task; its nodes get ids that no other task's nodes have.
fn append(costs: &mut pb::CostGraphDef, of_task: pb::CostGraphDef) {
    let first = costs.node.iter().map(|node| node.id.saturating_add(1)).max().unwrap_or(0);
    costs.node.extend(of_task.node.into_iter().map(|mut node| {
        node.id = node.id.saturating_add(first);
        node.input_info.iter_mut().for_each(|i| i.preceding_node = i.preceding_node.saturating_add(first));
        node.control_input.iter_mut().for_each(|id| *id = id.saturating_add(first));
        node
    }));
    costs.cost.extend(of_task.cost);
}

/// Waits until the time `until`, or forever if it is `None`.
pub(crate) async fn wait_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
