//! Coordinated replicas: synchronous ones, with and without backups, and ones with bounded staleness.

use super::Fallible;
use super::sessions::Folder;
use anabranch_train::{
    Aggregation, Error, Hook, HookContext, Initializer, Master, MonitoredConfig, MonitoredSession, Optimizer,
    Retention, Role, Saver, Strategy, SyncMode, SyncReport, Training, Variables, hooks,
};
use client::{Server, ServerConfig};
use graph::{DType, Graph, Output, PartialShape, Scope, Shape, Tensor};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;

const COLUMNS: usize = 4;
const ROWS: usize = 8;

struct Replica {
    graph: Graph,
    training: Training,
    saver: Arc<Saver>,
    x: Output,
    y: Output,
    w: Output,
}

/// Builds a replica whose model is a linear layer plus weights looked up by row.
fn replica(strategy: &Strategy, optimizer: &Optimizer) -> Fallible<Replica> {
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let x = scope.placeholder("x", DType::Float, PartialShape::from([None, Some(COLUMNS)]));
    let y = scope.placeholder("y", DType::Float, PartialShape::from([None, Some(1)]));
    let training = strategy.minimize(&scope, &variables, optimizer, &[x, y], |scope, variables, batch| {
        let w = variables.get("w", DType::Float, &[COLUMNS, 1], &Initializer::Constant(0.5));
        let rows = variables.get("rows", DType::Float, &[5, 1], &Initializer::Zeros);
        let ids = scope.cast(scope.abs(scope.squeeze(batch[1], &[1])), DType::Int32);
        let looked_up = variables.embedding_lookup(scope, &[rows], ids, Default::default());
        let error = scope.sub(scope.add(scope.matmul(batch[0], w.value), looked_up), batch[1]);
        scope.mean(scope.square(error), &[0, 1], false)
    })?;
    let w = variables.find("w").ok_or("no variable")?.value;
    let saver = Arc::new(Saver::new(&root, &variables.all(), Retention::default()));
    Ok(Replica { graph: root.finish()?, training, saver, x, y, w })
}

fn parameter_server(worker: u32, sync: SyncMode) -> Strategy {
    Strategy::ParameterServer { ps_tasks: 0, worker, placement: Default::default(), sync }
}

/// Returns the inputs and targets of rows `from..to` of a step's batch. Sums of the numbers depend on the order of
/// summation.
fn batch(from: usize, to: usize, step: usize) -> Fallible<[Tensor; 2]> {
    let x: Vec<f32> =
        (from * COLUMNS..to * COLUMNS).map(|i| ((i * 7 + step) % 13) as f32 / 3.0 - 2.0).collect();
    let y: Vec<f32> = (from..to).map(|i| ((i + step) % 5) as f32).collect();
    let rows = to - from;
    Ok([
        Tensor::from_slice(&x, Shape::new(&[rows, COLUMNS])?)?,
        Tensor::from_slice(&y, Shape::new(&[rows, 1])?)?,
    ])
}

struct Outcome {
    w: Vec<f32>,
    global_step: i64,
    report: SyncReport,
}

/// The work of a worker: a number of steps, and an action before each step, which gets the step's index.
struct Work<'a> {
    steps: usize,
    before: &'a (dyn Fn(usize) -> Fallible + Sync),
}

