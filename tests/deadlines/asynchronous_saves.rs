//! Checkpoints that are written while steps run: a checkpoint holds the values at its snapshot, whatever later steps
//! change. `benches/asynchronous_saves.sh` measures by how much saving slows the steps down.

use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::folder::Folder;
use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{DType, Graph, Output, Scope};
use anabranch::train::{
    Initializer, Optimizer, PartitionStrategy, Partitioner, Retention, Saver, Strategy, SyncMode, Training,
    VariablePlacement, Variables,
};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const SERVERS: u32 = 2;

/// Number of elements in a row of the table.
const WIDTH: usize = 64;

/// Number of rows that a step looks up and changes.
const BATCH: usize = 256;

/// Number of matrix products in a step, if steps do work besides the update.
const PRODUCTS: usize = 4;

/// Largest size of a shard of the table, in bytes. A whole shard is copied when one of its rows changes while a snapshot
/// of the shard is being written.
const PART_BYTES: usize = 16 << 20;

/// Returns the number in the environment variable `name`, or `default` if it is not set.
fn number(name: &str, default: usize) -> Fallible<usize> {
    Ok(std::env::var(name).map_or(Ok(default), |text| text.parse())?)
}

/// A model whose steps change random rows of a table on the parameter servers.
struct Model {
    graph: Graph,
    saver: Arc<Saver>,
    training: Training,
    /// The sum of all elements of the table, a `double`.
    sum: Output,
}

struct Job {
    session: Arc<Session>,
    model: Model,
}

/// The training steps in a period: their number, the length of the period, and the longest duration of a step.
#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    steps: u32,
    time: Duration,
    longest: Duration,
}

impl Pace {
    fn rate(&self) -> f64 {
        f64::from(self.steps) / self.time.as_secs_f64()
    }

    fn and(self, other: Pace) -> Pace {
        Pace {
            steps: self.steps + other.steps,
            time: self.time + other.time,
            longest: self.longest.max(other.longest),
        }
    }
}

/// Returns the scalar 1, computed after products of square matrices with `size` rows on the worker, or a constant 1 if
/// `size` is 0.
fn one_after_products(scope: &Scope, size: usize) -> Output {
    let one = scope.constant(1.0f32);
    if size == 0 {
        return one;
    }
    let matrix = scope.random_uniform(scope.constant_vector(&[size as i64; 2]), DType::Float, 7);
    let product = (0..PRODUCTS).fold(matrix, |product, _| scope.matmul(product, matrix));
    scope.add(one, scope.mul(scope.sum(product, &[0, 1], false), scope.constant(0.0f32)))
}

fn model(rows: usize, size: usize) -> Fallible<Model> {
    let root = Scope::new();
    let placement = VariablePlacement::RoundRobin;
    let strategy =
        Strategy::ParameterServer { ps_tasks: SERVERS, worker: 0, placement, sync: SyncMode::Async };
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let cut = Partitioner::axis_size(PART_BYTES);
    let table = variables.get_partitioned("table", DType::Float, &[rows, WIDTH], &Initializer::Zeros, cut);
    let optimizer = Optimizer::gradient_descent(1.0);
    let training = strategy.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let (none, all) = (scope.constant(0i64), scope.constant(rows as i64));
        let ids = scope.random_uniform_int(scope.constant_vector(&[BATCH as i64]), none, all, 7);
        let picked = variables.embedding_lookup(scope, &table.parts, ids, PartitionStrategy::Mod);
        // With this loss, a training step adds 1 to every element of the rows that are looked up.
        scope.neg(scope.mul(scope.sum(picked, &[0, 1], false), one_after_products(scope, size)))
    })?;
    let sums: Vec<Output> = table
        .parts
        .iter()
        .map(|part| {
            let colocated = scope.colocate_with(part.handle.node);
            colocated.sum(colocated.cast(part.value, DType::Double), &[0, 1], false)
        })
        .collect();
    let sum = scope.op("AddN").input(sums).output();
    let saver = Arc::new(Saver::new(&root, &variables.all(), Retention { max_to_keep: 1, every: None }));
    Ok(Model { graph: root.finish()?, saver, training, sum })
}

