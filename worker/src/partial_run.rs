//! A step that runs in parts: the first call starts the executors, each call feeds and fetches, the last one waits
//! for the end. Between calls the step runs on, and waits for what it has not been fed.

use crate::run::{Guard, feed, lost, start, to_tensor};
use crate::steps::StepState;
use crate::worker::Worker;
use device::rendezvous::{RendezvousKey, Sent};
use graph::{Code, Tensor};
use proto::Status;
use proto::link::{Extent, RunGraph, RunGraphOutcome};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::{oneshot, watch};

/// How the executors of a step ended, once they have.
pub(crate) type End = watch::Receiver<Option<device::Result<()>>>;

/// Runs one part of a partial run. Dropping the future cancels the step.
pub(crate) async fn run_part(worker: &Arc<Worker>, run: RunGraph) -> Result<RunGraphOutcome, Status> {
    let (step, end) = begin(worker, &run)?;
    let (mut guard, deadline) = (Guard { step: &step, worker, armed: true }, run.deadline);
    let outcome = tokio::select! {
        biased;
        outcome = part(&guard, end, run) => outcome,
        () = crate::run::sleep_until(deadline) => Err(guard.late()),
    };
    let settled = worker.settle(deadline).await;
    let outcome = outcome.and_then(|outcome| settled.map(|()| outcome));
    guard.settle(&outcome);
    outcome
}

/// The step, which the first of its calls starts.
fn begin(worker: &Arc<Worker>, run: &RunGraph) -> Result<(Arc<StepState>, End), Status> {
    let session = worker.sessions.get(&run.session)?;
    let graph = session.graph(&run.graph)?;
    let place = worker.steps.begin(run.step_id, Instant::now())?.within(&session)?;
    let step = place.step.clone();
    let mut known = step.partial_run.lock();
    if let Some(end) = &*known {
        return Ok((step.clone(), end.clone()));
    }
    let graph = graph.in_parts(&session, &worker.pool)?;
    step.rendezvous.bind(worker.remote(&session), &graph.receivers);
    let (tell, end) = watch::channel(None);
    *known = Some(end.clone());
    drop(known);
    let mut ended = start(place, &graph, false);
    let (worker, running) = (worker.clone(), step.clone());
    worker.runtime.clone().spawn(async move {
        let guard = Guard { step: &running, worker: &worker, armed: false };
        let ended = guard.by_deadline(None, &mut ended).await;
        let result = ended.unwrap_or_else(|_| Err(lost())).map(drop);
        if result.is_ok() {
            running.rendezvous.succeed();
        }
        tell.send_replace(Some(result));
    });
    Ok((step, end))
}

async fn part(guard: &Guard<'_>, mut end: End, run: RunGraph) -> Result<RunGraphOutcome, Status> {
    let is_last = run.extent == Extent::LastPart;
    let exchanged = exchange(guard.step, run, &mut end).await;
    if let Err(status) = &exchanged {
        guard.step.cancel(device::Error::new(status.code, status.message.clone()));
    }
    if exchanged.is_err() || is_last {
        // The cause of what this call met, or what failed after the last value had been fetched.
        ended(&mut end).await.map_err(|e| guard.explain(e))?;
    }
    Ok(RunGraphOutcome { recv: exchanged?, ..RunGraphOutcome::default() })
}

async fn exchange(step: &StepState, run: RunGraph, end: &mut End) -> Result<Vec<(Arc<str>, Tensor)>, Status> {
    feed(step, run.send)?;
    let mut received = Vec::with_capacity(run.recv.len());
    for key in &run.recv {
        received.push((key.clone(), receive(step, key, end).await?));
    }
    Ok(received)
}

async fn ended(end: &mut End) -> device::Result<()> {
    match end.wait_for(Option::is_some).await {
        Ok(result) => result.clone().unwrap_or_else(|| Err(lost())),
        Err(_) => Err(lost()),
    }
}

/// Waits for a value, or for the end of what could send it.
async fn receive(step: &StepState, text: &Arc<str>, end: &mut End) -> Result<Tensor, Status> {
    let key = Arc::new(RendezvousKey::parse(text).map_err(Status::from)?);
    let (give, mut given) = oneshot::channel::<device::Result<Sent>>();
    step.rendezvous.recv_local(&key, Box::new(move |received| drop(give.send(received))));
    let sent = tokio::select! {
        biased;
        sent = &mut given => sent.unwrap_or_else(|_| Err(lost())),
        result = ended(end) => match (given.try_recv(), result) {
            (Ok(sent), _) => sent,
            (Err(_), Err(error)) => Err(error),
            (Err(_), Ok(())) => {
                return Err(Status::new(Code::Internal, format!("nothing was sent to {text}")));
            }
        },
    };
    to_tensor(step, text, sent.map_err(|e| crate::failure(&e))?)
}