/// Trains with one worker for each entry of `work`, each with an equal share of the batch's rows. Returns the outcome
/// at the chief, which is worker 0.
fn train(
    server: &Arc<Server>,
    sync: SyncMode,
    work: &[Work<'_>],
    config: &MonitoredConfig,
) -> Fallible<Outcome> {
    let share = ROWS / work.len();
    let run = |worker: usize| -> Fallible<Outcome> {
        let replica = replica(&parameter_server(worker as u32, sync), &Optimizer::gradient_descent(0.05))?;
        let config = MonitoredConfig { role: Role::fixed(worker == 0), ..config.clone() };
        let master = Master::InProcess(server.clone());
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let mut session = MonitoredSession::new(master, graph, training, None, Vec::new(), config)?;
        for step in 0..work[worker].steps {
            (work[worker].before)(step)?;
            let [x, y] = batch(worker * share, (worker + 1) * share, step)?;
            session.run(&[(replica.x, x), (replica.y, y)], &[], &[replica.training.train])?;
        }
        let report = session.finish_with_report()?;
        let after = client::Session::on_server(server, replica.graph.clone(), Default::default())?;
        let values = after.run(&[], &[replica.w, replica.training.global_step], &[])?;
        let w = values[0].values::<f32>()?.to_vec();
        Ok(Outcome { w, global_step: values[1].item()?, report })
    };
    let mut outcomes = thread::scope(|scope| {
        let workers: Vec<_> = (0..work.len())
            .map(|worker| {
                let run = &run;
                scope.spawn(move || run(worker).map_err(|e| format!("worker {worker}: {e}")))
            })
            .collect();
        let joined =
            workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err("a worker panicked".into())));
        joined.collect::<Result<Vec<Outcome>, String>>()
    })?;
    Ok(outcomes.remove(0))
}

fn synchronous(workers: u32, aggregation: Aggregation) -> SyncMode {
    SyncMode::Sync { replicas_to_aggregate: workers, backup: 0, aggregation }
}

fn server() -> Fallible<Arc<Server>> {
    Ok(Arc::new(Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?))
}

fn short_deadlines() -> MonitoredConfig {
    MonitoredConfig {
        step_deadline: Duration::from_secs(60),
        stop_grace: Duration::from_secs(60),
        ..MonitoredConfig::default()
    }
}

const NOTHING: &(dyn Fn(usize) -> Fallible + Sync) = &|_| Ok(());

fn equal_work(workers: usize, steps: usize) -> Vec<Work<'static>> {
    (0..workers).map(|_| Work { steps, before: NOTHING }).collect()
}

/// Trains on the whole batch with one device. Returns the weights.
fn train_alone(steps: usize) -> Fallible<Vec<f32>> {
    let replica = replica(&Strategy::Local, &Optimizer::gradient_descent(0.05))?;
    let session = client::Session::local(replica.graph.clone())?;
    session.run(&[], &[], &[replica.training.initialize])?;
    for step in 0..steps {
        let [x, y] = batch(0, ROWS, step)?;
        session.run(&[(replica.x, x), (replica.y, y)], &[], &[replica.training.train])?;
    }
    Ok(session.run(&[], &[replica.w], &[])?[0].values::<f32>()?.to_vec())
}

#[test]
fn in_order_aggregation_is_reproducible_and_equals_one_device() -> Fallible {
    const STEPS: usize = 12;
    let run =
        || train(&server()?, synchronous(4, Aggregation::InOrder), &equal_work(4, STEPS), &short_deadlines());
    let (first, second) = (run()?, run()?);
    assert_eq!(first.global_step, STEPS as i64);
    assert_eq!(first.w, second.w);
    assert_eq!(first.report, SyncReport { updates: STEPS as u64, ..SyncReport::default() });
    for (together, alone) in first.w.iter().zip(train_alone(STEPS)?) {
        assert!((together - alone).abs() <= 4.0 * f32::EPSILON * alone.abs().max(1.0), "{together} {alone}");
    }
    Ok(())
}

#[test]
fn accumulators_average_gradients() -> Fallible {
    const STEPS: usize = 8;
    let one = train(
        &server()?,
        synchronous(1, Aggregation::Accumulators),
        &equal_work(1, STEPS),
        &short_deadlines(),
    )?;
    assert_eq!(one.global_step, STEPS as i64);
    for (one, alone) in one.w.iter().zip(train_alone(STEPS)?) {
        assert!((one - alone).abs() <= 1e-6, "{one} {alone}");
    }
    // A fast worker may take a slow worker's token, as in TensorFlow, so that two gradients of one worker make a step;
    // the number of steps varies.
    let two = train(
        &server()?,
        synchronous(2, Aggregation::Accumulators),
        &equal_work(2, STEPS),
        &short_deadlines(),
    )?;
    assert!((STEPS as i64 / 2..=STEPS as i64).contains(&two.global_step), "{}", two.global_step);
    Ok(())
}

