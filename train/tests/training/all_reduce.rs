//! Workers that train without parameter servers, each on its own task of a cluster in this process.

use super::Fallible;
use super::sessions::Folder;
use anabranch_train::{
    Average, Dataset, Error, Hook, HookContext, Initializer, Input, Master, Membership, MonitoredConfig,
    MonitoredSession, MovingAverage, Optimizer, Period, Retention, Role, RunValues, Saver, Strategy, Tables,
    Training, Uneven, UpdateOptions, Variable, Variables, Wire, hooks, latest_checkpoint,
};
use client::{Server, ServerConfig, Session};
use graph::{Code, DType, Graph, NodeId, Output, PartialShape, Scope, Shape, TaskName, Tensor};
use parking_lot::Mutex;
use proto::Cluster;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

pub(super) const COLUMNS: usize = 4;
pub(super) const ROWS: usize = 8;
const DEADLINE: Duration = Duration::from_secs(60);

/// A function that adds a model's loss for a batch: the mean over its rows if the last argument is true, else the sum.
pub(super) type Loss = fn(&Scope, &Variables, &[Output], bool) -> Output;

/// The servers of a cluster of workers and parameter servers.
pub(super) struct Workers {
    runtime: Option<Runtime>,
    /// The servers of the workers.
    pub(super) servers: Vec<Arc<Server>>,
}

impl Workers {
    pub(super) fn start(count: u32) -> Fallible<Workers> {
        Workers::start_with(0, count)
    }

    /// Starts parameter servers and workers.
    pub(super) fn start_with(ps_tasks: u32, count: u32) -> Fallible<Workers> {
        let runtime = Runtime::new()?;
        let mut cluster = Cluster::new();
        let mut listeners = Vec::new();
        let of_job = |job, count| (0..count).map(move |index| TaskName::new(job, index));
        for task in of_job("ps", ps_tasks).chain(of_job("worker", count)) {
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
            cluster.insert(&task.job, task.task, &listener.local_addr()?.to_string())?;
            listeners.push((task, listener));
        }
        let mut servers = Vec::new();
        for (task, listener) in listeners {
            let config =
                ServerConfig { task, cluster: cluster.clone(), threads: 2, ..ServerConfig::default() };
            let _in_runtime = runtime.enter();
            let server = Arc::new(Server::in_runtime(config)?);
            let served = server.clone();
            runtime
                .spawn(async move { served.serve(listener, std::future::pending(), Duration::ZERO).await });
            servers.push(server);
        }
        Ok(Workers { runtime: Some(runtime), servers: servers.split_off(ps_tasks as usize) })
    }

