//! One run of a registered graph: feeds in, an executor a device, fetches out. Kernels run on the pool's threads;
//! this side only starts them and awaits their end.

use crate::graphs::RegisteredGraph;
use crate::partial_run::run_part;
use crate::steps::{Run, StepState};
use crate::worker::Worker;
use device::kernel::Step;
use device::rendezvous::{RendezvousKey, Sent};
use device::{Error, Pool, Value};
use executor::Trace;
use graph::{Code, Tensor};
use parking_lot::Mutex;
use proto::Status;
use proto::link::{Extent, RunGraph, RunGraphOutcome};
use rpc::errand::at_hand;
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
    let place = worker.steps.begin(run.step_id, Instant::now())?.within(&session)?;
    let step = place.step.clone();
    step.rendezvous.bind(worker.remote(&session), &graph.receivers);
    let mut guard = Guard { step: &step, worker, armed: true };
    let deadline = run.deadline;
    let outcome = guard.run(place, &graph, run).await;
    // What a step that failed has changed stays.
    let settled = worker.settle(deadline).await;
    let outcome = outcome.and_then(|outcome| settled.map(|()| outcome));
    if outcome.is_ok() {
        step.rendezvous.succeed();
    }
    guard.settle(&outcome);
    outcome
}

/// A call that runs a step. Dropped while it is `armed`, it cancels the step: the caller gave up.
pub(crate) struct Guard<'a> {
    pub(crate) step: &'a Arc<StepState>,
    pub(crate) worker: &'a Arc<Worker>,
    pub(crate) armed: bool,
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.armed {
            let text = format!("Step {} was cancelled by its caller on {}", self.step.id, self.worker.task());
            self.step.cancel(Error::new(Code::Cancelled, text));
        }
    }
}

impl Guard<'_> {
    /// The call has its answer.
    pub(crate) fn settle<T>(&mut self, outcome: &Result<T, Status>) {
        self.armed = false;
        if let Err(status) = outcome {
            // Whoever waits for tensors of the failed step must not wait on.
            self.step.cancel(Error::new(status.code, status.message.clone()));
        }
    }

    async fn run(
        &self,
        place: Run,
        graph: &RegisteredGraph,
        run: RunGraph,
    ) -> Result<RunGraphOutcome, Status> {
        feed(self.step, run.send)?;
        let trace = run.options.record_timeline || run.options.record_costs;
        if trace {
            self.worker.transfers.trace(run.step_id);
        }
        let mut ended = start(place, graph, trace);
        let traces = match self.by_deadline(run.deadline, &mut ended).await? {
            Ok(traces) => traces,
            Err(error) => return Err(self.explain(error)),
        };
        let recv = fetch(self.step, &run.recv).await?;
        let step_stats = trace.then(|| crate::stats::step_stats(graph, traces));
        let partition_graphs = match run.options.record_partition_graphs {
            true => graph.partition_graphs()?,
            false => Vec::new(),
        };
        Ok(RunGraphOutcome { recv, step_stats, partition_graphs })
    }

    /// Awaits the executors: to their end, or to the deadline, or for a while after the step was cancelled.
    pub(crate) async fn by_deadline(
        &self,
        deadline: Option<Instant>,
        ended: &mut oneshot::Receiver<Ended>,
    ) -> Result<Ended, Status> {
        let (cancelled, mut reason) = oneshot::channel();
        let on_cancel = self.step.cancellation.register(move |reason| drop(cancelled.send(reason.clone())));
        if let Err(reason) = on_cancel.as_ref() {
            return self.wind_down(reason.clone(), ended).await;
        }
        let outcome = tokio::select! {
            biased;
            ended = &mut *ended => Ok(ended.unwrap_or_else(|_| Err(lost()))),
            Ok(reason) = &mut reason => self.wind_down(reason, ended).await,
            () = sleep_until(deadline) => Err(self.late()),
        };
        if let Ok(registration) = on_cancel {
            self.step.cancellation.deregister(registration);
        }
        outcome
    }

    /// Gives the kernels of a cancelled step their grace.
    async fn wind_down(&self, reason: Error, ended: &mut oneshot::Receiver<Ended>) -> Result<Ended, Status> {
        let grace = Instant::now() + self.worker.config.cancel_grace;
        match timeout_at(grace.into(), ended).await {
            Ok(ended) => Ok(ended.unwrap_or_else(|_| Err(lost()))),
            Err(_) => Ok(Err(reason)),
        }
    }

    pub(crate) fn late(&self) -> Status {
        let (step, task) = (self.step, self.worker.task());
        let awaited = step.rendezvous.awaited();
        Status::new(
            Code::DeadlineExceeded,
            format!("Step {} did not end on {task} by its deadline{awaited}", step.id),
        )
    }

    /// What to answer of a step that failed with this: if that followed from something that was met here, the cause.
    pub(crate) fn explain(&self, error: Error) -> Status {
        let followed = error.is_derived();
        let cause = self.step.cancellation.reason().filter(|reason| followed && !reason.is_derived());
        let error = cause.unwrap_or(error);
        let status = crate::failure(&error);
        match status.code == Code::Aborted && self.step.rendezvous.peer_restarted() {
            true => status.restarted(),
            false => status,
        }
    }
}