#[test]
fn workers_that_finish_early_are_not_waited_for() -> Fallible {
    for aggregation in [Aggregation::InOrder, Aggregation::Accumulators] {
        let work: Vec<Work<'_>> =
            [9, 3, 6].map(|steps| Work { steps, before: NOTHING }).into_iter().collect();
        let outcome = train(&server()?, synchronous(3, aggregation), &work, &short_deadlines())?;
        match aggregation {
            Aggregation::InOrder => assert_eq!(outcome.global_step, 9),
            Aggregation::Accumulators => assert!((3..=18).contains(&outcome.global_step)),
        }
    }
    Ok(())
}

#[test]
fn a_backup_replaces_a_late_worker_whose_gradient_is_counted_as_dropped() -> Fallible {
    let sync = SyncMode::Sync { replicas_to_aggregate: 2, backup: 1, aggregation: Aggregation::InOrder };
    // The third worker pushes its gradient of step 0 when the first two workers have done three steps.
    let (joined, others_done) = (Barrier::new(3), Barrier::new(3));
    let barriers_at = |at: usize| {
        let (joined, others_done) = (&joined, &others_done);
        move |step: usize| -> Fallible {
            if step == 0 {
                joined.wait();
            }
            if step == at {
                others_done.wait();
            }
            Ok(())
        }
    };
    let (at_three, at_none) = (barriers_at(3), barriers_at(0));
    let work = [
        Work { steps: 4, before: &at_three },
        Work { steps: 4, before: &at_three },
        Work { steps: 1, before: &at_none },
    ];
    let outcome = train(&server()?, sync, &work, &short_deadlines())?;
    assert_eq!(outcome.global_step, 4);
    let late: u64 =
        outcome.report.dropped.iter().filter(|((worker, _), _)| *worker == 2).map(|(_, n)| n).sum();
    assert_eq!(late, 1, "{:?}", outcome.report);
    Ok(())
}

/// A worker of a job with two workers; worker 0 is the chief.
struct Worker {
    replica: Replica,
    session: MonitoredSession,
    worker: usize,
}

impl Worker {
    fn start(
        server: &Arc<Server>,
        worker: usize,
        need: u32,
        hooks: Vec<Box<dyn Hook>>,
        config: MonitoredConfig,
    ) -> Fallible<Worker> {
        let sync = SyncMode::Sync {
            replicas_to_aggregate: need,
            backup: 2 - need,
            aggregation: Aggregation::InOrder,
        };
        let replica = replica(&parameter_server(worker as u32, sync), &Optimizer::gradient_descent(0.05))?;
        let config = MonitoredConfig { role: Role::fixed(worker == 0), ..config };
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let master = Master::InProcess(server.clone());
        let saver = config.checkpoint_folder.is_some().then(|| replica.saver.clone());
        let session = MonitoredSession::new(master, graph, training, saver, hooks, config)?;
        Ok(Worker { replica, session, worker })
    }

    /// Runs a step. Returns whether training continues.
    fn step(&mut self) -> Fallible<bool> {
        let [x, y] = batch(self.worker * ROWS / 2, (self.worker + 1) * ROWS / 2, 0)?;
        let fed = [(self.replica.x, x), (self.replica.y, y)];
        Ok(self.session.run(&fed, &[], &[self.replica.training.train])?.is_some())
    }
}

#[test]
fn a_dead_backup_does_not_prevent_the_end_of_a_job() -> Fallible {
    let server = server()?;
    let short_grace = MonitoredConfig { stop_grace: Duration::from_millis(300), ..short_deadlines() };
    let stop: Vec<Box<dyn Hook>> = vec![Box::new(hooks::StopAtStep { last_step: 5 })];
    let mut chief = Worker::start(&server, 0, 1, stop, short_grace)?;
    let mut backup = Worker::start(&server, 1, 1, Vec::new(), short_deadlines())?;
    assert!(backup.step()?);
    drop(backup);
    while chief.step()? {}
    chief.session.finish()?;
    Ok(())
}