    /// Runs `work` for each worker at the same time. Returns the results by worker.
    pub(super) fn run<T: Send>(
        &self,
        work: impl Fn(u32, &Arc<Server>) -> Fallible<T> + Sync,
    ) -> Fallible<Vec<T>> {
        let results: Result<Vec<T>, String> = thread::scope(|scope| {
            let threads: Vec<_> = (0..)
                .zip(&self.servers)
                .map(|(worker, server)| {
                    let work = &work;
                    scope.spawn(move || work(worker, server).map_err(|e| format!("worker {worker}: {e}")))
                })
                .collect();
            let joined = threads.into_iter().map(|t| t.join().unwrap_or_else(|_| Err("a panic".into())));
            joined.collect()
        });
        Ok(results?)
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

pub(super) struct Replica {
    pub(super) graph: Graph,
    pub(super) training: Training,
    pub(super) saver: Arc<Saver>,
    pub(super) x: Output,
    pub(super) y: Output,
    /// All variables, with slots and the global step.
    pub(super) values: Vec<Output>,
    /// Destroys all variables.
    pub(super) destroy: NodeId,
    /// Destroys the parts of partitioned variables.
    pub(super) destroy_parts: NodeId,
}

/// Adds the square error of a linear layer plus weights looked up by row: the mean or the sum over the batch.
fn loss(scope: &Scope, variables: &Variables, batch: &[Output], is_mean: bool) -> Output {
    let w = variables.get("w", DType::Float, &[COLUMNS, 1], &Initializer::Constant(0.5));
    let rows = variables.get("rows", DType::Float, &[5, 1], &Initializer::Zeros);
    let ids = scope.cast(scope.abs(scope.squeeze(batch[1], &[1])), DType::Int32);
    let looked_up = variables.embedding_lookup(scope, &[rows], ids, Default::default());
    let error = scope.square(scope.sub(scope.add(scope.matmul(batch[0], w.value), looked_up), batch[1]));
    if is_mean { scope.mean(error, &[0, 1], false) } else { scope.sum(error, &[0, 1], false) }
}

fn replica(strategy: &Strategy, optimizer: &Optimizer, is_mean: bool) -> Fallible<Replica> {
    replica_of(loss, strategy, optimizer, UpdateOptions::default(), is_mean)
}

pub(super) fn replica_of(
    loss: Loss,
    strategy: &Strategy,
    optimizer: &Optimizer,
    options: UpdateOptions,
    is_mean: bool,
) -> Fallible<Replica> {
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let x = scope.placeholder("x", DType::Float, PartialShape::from([None, Some(COLUMNS)]));
    let y = scope.placeholder("y", DType::Float, PartialShape::from([None, Some(1)]));
    let inputs = [x, y];
    let loss =
        |scope: &Scope, variables: &Variables, batch: &[Output]| loss(scope, variables, batch, is_mean);
    let training = strategy.minimize_with(&scope, &variables, optimizer, options, &inputs, loss)?;
    finished(&root, training, [x, y])
}

fn finished(root: &Scope, training: Training, [x, y]: [Output; 2]) -> Fallible<Replica> {
    let all = training.variables.all();
    let saver = Arc::new(Saver::new(root, &all, Retention::default()));
    let values = all.iter().map(|variable| variable.value).collect();
    let destroy =
        |variable: &Variable| root.colocate_with(variable.handle.node).destroy_resource(variable.handle);
    let parts = all.iter().filter(|variable| variable.slice.is_some());
    let destroy_parts = root.group(&parts.map(destroy).collect::<Vec<_>>());
    let destroy = root.group(&all.iter().map(destroy).collect::<Vec<_>>());
    Ok(Replica { graph: root.finish()?, training, saver, x, y, values, destroy, destroy_parts })
}

/// Returns the inputs and targets of rows `from..to` of a step's batch.
pub(super) fn batch(from: usize, to: usize, step: usize) -> Fallible<[Tensor; 2]> {
    let x: Vec<f32> =
        (from * COLUMNS..to * COLUMNS).map(|i| ((i * 7 + step) % 13) as f32 / 6.0 - 1.0).collect();
    let y: Vec<f32> = (from..to).map(|i| ((i * i + step) % 5) as f32).collect();
    let rows = to - from;
    Ok([
        Tensor::from_slice(&x, Shape::new(&[rows, COLUMNS])?)?,
        Tensor::from_slice(&y, Shape::new(&[rows, 1])?)?,
    ])
}

fn all_reduce(worker: u32, workers: u32) -> Strategy {
    let (average, wire, uneven) = (Average::Mean, Wire::F32, Uneven::Fail);
    Strategy::AllReduce { worker, workers, least: workers, average, wire, uneven, tables: Tables::Replicated }
}

fn elastic(worker: u32, workers: u32, least: u32) -> Strategy {
    let (average, wire, uneven) = (Average::Mean, Wire::F32, Uneven::Fail);
    Strategy::AllReduce { worker, workers, least, average, wire, uneven, tables: Tables::Replicated }
}

pub(super) fn config(worker: u32) -> MonitoredConfig {
    MonitoredConfig {
        role: Role::fixed(worker == 0),
        ready_deadline: DEADLINE,
        step_deadline: DEADLINE,
        recovery_deadline: DEADLINE,
        ..MonitoredConfig::default()
    }
}

pub(super) fn open(
    server: &Arc<Server>,
    replica: &Replica,
    worker: u32,
) -> anabranch_train::Result<MonitoredSession> {
    let (graph, training) = (replica.graph.clone(), replica.training.clone());
    MonitoredSession::new(
        Master::InProcess(server.clone()),
        graph,
        training,
        None,
        Vec::new(),
        config(worker),
    )
}

/// Trains for some steps with shares of the rows `shares[worker]..shares[worker + 1]`. Returns each worker's variables.
fn train(
    workers: &Workers,
    strategy: impl Fn(u32) -> Strategy + Sync,
    optimizer: &Optimizer,
    (shares, is_mean): (&[usize], bool),
    steps: usize,
) -> Fallible<Vec<Vec<Tensor>>> {
    workers.run(|worker, server| {
        let replica = replica(&strategy(worker), optimizer, is_mean)?;
        let mut session = open(server, &replica, worker)?;
        for step in 0..steps {
            let [x, y] = batch(shares[worker as usize], shares[worker as usize + 1], step)?;
            session.run(&[(replica.x, x), (replica.y, y)], &[], &[replica.training.train])?;
        }
        let values = session.session().run(&[], &replica.values, &[])?;
        session.finish()?;
        Ok(values)
    })
}

/// Trains on the whole batch with one process. Returns the variables.
fn train_alone(optimizer: &Optimizer, is_mean: bool, steps: usize) -> Fallible<Vec<Tensor>> {
    let replica = replica(&Strategy::Local, optimizer, is_mean)?;
    let session = Session::local(replica.graph.clone())?;
    session.run(&[], &[], &[replica.training.initialize])?;
    for step in 0..steps {
        let [x, y] = batch(0, ROWS, step)?;
        session.run(&[(replica.x, x), (replica.y, y)], &[], &[replica.training.train])?;
    }
    Ok(session.run(&[], &replica.values, &[])?)
}

/// Returns the largest difference between the numbers of two lists of tensors, which must have the same types.
fn difference(a: &[Tensor], b: &[Tensor]) -> Fallible<f32> {
    assert_eq!(a.len(), b.len());
    let mut most = 0.0f32;
    for (a, b) in a.iter().zip(b) {
        if a.dtype() == DType::Int64 {
            assert_eq!(a, b);
            continue;
        }
        assert_eq!(a.shape(), b.shape());
        for (a, b) in a.values::<f32>()?.iter().zip(b.values::<f32>()?) {
            most = most.max((a - b).abs());
        }
    }
    Ok(most)
}

/// Checks that the variables of all workers have the same bits. Returns the variables.
#[track_caller]
fn common(mut all: Vec<Vec<Tensor>>) -> Vec<Tensor> {
    for other in &all[1..] {
        assert_eq!(&all[0], other);
    }
    all.swap_remove(0)
}

#[test]
fn workers_train_like_one_process_on_the_whole_batch() -> Fallible {
    const STEPS: usize = 6;
    for optimizer in [Optimizer::momentum(0.02, 0.9), Optimizer::adam(0.05), Optimizer::adagrad(0.1)] {
        let workers = Workers::start(2)?;
        let together = train(&workers, |w| all_reduce(w, 2), &optimizer, (&[0, 4, 8], true), STEPS)?;
        let difference = difference(&common(together), &train_alone(&optimizer, true, STEPS)?)?;
        assert!(difference < 1e-5, "{optimizer:?}: {difference}");
    }
    // Four workers have shares of different sizes; the first has no rows.
    let workers = Workers::start(4)?;
    let sum = |worker| Strategy::AllReduce {
        worker,
        workers: 4,
        least: 4,
        average: Average::Sum,
        wire: Wire::F32,
        uneven: Uneven::Fail,
        tables: Tables::Replicated,
    };
    let optimizer = Optimizer::momentum(0.005, 0.9);
    let together = common(train(&workers, sum, &optimizer, (&[0, 0, 4, 5, 8], false), STEPS)?);
    let difference = difference(&together, &train_alone(&optimizer, false, STEPS)?)?;
    assert!(difference < 1e-5, "{difference}");
    Ok(())
}

#[test]
fn bfloat16_on_the_wire_rounds_gradients() -> Fallible {
    const STEPS: usize = 4;
    let workers = Workers::start(2)?;
    let rounded = |worker| Strategy::AllReduce {
        worker,
        workers: 2,
        least: 2,
        average: Average::Mean,
        wire: Wire::Bf16,
        uneven: Uneven::Fail,
        tables: Tables::Replicated,
    };
    let optimizer = Optimizer::momentum(0.02, 0.9);
    let together = common(train(&workers, rounded, &optimizer, (&[0, 4, 8], true), STEPS)?);
    let difference = difference(&together, &train_alone(&optimizer, true, STEPS)?)?;
    assert!((1e-6..0.02).contains(&difference), "{difference}");
    Ok(())
}

#[test]
fn a_worker_without_variables_gets_those_of_the_most_advanced() -> Fallible {
    let workers = Workers::start(2)?;
    let optimizer = Optimizer::momentum(0.02, 0.9);
    let trained = common(train(&workers, |w| all_reduce(w, 2), &optimizer, (&[0, 4, 8], true), 3)?);
    let lost = replica(&all_reduce(0, 2), &optimizer, true)?;
    let session = Session::on_server(&workers.servers[0], lost.graph.clone(), Default::default())?;
    session.run(&[], &[], &[lost.destroy])?;
    session.close()?;
    let found = workers.run(|worker, server| {
        let replica = replica(&all_reduce(worker, 2), &optimizer, true)?;
        let session = open(server, &replica, worker)?;
        Ok(session.session().run(&[], &replica.values, &[])?)
    })?;
    assert_eq!(common(found), trained);
    Ok(())
}

/// A hook that destroys the variables of its replica after the second step, and requests a new session.
struct LosesVariables {
    destroy: NodeId,
}

impl Hook for LosesVariables {
    fn after_run(&mut self, context: &HookContext<'_>, run: &RunValues<'_>) -> anabranch_train::Result<()> {
        if run.global_step != Some(2) {
            return Ok(());
        }
        context.session.run(&[], &[], &[self.destroy])?;
        Err(client::Error::Status(proto::Status::new(Code::Aborted, "the variables are gone")).into())
    }
}

#[test]
fn a_job_whose_variables_are_all_lost_is_not_begun_again() -> Fallible {
    let workers = Workers::start(2)?;
    let optimizer = Optimizer::gradient_descent(0.02);
    let errors = workers.run(|worker, server| {
        let replica = replica(&all_reduce(worker, 2), &optimizer, true)?;
        let all: Vec<Box<dyn Hook>> = vec![Box::new(LosesVariables { destroy: replica.destroy })];
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let master = Master::InProcess(server.clone());
        let mut session = MonitoredSession::new(master, graph, training, None, all, config(worker))?;
        loop {
            let [x, y] = batch(0, ROWS, 0)?;
            let done = session.run(&[(replica.x, x), (replica.y, y)], &[], &[replica.training.train]);
            if let Err(error) = done {
                return Ok(error);
            }
        }
    })?;
    for error in errors {
        let Error::VariablesLost { names, .. } = &error else { return Err(error.into()) };
        assert!(names.iter().any(|name| name == "w"), "{error}");
    }
    Ok(())
}

/// Trains to step `last` and saves checkpoints every two steps. Returns the variables.
fn train_and_save(
    server: &Arc<Server>,
    worker: u32,
    [restored, saved]: [&Folder; 2],
    last_step: i64,
) -> Fallible<Vec<Tensor>> {
    let replica = replica(&all_reduce(worker, 2), &Optimizer::momentum(0.02, 0.9), true)?;
    let step = replica.training.global_step;
    let save = hooks::CheckpointSaver::new(replica.saver.clone(), &saved.0, step, Period::Steps(2));
    let all: Vec<Box<dyn Hook>> = vec![Box::new(save), Box::new(hooks::StopAtStep { last_step })];
    let (graph, training) = (replica.graph.clone(), replica.training.clone());
    let master = Master::InProcess(server.clone());
    let config = MonitoredConfig { checkpoint_folder: Some(restored.0.clone()), ..config(worker) };
    let saver = Some(replica.saver.clone());
    let mut session = MonitoredSession::new(master, graph, training, saver, all, config)?;
    loop {
        let [x, y] = batch(0, ROWS, 0)?;
        let feeds = [(replica.x, x), (replica.y, y)];
        if session.run(&feeds, &[], &[replica.training.train])?.is_none() {
            let values = session.session().run(&[], &replica.values, &[])?;
            session.finish()?;
            return Ok(values);
        }
    }
}

#[test]
fn the_chief_saves_and_restores_for_all_workers() -> Fallible {
    let folders = [Folder::new("all-reduce-chief"), Folder::new("all-reduce-worker")];
    // The workers of the second and third job have no variables at first.
    let train = |last_step: i64| -> Fallible<Vec<Tensor>> {
        let workers = Workers::start(2)?;
        let trained = workers.run(|worker, server| {
            train_and_save(server, worker, [&folders[0], &folders[worker as usize]], last_step)
        })?;
        Ok(common(trained))
    };
    let at_three = train(3)?;
    let newest = latest_checkpoint(&folders[0].0)?.ok_or("the chief has saved nothing")?;
    assert!(newest.ends_with("model.ckpt-3"), "{newest:?}");
    assert_eq!(latest_checkpoint(&folders[1].0)?, None);
    assert_eq!(train(3)?, at_three);
    let resumed = train(5)?;
    drop(folders);

    let folders = [Folder::new("all-reduce-undisturbed"), Folder::new("all-reduce-unused")];
    let workers = Workers::start(2)?;
    let undisturbed = workers
        .run(|worker, server| train_and_save(server, worker, [&folders[0], &folders[worker as usize]], 5))?;
    assert_eq!(common(undisturbed), resumed);
    Ok(())
}

#[test]
fn waits_for_workers_end_with_their_deadlines() -> Fallible {
    let workers = Workers::start(2)?;
    let replica = replica(&all_reduce(0, 2), &Optimizer::gradient_descent(0.02), true)?;
    let (graph, training) = (replica.graph.clone(), replica.training.clone());
    let alone = MonitoredConfig { ready_deadline: Duration::from_millis(300), ..config(0) };
    let master = Master::InProcess(workers.servers[0].clone());
    let opened = MonitoredSession::new(master, graph, training, None, Vec::new(), alone);
    let error = opened.err().ok_or("a worker has not waited for the other")?;
    assert!(matches!(error, Error::WorkersMissing { worker: 0, workers: 2, .. }), "{error}");
    assert!(error.to_string().contains("to open their sessions"), "{error}");

    let both_are_done = Barrier::new(2);
    let errors = workers.run(|worker, server| {
        let step = || -> Fallible<Option<Error>> {
            let replica = self::replica(&all_reduce(worker, 2), &Optimizer::gradient_descent(0.02), true)?;
            let (graph, training) = (replica.graph.clone(), replica.training.clone());
            let config = MonitoredConfig { step_deadline: Duration::from_millis(300), ..config(worker) };
            let master = Master::InProcess(server.clone());
            let mut session = MonitoredSession::new(master, graph, training, None, Vec::new(), config)?;
            let [x, y] = batch(0, ROWS, 0)?;
            let run = |session: &mut MonitoredSession| {
                session.run(&[(replica.x, x), (replica.y, y)], &[], &[replica.training.train]).err()
            };
            let error = if worker == 0 { run(&mut session) } else { None };
            both_are_done.wait();
            Ok(error)
        };
        step().inspect_err(|_| {
            both_are_done.wait();
        })
    })?;
    let Some(Some(error)) = errors.into_iter().next() else { return Err("a step has not waited".into()) };
    assert!(error.to_string().contains("to send their gradients"), "{error}");
    assert_eq!(error.code(), Code::DeadlineExceeded);
    Ok(())
}

/// Builds a replica whose input has the given batches. The gradients of a batch of zeros are NaN.
fn with_input(
    loss: Loss,
    strategy: &Strategy,
    optimizer: &Optimizer,
    batches: &[[Tensor; 2]],
) -> Fallible<(Replica, Input)> {
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let join = |i: usize, columns: usize| {
        let all: Vec<f32> =
            batches.iter().map(|b| b[i].values::<f32>()).collect::<Result<Vec<_>, _>>()?.concat();
        Tensor::from_slice(&all, Shape::new(&[all.len() / columns, columns])?)
    };
    let rows = batches.first().map_or(0, |batch| batch[0].shape()[0]);
    let data = Dataset::from_tensors(&scope, &[join(0, COLUMNS)?, join(1, 1)?]);
    let input = data.batch(rows as i64, true).input(&format!("batches_of_{rows}"));
    let options = UpdateOptions { moving_average: Some(MovingAverage::default()), ..Default::default() };
    let training = strategy.minimize_with(
        &scope,
        &variables,
        optimizer,
        options,
        &input.next,
        |scope, variables, batch| {
            let largest = scope.reduce_max(scope.abs(batch[0]), &[1], true);
            let x = scope.div(batch[0], largest);
            loss(scope, variables, &[x, batch[1]], true)
        },
    )?;
    Ok((finished(&root, training, [input.next[0], input.next[1]])?, input))
}

/// Trains to the end of the input, or to a last step. Returns the variables.
pub(super) fn train_to_the_end(
    loss: Loss,
    server: &Arc<Server>,
    strategy: &Strategy,
    optimizer: &Optimizer,
    batches: &[[Tensor; 2]],
    (worker, last_step): (u32, i64),
) -> Fallible<Vec<Tensor>> {
    let (replica, input) = with_input(loss, strategy, optimizer, batches)?;
    let (graph, training) = (replica.graph.clone(), replica.training.clone());
    let guard = hooks::NanGuard { loss: replica.training.loss, fails: true };
    let all: Vec<Box<dyn Hook>> =
        vec![input.hook(), Box::new(guard), Box::new(hooks::StopAtStep { last_step })];
    let master = Master::InProcess(server.clone());
    let mut session = MonitoredSession::new(master, graph, training, None, all, config(worker))?;
    while session.run(&[], &[], &[replica.training.train])?.is_some() {}
    let values = session.session().run(&[], &replica.values, &[])?;
    session.finish()?;
    Ok(values)
}

#[test]
fn workers_with_more_batches_go_on_without_the_others() -> Fallible {
    let join = |worker| Strategy::AllReduce {
        worker,
        workers: 2,
        least: 2,
        average: Average::Mean,
        wire: Wire::F32,
        uneven: Uneven::Join,
        tables: Tables::Replicated,
    };
    let batches = |from: usize, to: usize, steps: usize| -> Fallible<Vec<[Tensor; 2]>> {
        (0..steps).map(|step| batch(from, to, step)).collect()
    };
    // In every step, Adam changes all rows of the table and its own powers, and momentum changes all dense variables.
    for optimizer in [Optimizer::momentum(0.02, 0.9), Optimizer::adam(0.02)] {
        let workers = Workers::start(2)?;
        let together = workers.run(|worker, server| {
            let own = if worker == 0 { batches(0, 4, 3)? } else { batches(4, 8, 7)? };
            train_to_the_end(loss, server, &join(worker), &optimizer, &own, (worker, i64::MAX))
        })?;
        let together = common(together);

        let server = Arc::new(Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?);
        // The jobs of one process stop before their inputs end, because the step that fails at the end of the input may
        // have changed Adam's powers.
        train_to_the_end(loss, &server, &Strategy::Local, &optimizer, &batches(0, 8, 3)?, (0, 3))?;
        let rest: Vec<[Tensor; 2]> = batches(4, 8, 7)?.split_off(3);
        let alone = train_to_the_end(loss, &server, &Strategy::Local, &optimizer, &rest, (0, 7))?;
        let difference = difference(&together, &alone)?;
        assert!(difference < 1e-5, "{optimizer:?}: {difference}");
    }
    Ok(())
}

#[test]
fn training_ends_on_all_workers_with_the_shortest_input() -> Fallible {
    let server = Arc::new(Server::new(ServerConfig { threads: 2, ..ServerConfig::default() })?);
    let batches = (0..3).map(|step| batch(0, ROWS, step)).collect::<Fallible<Vec<_>>>()?;
    let optimizer = Optimizer::momentum(0.02, 0.9);
    let alone = train_to_the_end(loss, &server, &Strategy::Local, &optimizer, &batches, (0, i64::MAX))?;
    for lengths in [[3, 3], [3, 5], [5, 3]] {
        let workers = Workers::start(2)?;
        let trained = workers.run(|worker, server| {
            let (from, steps) = (4 * worker as usize, lengths[worker as usize]);
            let batches = (0..steps).map(|step| batch(from, from + 4, step)).collect::<Fallible<Vec<_>>>()?;
            train_to_the_end(loss, server, &all_reduce(worker, 2), &optimizer, &batches, (worker, i64::MAX))
        })?;
        let difference = difference(&common(trained), &alone)?;
        assert!(difference < 1e-5, "{lengths:?}: {difference}");
    }
    Ok(())
}

#[test]
fn wrong_places_and_batches_are_refused() -> Fallible {
    let optimizer = Optimizer::gradient_descent(0.02);
    let refusal = |strategy: &Strategy| {
        replica(strategy, &optimizer, true).err().map(|error| error.to_string()).unwrap_or_default()
    };
    let (average, wire) = (Average::Mean, Wire::F32);
    for (strategy, text) in [
        (all_reduce(0, 0), "has 0 workers"),
        (all_reduce(2, 2), "worker 2 is none of the 2 workers"),
        (elastic(0, 2, 0), "at least 0 workers, not 1 to all 2"),
        (elastic(0, 2, 3), "at least 3 workers, not 1 to all 2"),
        (
            Strategy::AllReduce {
                worker: 0,
                workers: 2,
                least: 2,
                average,
                wire,
                uneven: Uneven::Join,
                tables: Tables::Replicated,
            },
            "'x' is a Placeholder",
        ),
    ] {
        let refused = refusal(&strategy);
        assert!(refused.contains(text), "{refused}");
    }
    let scope = Scope::new();
    let variables = Variables::new(&scope);
    variables.get_untrained("names", DType::String, &[2], &Initializer::Zeros);
    let refused = all_reduce(0, 2).minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        scope.square(variables.get("w", DType::Float, &[], &Initializer::Zeros).value)
    });
    let refused = refused.err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("'names' is of string"), "{refused}");
    Ok(())
}