pub(crate) async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

pub(crate) fn lost() -> Error {
    Error::internal("an executor ended without a word")
}

/// Puts fed values where their receivers look.
pub(crate) fn feed(step: &StepState, values: Vec<(Arc<str>, Tensor)>) -> Result<(), Status> {
    for (key, tensor) in values {
        let key = Arc::new(RendezvousKey::parse(&key).map_err(Status::from)?);
        let sent = Sent { value: Value::Host(tensor), is_dead: false };
        step.rendezvous.send_local(&key, sent).map_err(|e| crate::failure(&e))?;
    }
    Ok(())
}

pub(crate) type Ended = device::Result<Vec<Trace>>;

/// Starts the executors of all parts; the answer comes when all have ended.
pub(crate) fn start(place: Run, graph: &RegisteredGraph, trace: bool) -> oneshot::Receiver<Ended> {
    let (answer, ended) = oneshot::channel();
    let state = place.step.clone();
    let step = Arc::new(Step::new(state.id, state.rendezvous.clone(), state.cancellation.clone()));
    let rendezvous = state.rendezvous.clone();
    let on_cancel = state.cancellation.register(move |reason| rendezvous.fail(reason));
    if let Err(reason) = on_cancel {
        drop(answer.send(Err(reason)));
        return ended;
    }
    let join = Arc::new(Join {
        left: AtomicUsize::new(graph.parts.len()),
        results: Mutex::new(Results { error: None, traces: vec![Trace::default(); graph.parts.len()] }),
        answer: Mutex::new(Some((answer, place))),
    });
    if graph.parts.is_empty() {
        join.answer();
    }
    // What is short runs here: another thread would take as long to wake.
    Pool::lend_thread(|| {
        for (index, part) in graph.parts.iter().enumerate() {
            let one = PartRun { join: join.clone(), step: state.clone(), index, reported: false };
            part.executor.run(step.clone(), trace, Box::new(move |result| one.report(result)));
        }
    });
    ended
}

/// Where the executors of a run come together.
struct Join {
    left: AtomicUsize,
    results: Mutex<Results>,
    /// The run has its place among the steps until it answers.
    answer: Mutex<Option<(oneshot::Sender<Ended>, Run)>>,
}

struct Results {
    error: Option<Error>,
    traces: Vec<Trace>,
}

impl Join {
    fn answer(&self) {
        let results = {
            let mut results = self.results.lock();
            let traces = std::mem::take(&mut results.traces);
            results.error.take().map_or(Ok(traces), Err)
        };
        let answer = self.answer.lock().take();
        if let Some((answer, place)) = answer {
            drop(place);
            drop(at_hand(|| answer.send(results)));
        }
    }
}

/// One executor's run. Dropped without a report, it has failed.
struct PartRun {
    join: Arc<Join>,
    step: Arc<StepState>,
    index: usize,
    reported: bool,
}

impl PartRun {
    fn report(mut self, result: device::Result<Trace>) {
        self.settle(result);
    }

    fn settle(&mut self, result: device::Result<Trace>) {
        self.reported = true;
        match result {
            Ok(trace) => {
                if let Some(place) = self.join.results.lock().traces.get_mut(self.index) {
                    *place = trace;
                }
            }
            Err(error) => {
                self.step.cancel(error.clone());
                let first = &mut self.join.results.lock().error;
                // A cause before its consequences; else whoever came first.
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

impl Drop for PartRun {
    fn drop(&mut self) {
        if !self.reported {
            self.settle(Err(lost()));
        }
    }
}

/// Takes the values to return. The executors have ended: what is not there will not come.
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

/// A value to return; of a reference, what the variable holds now.
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

fn receive_now(step: &StepState, key: &Arc<RendezvousKey>) -> Result<device::Result<Sent>, Status> {
    let found = Arc::new(Mutex::new(None));
    let place = found.clone();
    step.rendezvous.recv_local(key, Box::new(move |received| *place.lock() = Some(received)));
    let received = found.lock().take();
    received.ok_or_else(|| Status::new(Code::Internal, format!("nothing was sent to {}", key.text)))
}

/// Ends a call by its deadline, naming the task.
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