#[test]
fn workers_that_left_early_are_not_waited_for_after_a_restore() -> Fallible {
    let (server, folder) = (server()?, Folder::new("left-early"));
    let saves = MonitoredConfig { checkpoint_folder: Some(folder.0.clone()), ..short_deadlines() };
    let mut chief = Worker::start(&server, 0, 2, Vec::new(), saves.clone())?;
    let other = Worker::start(&server, 1, 2, Vec::new(), short_deadlines())?;
    other.session.finish()?;
    assert!(chief.step()?);
    chief.replica.saver.save(chief.session.session(), &folder.0, "m", 1)?;
    drop(chief);
    let scope = Scope::new();
    let w = scope.var_handle("w", DType::Float, PartialShape::from([COLUMNS, 1]));
    let destroy = scope.destroy_resource(w);
    client::Session::on_server(&server, scope.finish()?, Default::default())?.run(&[], &[], &[destroy])?;
    let mut chief = Worker::start(&server, 0, 2, Vec::new(), saves)?;
    assert!(chief.step()?);
    chief.session.finish()?;
    Ok(())
}

/// A hook whose `end` fails, as the `end` of a checkpoint saver may.
struct FailsAtTheEnd;

impl Hook for FailsAtTheEnd {
    fn end(&mut self, _: &HookContext<'_>) -> anabranch_train::Result<()> {
        Err(graph::Error::invalid("by intention").into())
    }
}

#[test]
fn a_chief_that_failed_to_save_does_not_mark_the_step_as_saved() -> Fallible {
    let server = server()?;
    let mut chief = Worker::start(&server, 0, 1, vec![Box::new(FailsAtTheEnd)], short_deadlines())?;
    Worker::start(&server, 1, 1, Vec::new(), short_deadlines())?.session.finish()?;
    assert!(chief.step()?);
    assert!(chief.session.finish().is_err_and(|error| error.to_string().contains("by intention")));
    let scope = Scope::new();
    let left = scope.var_handle("sync_rep_left", DType::Int64, PartialShape::from([2usize]));
    let left = scope.read_variable(left, DType::Int64);
    let marks =
        client::Session::on_server(&server, scope.finish()?, Default::default())?.run(&[], &[left], &[])?;
    assert_eq!(marks[0].to_i64s()?[0], -1);
    Ok(())
}

/// Trains with two workers up to `last_step`; `chief_comes` is the index of the worker whose session opens first.
/// Returns the weights.
fn train_two_until(
    server: &Arc<Server>,
    aggregation: Aggregation,
    last_step: i64,
    chief_comes: usize,
) -> Fallible<Vec<f32>> {
    let joined = Barrier::new(2);
    let run = |worker: usize| -> Fallible {
        let sync = synchronous(2, aggregation);
        let replica = replica(&parameter_server(worker as u32, sync), &Optimizer::gradient_descent(0.05))?;
        let config = MonitoredConfig { role: Role::fixed(worker == 0), ..short_deadlines() };
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let stop: Vec<Box<dyn Hook>> = vec![Box::new(hooks::StopAtStep { last_step })];
        if worker != chief_comes {
            joined.wait();
        }
        let master = Master::InProcess(server.clone());
        let mut session = MonitoredSession::new(master, graph, training, None, stop, config)?;
        if worker == chief_comes {
            joined.wait();
        }
        let first = session.session().run(&[], &[replica.training.global_step], &[])?[0].item::<i64>()?;
        for step in first as usize.. {
            let [x, y] = batch(worker * ROWS / 2, (worker + 1) * ROWS / 2, step)?;
            let fed = [(replica.x, x), (replica.y, y)];
            if session.run(&fed, &[], &[replica.training.train])?.is_none() {
                break;
            }
        }
        Ok(session.finish()?)
    };
    thread::scope(|scope| {
        let other = scope.spawn(|| run(1).map_err(|e| format!("worker 1: {e}")));
        let own = run(0).map_err(|e| format!("worker 0: {e}"));
        other.join().unwrap_or_else(|_| Err("a worker panicked".into())).and(own)
    })?;
    let replica =
        replica(&parameter_server(0, synchronous(2, aggregation)), &Optimizer::gradient_descent(0.05))?;
    let after = client::Session::on_server(server, replica.graph.clone(), Default::default())?;
    Ok(after.run(&[], &[replica.w], &[])?[0].values::<f32>()?.to_vec())
}

