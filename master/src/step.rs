//! Running a plan: every part's worker is asked to run it, and what they answer becomes the step's answer.

use crate::plan::{Exchange, Part, Plan};
use crate::step_run::{StepRun, Verdict};
use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use proto::link::{Extent, RunGraph, RunGraphOutcome};
use proto::{Status, pb};
use rpc::afterwards::afterwards;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;

/// A worker that does not take note of a step's end within this time forgets it in its own time.
const CLEANUP_DEADLINE: Duration = Duration::from_secs(10);

/// One step of a plan. The workers are told to forget it once it is dropped and its answer has left, which may be after its
/// session has been closed: they take note of the end of any step.
#[derive(Debug)]
pub(crate) struct Step {
    pub(crate) id: i64,
    pub(crate) plan: Arc<Plan>,
    runtime: Handle,
}

/// What a call asks of a step.
#[derive(Debug)]
pub(crate) struct Call {
    pub(crate) exchange: Exchange,
    pub(crate) options: pb::ExecutorOpts,
    pub(crate) extent: Extent,
    pub(crate) deadline: Option<Instant>,
}

impl Step {
    pub(crate) fn new(plan: Arc<Plan>, runtime: Handle) -> Step {
        // As many bits as other masters use.
        Step { id: (rand::random::<u64>() & ((1 << 57) - 1)) as i64, plan, runtime }
    }

    /// Runs all parts, whole or as far as the call goes.
    ///
    /// # Errors
    /// The first failure that follows from no other; see [`StepRun`].
    pub(crate) async fn run(&self, mut call: Call) -> Result<Vec<RunGraphOutcome>, Status> {
        let trace = call.options.record_timeline;
        if trace {
            let enable = pb::LoggingRequest { enable_rpc_logging: true, ..Default::default() };
            self.logging(enable).await;
        }
        let result = self.run_parts(&mut call).await;
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

    async fn run_parts(&self, call: &mut Call) -> Result<Vec<RunGraphOutcome>, Status> {
        let parts = &self.plan.parts;
        let session = &self.plan.keep.session;
        let mut run =
            StepRun::new(session.clone(), parts.iter().map(|part| &part.task), call.deadline, Instant::now());
        let mut running = FuturesUnordered::new();
        for (index, part) in parts.iter().enumerate() {
            let exchange =
                if part.is_client { std::mem::take(&mut call.exchange) } else { Exchange::default() };
            let request = RunGraph {
                session: session.clone(),
                graph: part.graph.clone(),
                step_id: self.id,
                send: exchange.send,
                recv: exchange.recv,
                options: call.options,
                extent: call.extent,
                deadline: run.workers_deadline(),
            };
            running.push(async move { (index, part.link.run_graph(request).await) });
        }
        let mut outcomes = Vec::with_capacity(parts.len());
        let mut verdict = run.at(Instant::now());
        loop {
            let until = match verdict {
                Verdict::Succeed => return Ok(outcomes),
                Verdict::Fail(status) => return Err(status),
                Verdict::Wait { until } => until,
            };
            verdict = tokio::select! {
                Some((index, result)) = running.next() => {
                    let result = result.map(|outcome| outcomes.push(outcome));
                    run.part_ended(index, result, Instant::now())
                }
                () = wait_until(until) => run.at(Instant::now()),
            };
        }
    }

    /// Asks every worker about transfers. A trace is worth having without those of a worker that keeps none.
    async fn logging(&self, request: pb::LoggingRequest) -> Vec<pb::StepStats> {
        let asked = self.plan.parts.iter().map(|part| {
            let request = request.clone();
            async move {
                part.link.logging(request).await.unwrap_or_else(|status| {
                    tracing::debug!(task = %part.task, "no record of transfers: {status}");
                    Vec::new()
                })
            }
        });
        join_all(asked).await.into_iter().flatten().filter_map(|labelled| labelled.step_stats).collect()
    }
}

impl Drop for Step {
    fn drop(&mut self) {
        let (plan, step_id, runtime) = (self.plan.clone(), self.id, self.runtime.clone());
        afterwards(move || forget(plan, step_id, &runtime));
    }
}

/// Tells the workers that a step is over.
fn forget(plan: Arc<Plan>, step_id: i64, runtime: &Handle) {
    // Most workers take note at once: no other thread is to be woken for them.
    let told = |part: &Part| part.link.forget_step(step_id);
    let late: Vec<usize> = (0..plan.parts.len()).filter(|&i| !told(&plan.parts[i])).collect();
    if late.is_empty() {
        return;
    }
    runtime.spawn(async move {
        let cleanups = late.iter().map(|&i| &plan.parts[i]).map(|part| async move {
            if let Err(status) = part.link.cleanup_graph(step_id).await {
                tracing::debug!(task = %part.task, step_id, "cleanup failed: {status}");
            }
        });
        // What is late is left to the worker.
        let _ = tokio::time::timeout(CLEANUP_DEADLINE, join_all(cleanups)).await;
    });
}

/// What the options asked to be recorded, of all workers: one timeline a device.
pub(crate) fn metadata(
    outcomes: &mut [RunGraphOutcome],
    options: &pb::ExecutorOpts,
) -> Option<pb::RunMetadata> {
    if !options.record_timeline && !options.record_partition_graphs {
        return None;
    }
    let mut partition_graphs = Vec::new();
    let mut devices: BTreeMap<String, pb::DeviceStepStats> = BTreeMap::new();
    for outcome in outcomes {
        partition_graphs.append(&mut outcome.partition_graphs);
        for stats in outcome.step_stats.take().into_iter().flat_map(|s| s.dev_stats) {
            let device = devices.entry(stats.device.clone()).or_default();
            device.device = stats.device;
            device.node_stats.extend(stats.node_stats);
            device.thread_names.extend(stats.thread_names);
        }
    }
    let dev_stats: Vec<_> = devices.into_values().collect();
    let step_stats = options.record_timeline.then_some(pb::StepStats { dev_stats });
    Some(pb::RunMetadata { step_stats, partition_graphs, ..Default::default() })
}

pub(crate) async fn wait_until(until: Option<Instant>) {
    match until {
        Some(until) => tokio::time::sleep_until(until.into()).await,
        None => std::future::pending().await,
    }
}