/// The rank of a worker in each epoch, and the workers of the epoch.
type Epochs = Vec<(usize, Vec<usize>)>;

/// A hook that records the epochs of its worker.
#[derive(Clone, Default)]
struct Memberships(Arc<Mutex<Epochs>>);

impl Hook for Memberships {
    fn on_membership(&mut self, _: &HookContext<'_>, found: &Membership) -> anabranch_train::Result<()> {
        self.0.lock().push((found.rank, found.workers.clone()));
        Ok(())
    }
}

/// A worker of a job of at most two workers that can train with one.
struct ElasticWorker {
    replica: Replica,
    session: ManuallyDrop<MonitoredSession>,
    memberships: Memberships,
}

impl ElasticWorker {
    fn open(server: &Arc<Server>, worker: u32) -> Fallible<ElasticWorker> {
        let replica = replica(&elastic(worker, 2, 1), &Optimizer::momentum(0.02, 0.9), true)?;
        let memberships = Memberships::default();
        let all: Vec<Box<dyn Hook>> = vec![Box::new(memberships.clone())];
        let (graph, training) = (replica.graph.clone(), replica.training.clone());
        let master = Master::InProcess(server.clone());
        let session = MonitoredSession::new(master, graph, training, None, all, config(worker))?;
        Ok(ElasticWorker { replica, session: ManuallyDrop::new(session), memberships })
    }