#[test]
fn a_finished_job_resumes_to_a_later_step() -> Fallible {
    let undisturbed = train_two_until(&server()?, Aggregation::InOrder, 6, 0)?;
    // If worker 0 is `first`, the chief waits for the other worker; if worker 1 is, the chief finds that it has joined
    // already.
    for first in [0, 1] {
        let server = server()?;
        train_two_until(&server, Aggregation::InOrder, 3, 0)?;
        assert_eq!(train_two_until(&server, Aggregation::InOrder, 6, first)?, undisturbed);
        assert_eq!(train_two_until(&server, Aggregation::InOrder, 6, first)?, undisturbed);
    }
    let server = server()?;
    train_two_until(&server, Aggregation::Accumulators, 3, 0)?;
    train_two_until(&server, Aggregation::Accumulators, 6, 0)?;
    Ok(())
}

#[test]
fn the_timeout_of_a_step_names_the_missing_workers() -> Fallible {
    let server = server()?;
    let replica = replica(&parameter_server(0, synchronous(3, Aggregation::InOrder)), &Optimizer::adam(0.1))?;
    let config = MonitoredConfig { step_deadline: Duration::from_millis(300), ..short_deadlines() };
    let (graph, training) = (replica.graph.clone(), replica.training.clone());
    let mut session =
        MonitoredSession::new(Master::InProcess(server), graph, training, None, Vec::new(), config)?;
    let [x, y] = batch(0, 2, 0)?;
    let failed = session.run(&[(replica.x, x), (replica.y, y)], &[], &[replica.training.train]);
    let Err(Error::Stalled { step: 0, have: 1, need: 3, missing, .. }) = failed else {
        return Err(format!("expected it to be stalled: {failed:?}").into());
    };
    assert_eq!(missing, [1, 2]);
    Ok(())
}

#[test]
fn no_worker_exceeds_the_staleness_bound() -> Fallible {
    const STEPS: usize = 30;
    const BOUND: i64 = 2;
    let done = [AtomicI64::new(0), AtomicI64::new(0)];
    let (furthest, joined) = (AtomicI64::new(0), Barrier::new(2));
    let count = |worker: usize, slow: bool| {
        let (done, furthest, joined) = (&done, &furthest, &joined);
        move |step: usize| -> Fallible {
            if step == 0 {
                joined.wait();
            }
            if slow {
                thread::park_timeout(Duration::from_millis(3));
            }
            done[worker].store(step as i64, Ordering::SeqCst);
            let ahead = step as i64 - done[1 - worker].load(Ordering::SeqCst);
            furthest.fetch_max(ahead, Ordering::SeqCst);
            Ok(())
        }
    };
    let (fast, slow) = (count(0, false), count(1, true));
    let work = [Work { steps: STEPS, before: &fast }, Work { steps: STEPS, before: &slow }];
    let sync = SyncMode::BoundedStaleness { steps: BOUND as u32, workers: 2 };
    let outcome = train(&server()?, sync, &work, &short_deadlines())?;
    // The bound is exceeded by up to 2, because a worker counts a step before it is allowed to start, and the other
    // worker may have done one more step than it has counted.
    let furthest = furthest.load(Ordering::SeqCst);
    assert!((1..=BOUND + 2).contains(&furthest), "{furthest}");
    assert!(outcome.global_step <= 2 * STEPS as i64);
    Ok(())
}
