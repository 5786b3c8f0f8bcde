//! The demo's model of handwritten digits on workers whose number varies: the present workers share the examples of
//! each step, and the final loss is close to that of an undisturbed job.

use super::{Build, Client, STEPS, WORKERS, config, train_disturbed, workers_by_step};
use crate::support::Fallible;
use crate::support::cluster::Cluster;
use crate::support::replica::Replica;
use anabranch::graph::{DType, Output, PartialShape, Scope, Shape, Tensor};
use anabranch::train::{
    Hook, HookContext, Initializer, LearningRate, Membership, Optimizer, Result as TrainResult, Retention,
    RunArgs, Saver, Strategy, Variables,
};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

const CSV: &str = include_str!("../../../src/command/demo/digits/digits.csv");
const PIXELS: usize = 64;
const HIDDEN: usize = 96;
const CLASSES: usize = 10;
/// Number of examples in a step of all workers together.
const BATCH: i64 = 64;
/// The distance between consecutive examples of the training order in the list of examples; it has no common factor
/// with their number.
const STRIDE: i64 = 577;
/// Largest difference of the final loss from that of the undisturbed job, as a fraction.
const TOLERANCE: f32 = 0.05;

/// Returns the brightness of the pixels of all images, from 0 to 1, and the digits that the images show.
fn examples() -> Fallible<(Vec<f32>, Vec<i32>)> {
    let (mut pixels, mut digits) = (Vec::new(), Vec::new());
    for line in CSV.lines() {
        let numbers = line.split(',').map(str::parse::<u8>).collect::<Result<Vec<_>, _>>()?;
        pixels.extend(numbers[..PIXELS].iter().map(|&pixel| f32::from(pixel) / 16.0));
        digits.push(i32::from(numbers[PIXELS]));
    }
    Ok((pixels, digits))
}

/// A hook that feeds a worker's rank and the number of workers, which determine its share of a step's examples.
struct Share {
    rank: Output,
    size: Output,
    found: (i64, i64),
}

impl Hook for Share {
    fn on_membership(&mut self, _: &HookContext<'_>, found: &Membership) -> TrainResult<()> {
        self.found = (found.rank as i64, found.size() as i64);
        Ok(())
    }

    fn before_run(&mut self, _: &HookContext<'_>) -> TrainResult<RunArgs> {
        let feeds = vec![(self.rank, self.found.0.into()), (self.size, self.found.1.into())];
        Ok(RunArgs { feeds, ..RunArgs::default() })
    }
}

fn dense(scope: &Scope, variables: &Variables, name: &str, x: Output, [from, to]: [usize; 2]) -> Output {
    let first = Initializer::GlorotUniform { seed: to as i64 };
    let weights = variables.get(&format!("{name}/weights"), DType::Float, &[from, to], &first);
    let biases = variables.get(&format!("{name}/biases"), DType::Float, &[to], &Initializer::Zeros);
    scope.bias_add(scope.matmul(x, weights.value), biases.value)
}

/// Builds the model of one worker. The examples of a step depend on the global step, the worker's rank and the number of
/// workers.
fn digits_under(strategy: &Strategy, _: u32) -> Fallible<(Replica, Vec<Box<dyn Hook>>)> {
    let (pixels, digits) = examples()?;
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let count = digits.len();
    let pixels = scope.constant(Tensor::from_slice(&pixels, Shape::new(&[count, PIXELS])?)?);
    let digits = scope.constant(Tensor::vector(&digits)?);
    let rate = LearningRate::CosineDecay { initial: 0.004, decay_steps: STEPS as u64, alpha: 0.0 };
    let optimizer = Optimizer::adam(rate);
    let [rank, size] =
        ["rank", "size"].map(|name| scope.placeholder(name, DType::Int64, PartialShape::scalar()));
    let share = Share { rank, size, found: (0, 1) };
    let training = strategy.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
        let [batch, one] = [BATCH, 1].map(|number| scope.constant(number));
        let bound = |rank: Output| scope.floor_div(scope.mul(rank, batch), size);
        let share = scope.range(bound(rank), bound(scope.add(rank, one)), one);
        let begin = scope.mul(variables.global_step().value, batch);
        let place = scope.mul(scope.add(begin, share), scope.constant(STRIDE));
        let rows = scope.floor_mod(place, scope.constant(count as i64));
        let images = scope.gather(pixels, rows, 0);
        let hidden = scope.relu(dense(scope, variables, "hidden", images, [PIXELS, HIDDEN]));
        let scores = dense(scope, variables, "scores", hidden, [HIDDEN, CLASSES]);
        let losses = scope.sparse_softmax_cross_entropy(scores, scope.gather(digits, rows, 0));
        scope.mean(losses, &[0], false)
    })?;
    let all = variables.all();
    let saver = Arc::new(Saver::new(&root, &all, Retention::default()));
    let values = all.iter().map(|v| v.value).collect();
    let names = all.into_iter().map(|v| v.name).collect();
    Ok((Replica { graph: root.finish()?, training, saver, values, names }, vec![Box::new(share)]))
}

