//! Runs of registered graphs: the feeds are sent, one executor per device runs, and the fetches are received.
//! Kernels run on the thread pool; this code only starts them and awaits their end.

use crate::collective::SessionCollectives;
use crate::graphs::RegisteredGraph;
use crate::partial_run::run_part;
use crate::steps::{StepRun, StepState};
use crate::worker::Worker;
use device::collective::StepCollectives;
use device::kernel::Step;
use device::rendezvous::{RendezvousKey, Sent};
use device::{Error, Pool, Value};
use executor::Trace;
use graph::{Code, Tensor};
use parking_lot::Mutex;
use proto::Status;
use proto::link::{Extent, RunGraph, RunGraphOutcome};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

/// Runs a task's part of a step. Dropping the future cancels the step.
pub(crate) async fn run_graph(worker: &Arc<Worker>, run: RunGraph) -> Result<RunGraphOutcome, Status> {
    if run.extent != Extent::Whole {
        return run_part(worker, run).await;
    }
    let session = worker.sessions.get(&run.session)?;
    let graph = session.graph(&run.graph)?;
    let step_run = worker.steps.begin(run.step_id, Instant::now())?.within(&session)?;
    let step = step_run.step.clone();
    step.rendezvous.bind(worker.remote(&session), &graph.receivers);
    let mut guard = RunGuard { step: &step, worker, armed: true };
    let deadline = run.deadline;
    let collectives = session.collectives(worker, &run.session);
    let has_collectives = graph.collective_graph_key != 0;
    let on_failure = has_collectives.then(|| collectives.begin_step(&step)).flatten();
    let outcome = guard.run(step_run, &graph, run, collectives).await;
    // The changes of a failed step are not undone, so they are replicated too.
    let replicated = worker.wait_replicated(deadline).await;
    let outcome = outcome.and_then(|outcome| replicated.map(|()| outcome));
    if outcome.is_ok() {
        if has_collectives {
            worker.leader.observe(graph.collective_graph_key, step.id);
        }
        if let Some(registration) = on_failure {
            step.cancellation.deregister(registration);
        }
        step.rendezvous.succeed();
    }
    guard.mark_answered(&outcome);
    outcome
}

/// The guard of a call that runs a step. Dropping it while `armed` means that the caller has cancelled the
/// call, and cancels the step.
pub(crate) struct RunGuard<'a> {
    pub(crate) step: &'a Arc<StepState>,
    pub(crate) worker: &'a Arc<Worker>,
    pub(crate) armed: bool,
}

impl Drop for RunGuard<'_> {
    fn drop(&mut self) {
        if self.armed {
            let text = format!("Step {} was cancelled by its caller on {}", self.step.id, self.worker.task());
            self.step.cancel(Error::new(Code::Cancelled, text));
        }
    }
}