    /// Runs one step. Returns the global step after it, and the number of workers.
    fn step(&mut self) -> Fallible<(i64, usize)> {
        let [x, y] = batch(0, ROWS, 0)?;
        let (replica, done) = (&self.replica, [self.replica.training.step_done]);
        let values = self.session.run(&[(replica.x, x), (replica.y, y)], &done, &[replica.training.train])?;
        let step = values.ok_or("training has ended")?[0].item()?;
        Ok((step, self.session.membership().ok_or("no membership")?.size()))
    }

    /// Trains to the last step. Returns the variables and the epochs in which the worker has been.
    fn finish(mut self, last_step: &AtomicI64) -> Fallible<(Vec<Tensor>, Epochs)> {
        while self.step()?.0 < last_step.load(Ordering::SeqCst) {}
        let values = self.session.session().run(&[], &self.replica.values, &[])?;
        ManuallyDrop::into_inner(self.session).finish()?;
        let memberships = self.memberships.0.lock().clone();
        Ok((values, memberships))
    }
}

#[test]
fn a_worker_joins_a_job_in_training_and_a_client_that_died_joins_again() -> Fallible {
    let workers = Workers::start(2)?;
    // Both workers end after this step, which is set once the second client of worker 1 has trained.
    let (begun, last_step) = (Barrier::new(2), AtomicI64::new(i64::MAX));
    let results = workers.run(|worker, server| {
        if worker == 0 {
            let mut first = ElasticWorker::open(server, 0)?;
            for step in 1..=3 {
                assert_eq!(first.step()?, (step, 1));
            }
            begun.wait();
            return first.finish(&last_step);
        }
        begun.wait();
        let mut second = ElasticWorker::open(server, 1)?;
        let (step, size) = second.step()?;
        assert!(step > 3 && size == 2, "{step}, {size}");
        assert_eq!(second.memberships.0.lock()[..], [(1, vec![0, 1])]);
        // The client dies without closing its session, and its server lives on. The other worker is in a step that
        // cannot end.
        std::mem::forget(second);
        let mut second = ElasticWorker::open(server, 1)?;
        let (step, size) = second.step()?;
        assert_eq!(size, 2);
        last_step.store(step + 5, Ordering::SeqCst);
        second.finish(&last_step)
    })?;
    let (values, memberships): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    common(values);
    let with_both = (0, vec![0, 1]);
    assert_eq!(memberships[0], [(0, vec![0]), with_both.clone(), with_both]);
    assert_eq!(memberships[1], [(1, vec![0, 1])]);
    Ok(())
}

#[test]
fn fewer_workers_than_the_least_wait_until_the_deadline() -> Fallible {
    let workers = Workers::start(2)?;
    let replica = replica(&elastic(0, 4, 2), &Optimizer::gradient_descent(0.02), true)?;
    let (graph, training) = (replica.graph.clone(), replica.training.clone());
    let alone = MonitoredConfig { ready_deadline: Duration::from_millis(1500), ..config(0) };
    let master = Master::InProcess(workers.servers[0].clone());
    let opened = MonitoredSession::new(master, graph, training, None, Vec::new(), alone);
    let error = opened.err().ok_or("a worker has trained alone")?;
    assert!(matches!(error, Error::WorkersMissing { worker: 0, workers: 4, .. }), "{error}");
    let text = error.to_string();
    assert!(text.contains("have 1, need 2 workers: 0 have come, 1, 2, 3 are missing"), "{text}");
    Ok(())
}