/// Returns the product of a vector and a matrix, plus a bias.
fn layer(x: &[f32], weights: &[f32], biases: &[f32]) -> Vec<f32> {
    let mut sums = biases.to_vec();
    for (x, row) in x.iter().zip(weights.chunks(biases.len())) {
        sums.iter_mut().zip(row).for_each(|(sum, weight)| *sum += x * weight);
    }
    sums
}

/// Returns the mean loss over all examples.
fn loss(values: &[Tensor]) -> Fallible<f32> {
    let names = digits_under(&Strategy::Local, 0)?.0.names;
    let named: BTreeMap<&str, &Tensor> = names.iter().map(String::as_str).zip(values).collect();
    let of = |name: &str| -> Fallible<&[f32]> { Ok(named.get(name).ok_or("no variable")?.values::<f32>()?) };
    let (pixels, digits) = examples()?;
    let mut sum = 0.0;
    for (image, digit) in pixels.chunks(PIXELS).zip(&digits) {
        let mut hidden = layer(image, of("hidden/weights")?, of("hidden/biases")?);
        hidden.iter_mut().for_each(|x| *x = x.max(0.0));
        let scores = layer(&hidden, of("scores/weights")?, of("scores/biases")?);
        let most = scores.iter().copied().fold(f32::MIN, f32::max);
        let total: f32 = scores.iter().map(|score| (score - most).exp()).sum();
        sum += total.ln() + most - scores[*digit as usize];
    }
    Ok(sum / digits.len() as f32)
}

/// Trains with all workers to the last step. Returns the variables of each worker.
fn train_undisturbed(build: Build) -> Fallible<Vec<Vec<Tensor>>> {
    let cluster = Cluster::start_with(&[("worker", WORKERS as usize)], &["--connect-deadline", "2"])?;
    let targets: Vec<String> = (0..WORKERS).map(|worker| cluster.target("worker", worker as usize)).collect();
    thread::scope(|scope| {
        let start = |worker: u32| {
            let target = &targets[worker as usize];
            scope.spawn(move || {
                let trained = Client::default().train(worker, (build, WORKERS), config(worker), target);
                trained.map_err(|error| format!("worker {worker}: {error}"))
            })
        };
        let running: Vec<_> = (0..WORKERS).map(start).collect();
        let join = |client: thread::ScopedJoinHandle<'_, Result<Vec<Tensor>, String>>| {
            Ok(client.join().map_err(|_| "a client panicked")??)
        };
        running.into_iter().map(join).collect()
    })
}

#[test]
fn the_loss_ends_as_in_an_undisturbed_job_when_workers_go_and_come_back() -> Fallible {
    let undisturbed = train_undisturbed(digits_under)?;
    let expected = loss(&undisturbed[0])?;
    let job = train_disturbed(3, (digits_under, 2), |clients| {
        let without = clients[0].until(|done| done.workers == [0, 1, 2])?;
        clients[0].until(|done| done.workers.len() == 3 && done.step > without.step + 40)?;
        Ok(())
    })?;
    let found = loss(&job.values[0])?;
    eprintln!("the loss ends at {found:.4}, that of the undisturbed job at {expected:.4}");
    assert!((found - expected).abs() <= TOLERANCE * expected, "{found}, undisturbed {expected}");
    // Every step was run, and the clients agree on the workers of each step, so no worker repeated a step that others
    // had completed.
    let clients = [&job.clients[0], &job.clients[1], &job.clients[2], &job.restarted];
    let steps = workers_by_step(&clients)?;
    assert_eq!(steps.keys().copied().collect::<Vec<_>>(), (1..=STEPS).collect::<Vec<_>>());
    let sizes: Vec<usize> = steps.values().map(Vec::len).collect();
    let without = sizes.iter().filter(|size| **size == 3).count();
    assert!(without > 40 && sizes.last() == Some(&4), "{sizes:?}");
    for client in &clients[..3] {
        let own: Vec<i64> = client.done().iter().map(|done| done.step).collect();
        assert!(own.windows(2).all(|two| two[0] < two[1]), "{own:?}");
    }
    Ok(())
}