impl RunGuard<'_> {
    /// Disarms the guard, because the call has its outcome; a failed outcome cancels the step.
    pub(crate) fn mark_answered<T>(&mut self, outcome: &Result<T, Status>) {
        self.armed = false;
        if let Err(status) = outcome {
            // Other receivers of the failed step's tensors must stop waiting.
            self.step.cancel(Error::new(status.code, status.message.clone()));
        }
    }

    async fn run(
        &self,
        step_run: StepRun,
        graph: &RegisteredGraph,
        run: RunGraph,
        collectives: Arc<SessionCollectives>,
    ) -> Result<RunGraphOutcome, Status> {
        feed(self.step, run.send)?;
        let trace = run.options.record_timeline || run.options.record_costs;
        // The master fetches the records of transfers only for a timeline.
        if run.options.record_timeline {
            self.worker.transfers.trace(run.step_id);
        }
        let mut ended = start(step_run, graph, trace, collectives);
        let traces = match self.wait_for_executors(run.deadline, &mut ended).await? {
            Ok(traces) => traces,
            Err(error) => return Err(self.explain(error)),
        };
        let recv = fetch(self.step, &run.recv).await?;
        let step_stats = trace.then(|| crate::stats::step_stats(graph, traces));
        let costs = step_stats.as_ref().filter(|_| run.options.record_costs);
        let cost_graph = costs.map(|stats| crate::stats::cost_graph(graph, stats));
        let partition_graphs = match run.options.record_partition_graphs {
            true => graph.partition_graphs()?,
            false => Vec::new(),
        };
        Ok(RunGraphOutcome { recv, step_stats, partition_graphs, cost_graph })
    }

    /// Waits for the executors' result: until they have ended, until the deadline, or, after the step was
    /// cancelled, for the grace period.
    pub(crate) async fn wait_for_executors(
        &self,
        deadline: Option<Instant>,
        ended: &mut oneshot::Receiver<RunResult>,
    ) -> Result<RunResult, Status> {
        let (cancelled, mut reason) = oneshot::channel();
        let on_cancel = self.step.cancellation.register(move |reason| drop(cancelled.send(reason.clone())));
        if let Err(reason) = on_cancel.as_ref() {
            return self.wait_for_grace(reason.clone(), ended).await;
        }
        let outcome = tokio::select! {
            biased;
            ended = &mut *ended => Ok(ended.unwrap_or_else(|_| Err(lost_executor()))),
            Ok(reason) = &mut reason => self.wait_for_grace(reason, ended).await,
            () = sleep_until(deadline) => Err(self.deadline_error()),
        };
        if let Ok(registration) = on_cancel {
            self.step.cancellation.deregister(registration);
        }
        outcome
    }

    /// Waits for the executors of a cancelled step, for at most the grace period. Returns their result or
    /// `reason`.
    async fn wait_for_grace(
        &self,
        reason: Error,
        ended: &mut oneshot::Receiver<RunResult>,
    ) -> Result<RunResult, Status> {
        let grace = Instant::now() + self.worker.config.cancel_grace;
        match timeout_at(grace.into(), ended).await {
            Ok(ended) => Ok(ended.unwrap_or_else(|_| Err(lost_executor()))),
            Err(_) => Ok(Err(reason)),
        }
    }

    /// Returns the error of a run that exceeded its deadline; it names the values that the step waits for.
    pub(crate) fn deadline_error(&self) -> Status {
        let (step, task) = (self.step, self.worker.task());
        let awaited = step.rendezvous.awaited();
        Status::new(
            Code::DeadlineExceeded,
            format!("Step {} did not end on {task} by its deadline{awaited}", step.id),
        )
    }

    /// Returns the status for a failed step: if `error` is derived, the reason for which the step was
    /// cancelled.
    pub(crate) fn explain(&self, error: Error) -> Status {
        let followed = error.is_derived();
        let cause = self.step.cancellation.reason().filter(|reason| followed && !reason.is_derived());
        let error = cause.unwrap_or(error);
        let status = crate::failure(&error);
        match status.code == Code::Aborted && self.step.rendezvous.has_restarted_peer() {
            true => status.restarted(),
            false => status,
        }
    }
}

/// Sleeps until the deadline; without a deadline, forever.
pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

/// Returns the error for an executor that was dropped without a result.
pub(crate) fn lost_executor() -> Error {
    Error::internal("an executor ended without a result")
}

/// Sends the fed values to their receivers in this process.
pub(crate) fn feed(step: &StepState, values: Vec<(Arc<str>, Tensor)>) -> Result<(), Status> {
    for (key, tensor) in values {
        let key = Arc::new(RendezvousKey::parse(&key).map_err(Status::from)?);
        let sent = Sent { value: Value::Host(tensor), is_dead: false };
        step.rendezvous.send_local(&key, sent).map_err(|e| crate::failure(&e))?;
    }
    Ok(())
}

/// The traces of a run's executors by partition, or their first failure.
pub(crate) type RunResult = device::Result<Vec<Trace>>;

/// Starts the executors of all partitions. The returned channel gets their result when all of them have
/// ended.
pub(crate) fn start(
    step_run: StepRun,
    graph: &RegisteredGraph,
    trace: bool,
    collectives: Arc<SessionCollectives>,
) -> oneshot::Receiver<RunResult> {
    let (answer, ended) = oneshot::channel();
    let state = step_run.step.clone();
    let collectives = StepCollectives {
        id: state.id,
        collectives,
        rendezvous: state.rendezvous.clone(),
        cancellation: state.cancellation.clone(),
        activity: state.activity.clone(),
    };
    let step = Step::new(state.id, state.rendezvous.clone(), state.cancellation.clone());
    let activity = state.activity.clone();
    let step = Arc::new(Step { collectives: Some(collectives), activity, ..step });
    let rendezvous = state.rendezvous.clone();
    let on_cancel = state.cancellation.register(move |reason| rendezvous.fail(reason));
    if let Err(reason) = on_cancel {
        drop(answer.send(Err(reason)));
        return ended;
    }
    let join = Arc::new(Join {
        left: AtomicUsize::new(graph.partitions.len()),
        results: Mutex::new(Results { error: None, traces: vec![Trace::default(); graph.partitions.len()] }),
        answer: Mutex::new(Some((answer, step_run))),
    });
    if graph.partitions.is_empty() {
        join.answer();
    }
    // Short runs execute on this thread: waking another thread would take as long.
    Pool::with_inline_tasks(|| {
        for (index, part) in graph.partitions.iter().enumerate() {
            let one = PartitionRun { join: join.clone(), step: state.clone(), index, reported: false };
            part.executor.run(step.clone(), trace, Box::new(move |result| one.report(result)));
        }
    });
    ended
}

