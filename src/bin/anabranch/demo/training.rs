//! The training loops of the three modes.

use super::DemoFlags;
use super::cluster::Cluster;
use super::data::{Digits, Sequence};
use super::model::Model;
use super::report::{Outcome, Progress};
use client::{ServerConfig, Session, SessionOptions};
use proto::pb;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;
use train::{Strategy, wait_until_initialized};

/// How long a worker waits for the chief to initialise the variables.
const READY_DEADLINE: Duration = Duration::from_secs(30);

type Fallible<T> = Result<T, Box<dyn Error + Send + Sync>>;

/// Trains in this process, on as many CPU devices.
pub(super) fn in_process(
    flags: &DemoFlags,
    digits: &Digits,
    strategy: &Strategy,
    cpu_devices: u32,
) -> Result<Outcome, Box<dyn Error + Send + Sync>> {
    let model = Model::build(strategy)?;
    let server = ServerConfig { cpu_devices, ..ServerConfig::default() };
    let session = Session::local_with(model.graph.clone(), server, SessionOptions::default())?;
    session.run(&[], &[], &[model.training.initialize])?;
    let progress = Progress::start(flags.steps);
    let steps = AtomicU64::new(flags.steps);
    train(&model, &session, digits, flags.batch, 0, &steps, &progress)?;
    let outcome = evaluate(&model, &session, digits)?;
    progress.finish();
    Ok(outcome)
}

/// Trains on a cluster, with a client for each worker; the first is the chief.
pub(super) fn between_graph(
    flags: &DemoFlags,
    digits: &Digits,
    cluster: &Cluster,
) -> Result<Outcome, Box<dyn Error + Send + Sync>> {
    let progress = Progress::start(flags.steps);
    progress.say(&format!("started {}", cluster.describe()));
    let steps = AtomicU64::new(flags.steps);
    let outcomes = thread::scope(|scope| {
        let replicas: Vec<_> = (0..)
            .zip(cluster.targets())
            .map(|(worker, target)| {
                let (steps, progress) = (&steps, &progress);
                scope.spawn(move || replica(flags, digits, worker, &target, steps, progress))
            })
            .collect();
        replicas.into_iter().map(thread::ScopedJoinHandle::join).collect::<Vec<_>>()
    });
    progress.finish();
    let mut chief = None;
    for outcome in outcomes {
        let outcome = outcome.map_err(|_| "a replica's thread panicked")?.map_err(|e| e.to_string())?;
        chief.get_or_insert(outcome);
    }
    Ok(chief.ok_or("no replica ran")?)
}

/// One worker's client: its own graph and session, variables shared by name.
fn replica(
    flags: &DemoFlags,
    digits: &Digits,
    worker: u32,
    target: &str,
    steps: &AtomicU64,
    progress: &Progress,
) -> Fallible<Outcome> {
    let strategy = Strategy::ParameterServer {
        ps_tasks: 1,
        worker,
        placement: Default::default(),
        sync: Default::default(),
    };
    let model = Model::build(&strategy)?;
    let session = Session::connect(target, model.graph.clone(), SessionOptions::default())?;
    if worker == 0 {
        session.run(&[], &[], &[model.training.initialize])?;
    } else {
        wait_until_initialized(&session, &model.probes, READY_DEADLINE)?;
    }
    train(&model, &session, digits, flags.batch, worker, steps, progress)?;
    evaluate(&model, &session, digits)
}

/// Takes training steps until none is left.
fn train(
    model: &Model,
    session: &Session,
    digits: &Digits,
    batch: usize,
    replica: u32,
    steps: &AtomicU64,
    progress: &Progress,
) -> Fallible<()> {
    let mut random = Sequence(u64::from(replica) + 1);
    let feeds = [model.images, model.digits];
    let step = session.callable(&feeds, &[model.training.loss], &[model.training.train])?;
    while steps.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
        let (images, labels) = digits.training.batch(batch, &mut random)?;
        let values = step.call(&[images, labels])?;
        let loss = values.first().ok_or("the step gave no loss")?.item::<f32>()?;
        progress.step(loss);
    }
    Ok(())
}

/// The accuracy on held-out digits, and where each variable is.
fn evaluate(model: &Model, session: &Session, digits: &Digits) -> Fallible<Outcome> {
    let (images, labels) = digits.held_out.all()?;
    let options = pb::RunOptions { output_partition_graphs: true, ..Default::default() };
    // Probing every variable makes each appear among the nodes whose devices the step reports.
    let step =
        session.step().feed(model.images, images).fetch(model.predictions).fetch(model.training.global_step);
    let step = model.probes.iter().fold(step, |step, (_, probe)| step.target(*probe));
    let asked = step.options(options).run()?;
    let predictions = asked.values[0].values::<i32>()?;
    let right = predictions.iter().zip(labels.values::<i32>()?).filter(|(p, d)| p == d).count();
    let placed = asked.metadata.map(|m| m.partition_graphs).unwrap_or_default();
    let device_of = |name: &str| {
        let found = placed.iter().flat_map(|g| &g.node).find(|n| n.name == name);
        found.map_or_else(|| "unknown".to_owned(), |n| n.device.clone())
    };
    let mut variables = Vec::new();
    for (name, node) in model.variables() {
        let device = device_of(model.name_of(node)?);
        variables.push((name, device));
    }
    Ok(Outcome { right, asked: predictions.len(), steps: asked.values[1].item::<i64>()?, variables })
}