impl Job {
    fn start(cluster: &Cluster, rows: usize, size: usize) -> Fallible<Job> {
        let model = model(rows, size)?;
        let target = cluster.target("worker", 0);
        let session = Session::connect(&target, model.graph.clone(), SessionOptions::default())?;
        session.run(&[], &[], &[model.training.initialize])?;
        Ok(Job { session: Arc::new(session), model })
    }

    /// Runs training steps until `is_time` returns true.
    fn steps_until(&self, mut is_time: impl FnMut() -> bool) -> Fallible<Pace> {
        let start = Instant::now();
        let mut pace = Pace::default();
        while !is_time() {
            let before = Instant::now();
            self.session.run(&[], &[], &[self.model.training.train])?;
            pace.longest = pace.longest.max(before.elapsed());
            pace.steps += 1;
        }
        Ok(Pace { time: start.elapsed(), ..pace })
    }

    /// Saves a checkpoint with `step` in its name, and runs training steps until it is written.
    fn steps_while_saved(&self, folder: &Path, step: i64) -> Fallible<Pace> {
        let started = Instant::now();
        self.model.saver.snapshot(&self.session)?;
        let (saver, session, folder) = (self.model.saver.clone(), self.session.clone(), folder.to_owned());
        let writing = std::thread::spawn(move || saver.write_behind_steps(&session, &folder, "model", step));
        let pace = self.steps_until(|| writing.is_finished())?;
        writing.join().map_err(|_| "the writer panicked")??;
        Ok(Pace { time: started.elapsed(), ..pace })
    }

    fn step(&self) -> Fallible<i64> {
        Ok(self.session.run(&[], &[self.model.training.global_step], &[])?[0].item()?)
    }
}

#[test]
fn steps_run_while_a_checkpoint_is_written() -> Fallible {
    // The size of the whole table in MiB, and the number of saves.
    let (size, rounds) = (number("ANABRANCH_SAVE_MIB", 32)?, number("ANABRANCH_SAVE_ROUNDS", 3)?);
    let cluster = Cluster::start(&[("ps", SERVERS as usize), ("worker", 1)])?;
    let folder = Folder::new("asynchronous-saves")?;
    let computed = number("ANABRANCH_SAVE_PRODUCTS", 0)?;
    let job = Job::start(&cluster, (size << 20) / (WIDTH * size_of::<f32>()), computed)?;
    let mut warm_up = 0..20;
    job.steps_until(|| warm_up.next().is_none())?;
    let (mut quiet, mut behind) = (Pace::default(), Pace::default());
    let (mut saved_at, mut ratios) = (0, Vec::new());
    for _ in 0..rounds {
        saved_at = job.step()?;
        let pace = job.steps_while_saved(folder.path(), saved_at)?;
        behind = behind.and(pace);
        let start = Instant::now();
        let by_itself = job.steps_until(|| start.elapsed() > pace.time)?;
        quiet = quiet.and(by_itself);
        ratios.push(100.0 * (pace.rate() / by_itself.rate() - 1.0));
    }
    ratios.sort_by(f64::total_cmp);
    eprintln!(
        "{size} MiB, {rounds} rounds: {:.1} steps/s, the longest {:.1?}; {:.1} while it is saved ({:+.1} %, of each round \
         {:+.1?}), the longest {:.1?}; saved in {:.2?}, {:.0} MiB/s",
        quiet.rate(),
        quiet.longest,
        behind.rate(),
        100.0 * (behind.rate() / quiet.rate() - 1.0),
        ratios,
        behind.longest,
        behind.time / rounds as u32,
        (rounds * size) as f64 / behind.time.as_secs_f64()
    );
    assert!(behind.steps >= 3, "{behind:?}");

    // Each step adds 1 to BATCH * WIDTH elements, so the sum gives the step at which the snapshot was taken.
    let prefix = folder.path().join(format!("model-{saved_at}"));
    assert!(job.step()? > saved_at + 1);
    job.model.saver.restore(&job.session, &prefix)?;
    let restored = job.session.run(&[], &[job.model.sum, job.model.training.global_step], &[])?;
    assert_eq!(restored[1].item::<i64>()?, saved_at);
    assert_eq!(restored[0].item::<f64>()?, (saved_at as usize * BATCH * WIDTH) as f64);
    Ok(())
}
