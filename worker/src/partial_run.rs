//! Partial runs: the first call of a step starts the executors, each call feeds and fetches, and the last
//! call waits until the executors have ended. Between calls the executors run until they need a value that
//! has not been fed.

use crate::run::{RunGuard, feed, lost_executor, start, to_tensor};
use crate::steps::StepState;
use crate::worker::Worker;
use device::rendezvous::{RendezvousKey, Sent};
use graph::{Code, Tensor};
use proto::Status;
use proto::link::{Extent, RunGraph, RunGraphOutcome};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{oneshot, watch};

/// The channel for the result of a step's executors; it contains `None` until all of them have ended.
pub(crate) type End = watch::Receiver<Option<device::Result<()>>>;

/// Performs one call of a partial run. Dropping the future cancels the step.
pub(crate) async fn run_part(worker: &Arc<Worker>, run: RunGraph) -> Result<RunGraphOutcome, Status> {
    let (step, end) = begin(worker, &run)?;
    let (mut guard, deadline) = (RunGuard { step: &step, worker, armed: true }, run.deadline);
    let outcome = tokio::select! {
        biased;
        outcome = part(&guard, end, run) => outcome,
        () = crate::run::sleep_until(deadline) => Err(guard.deadline_error()),
    };
    let replicated = worker.wait_replicated(deadline).await;
    let outcome = outcome.and_then(|outcome| replicated.map(|()| outcome));
    guard.mark_answered(&outcome);
    outcome
}

/// Returns the step's state and the channel for the result of its executors, which the first call starts.
fn begin(worker: &Arc<Worker>, run: &RunGraph) -> Result<(Arc<StepState>, End), Status> {
    let session = worker.sessions.get(&run.session)?;
    let graph = session.graph(&run.graph)?;
    let step_run = worker.steps.begin(run.step_id, Instant::now())?.within(&session)?;
    let step = step_run.step.clone();
    let mut cached_end = step.partial_run.lock();
    if let Some(end) = &*cached_end {
        return Ok((step.clone(), end.clone()));
    }
    let graph = graph.for_partial_run(&session, &worker.pool)?;
    step.rendezvous.bind(worker.remote(&session), &graph.receivers);
    let (tell, end) = watch::channel(None);
    *cached_end = Some(end.clone());
    drop(cached_end);
    let collectives = session.collectives(worker, &run.session);
    let mut ended = start(step_run, &graph, false, collectives);
    let (worker, running) = (worker.clone(), step.clone());
    worker.runtime.clone().spawn(async move {
        let guard = RunGuard { step: &running, worker: &worker, armed: false };
        let ended = guard.wait_for_executors(None, &mut ended).await;
        let result = ended.unwrap_or_else(|_| Err(lost_executor())).map(drop);
        if result.is_ok() {
            running.rendezvous.succeed();
        }
        tell.send_replace(Some(result));
    });
    Ok((step, end))
}

async fn part(guard: &RunGuard<'_>, mut end: End, run: RunGraph) -> Result<RunGraphOutcome, Status> {
    let is_last = run.extent == Extent::LastPart;
    let exchanged = exchange(guard.step, run, &mut end).await;
    if let Err(status) = &exchanged {
        guard.step.cancel(device::Error::new(status.code, status.message.clone()));
    }
    if exchanged.is_err() || is_last {
        // A failure of the executors either caused this call's failure or happened after the last fetch; it
        // is the answer in both cases.
        ended(&mut end).await.map_err(|e| guard.explain(e))?;
    }
    Ok(RunGraphOutcome { recv: exchanged?, ..RunGraphOutcome::default() })
}

/// Sends the call's feeds and receives its fetches.
async fn exchange(step: &StepState, run: RunGraph, end: &mut End) -> Result<Vec<(Arc<str>, Tensor)>, Status> {
    feed(step, run.send)?;
    let mut received = Vec::with_capacity(run.recv.len());
    for key in &run.recv {
        received.push((key.clone(), receive(step, key, end).await?));
    }
    Ok(received)
}

/// Waits until the executors have ended. Returns their result.
async fn ended(end: &mut End) -> device::Result<()> {
    match end.wait_for(Option::is_some).await {
        Ok(result) => result.clone().unwrap_or_else(|| Err(lost_executor())),
        Err(_) => Err(lost_executor()),
    }
}

/// Waits for the value under the rendezvous key `text`, or until the executors have ended without sending it.
async fn receive(step: &StepState, text: &Arc<str>, end: &mut End) -> Result<Tensor, Status> {
    let key = Arc::new(RendezvousKey::parse(text).map_err(Status::from)?);
    let (sender, mut value) = oneshot::channel::<device::Result<Sent>>();
    step.rendezvous.recv_local(&key, Box::new(move |received| drop(sender.send(received))));
    let sent = tokio::select! {
        biased;
        sent = &mut value => sent.unwrap_or_else(|_| Err(lost_executor())),
        result = ended(end) => match (value.try_recv(), result) {
            (Ok(sent), _) => sent,
            (Err(_), Err(error)) => Err(error),
            (Err(_), Ok(())) => {
                return Err(Status::new(Code::Internal, format!("nothing was sent to {text}")));
            }
        },
    };
    to_tensor(step, text, sent.map_err(|e| crate::failure(&e))?)
}