/// The results of a run's executors, which are sent when the last executor has ended.
struct Join {
    left: AtomicUsize,
    results: Mutex<Results>,
    /// The channel for the result, and the step's run, which counts as active until the result is sent.
    answer: Mutex<Option<(oneshot::Sender<RunResult>, StepRun)>>,
}

struct Results {
    error: Option<Error>,
    traces: Vec<Trace>,
}

impl Join {
    /// Ends the step's run, and sends the executors' result.
    fn answer(&self) {
        let results = {
            let mut results = self.results.lock();
            let traces = std::mem::take(&mut results.traces);
            results.error.take().map_or(Ok(traces), Err)
        };
        let answer = self.answer.lock().take();
        if let Some((answer, step_run)) = answer {
            drop(step_run);
            drop(visit::wake_inline(|| answer.send(results)));
        }
    }
}

/// The run of one partition's executor. Dropping it without a result counts as a failure.
struct PartitionRun {
    join: Arc<Join>,
    step: Arc<StepState>,
    index: usize,
    reported: bool,
}

impl PartitionRun {
    fn report(mut self, result: device::Result<Trace>) {
        self.record_result(result);
    }

    /// Records the executor's result; the executor that ends last sends the results of all executors.
    fn record_result(&mut self, result: device::Result<Trace>) {
        self.reported = true;
        match result {
            Ok(trace) => {
                if let Some(slot) = self.join.results.lock().traces.get_mut(self.index) {
                    *slot = trace;
                }
            }
            Err(error) => {
                self.step.cancel(error.clone());
                let first = &mut self.join.results.lock().error;
                // The first failure is the result, except that a failure that is not derived replaces a
                // derived one.
                if first.as_ref().is_none_or(|f| f.is_derived() && !error.is_derived()) {
                    *first = Some(error);
                }
            }
        }
        if self.join.left.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.join.answer();
        }
    }
}

impl Drop for PartitionRun {
    fn drop(&mut self) {
        if !self.reported {
            self.record_result(Err(lost_executor()));
        }
    }
}

/// Takes the fetched values from the rendezvous. All executors have ended, so a missing value is an error.
async fn fetch(step: &StepState, keys: &[Arc<str>]) -> Result<Vec<(Arc<str>, Tensor)>, Status> {
    let mut values = Vec::with_capacity(keys.len());
    for text in keys {
        let key = Arc::new(RendezvousKey::parse(text).map_err(Status::from)?);
        let received = receive_now(step, &key)?;
        let sent = received.map_err(|e| crate::failure(&e))?;
        values.push((text.clone(), to_tensor(step, text, sent)?));
    }
    Ok(values)
}

/// Returns the tensor of a fetched value; for a reference, the variable's current value.
pub(crate) fn to_tensor(step: &StepState, key: &str, sent: Sent) -> Result<Tensor, Status> {
    match sent {
        Sent { is_dead: true, .. } => {
            let text = format!(
                "Failed to fetch outputs for step {}. (Original error message: The tensor returned for {key} was \
                 not valid.)",
                step.id
            );
            Err(Status::new(Code::Internal, text))
        }
        Sent { value: Value::Host(tensor), .. } => Ok(tensor),
        Sent { value: Value::Ref(variable), .. } => variable.value().map_err(|e| crate::failure(&e)),
        Sent { value: Value::View(view), is_dead } => {
            let value = view.snapshot().map_err(|e| crate::failure(&e))?.unwrap_or_default();
            to_tensor(step, key, Sent { value, is_dead })
        }
        Sent { value, .. } => {
            let text = format!("the value of {key} is not in host memory: {value:?}");
            Err(Status::new(Code::Internal, text))
        }
    }
}

/// Receives a value that must already have been sent.
fn receive_now(step: &StepState, key: &Arc<RendezvousKey>) -> Result<device::Result<Sent>, Status> {
    let slot = Arc::new(Mutex::new(None));
    let writer = slot.clone();
    step.rendezvous.recv_local(key, Box::new(move |received| *writer.lock() = Some(received)));
    let received = slot.lock().take();
    received.ok_or_else(|| Status::new(Code::Internal, format!("nothing was sent to {}", key.text)))
}

/// Awaits `call` until the deadline, and then fails with an error that names the call (`what`) and the worker's task.
pub(crate) async fn within<T>(
    worker: &Worker,
    what: &str,
    deadline: Option<Instant>,
    call: impl Future<Output = Result<T, Status>>,
) -> Result<T, Status> {
    match deadline {
        None => call.await,
        Some(deadline) => timeout_at(deadline.into(), call).await.unwrap_or_else(|_| {
            let text = format!("{what} on {} did not end by its deadline", worker.task());
            Err(Status::new(Code::DeadlineExceeded, text))
        }),
    }
}
