//! Loads that clients put on a cluster: training steps, sessions, and distinct steps, each of which needs its own plan.

use super::Fallible;
use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{DType, Graph, NodeId, Output, PartialShape, Result, Scope, Shape, Tensor};
use anabranch::train::{Initializer, Optimizer, Strategy, Training, Variables, wait_until_initialized};
use std::ops::Range;
use std::time::Duration;

/// Runs `work` on `count` threads, each with its index, and waits until all threads have ended.
fn on_threads(count: usize, work: impl Fn(usize) -> Fallible + Sync) -> Fallible {
    let work = &work;
    std::thread::scope(|scope| {
        let all: Vec<_> =
            (0..count).map(|i| scope.spawn(move || work(i).map_err(|e| e.to_string()))).collect();
        all.into_iter().try_for_each(|t| t.join().map_err(|_| "a client panicked")?.map_err(Into::into))
    })
}

/// The clients of an asynchronous between-graph job, one for each worker. The variables are on `/job:ps/task:0`.
#[derive(Debug)]
pub struct Replicas(Vec<Replica>);

#[derive(Debug)]
struct Replica {
    session: Session,
    batch: [Output; 2],
    loss: Output,
    train: NodeId,
}

const FEATURES: usize = 8;
const BATCH: usize = 4;

/// Longest time that a worker's client waits for variables to be initialised.
const READY: Duration = Duration::from_secs(30);

impl Replicas {
    /// Opens a session on each worker's target; the first session initialises the variables.
    pub fn start(workers: &[String]) -> Fallible<Replicas> {
        let replicas = (0..).zip(workers).map(|(worker, target)| {
            let strategy = Strategy::ParameterServer {
                ps_tasks: 1,
                worker,
                placement: Default::default(),
                sync: Default::default(),
            };
            let Regression { graph, batch, training, probes } = regression(&strategy)?;
            let session = Session::connect(target, graph, SessionOptions::default())?;
            match worker {
                0 => drop(session.run(&[], &[], &[training.initialize])?),
                _ => wait_until_initialized(&session, &probes, READY)?,
            }
            Ok(Replica { session, batch, loss: training.loss, train: training.train })
        });
        Ok(Replicas(replicas.collect::<Fallible<_>>()?))
    }

    /// Runs `steps` of the job; each worker runs an equal share of them.
    pub fn steps(&self, steps: Range<usize>) -> Fallible {
        on_threads(self.0.len(), |worker| {
            steps.clone().filter(|step| step % self.0.len() == worker).try_for_each(|_| self.0[worker].step())
        })
    }
}

impl Replica {
    fn step(&self) -> Fallible {
        let ones = |columns| {
            Tensor::from_slice(&[1f32; BATCH * FEATURES][..BATCH * columns], Shape::new(&[BATCH, columns])?)
        };
        let feeds = [(self.batch[0], ones(FEATURES)?), (self.batch[1], ones(1)?)];
        let loss = self.session.run(&feeds, &[self.loss], &[self.train])?;
        if loss[0].item::<f32>()?.is_finite() { Ok(()) } else { Err("the training diverges".into()) }
    }
}

struct Regression {
    graph: Graph,
    batch: [Output; 2],
    training: Training,
    /// The name of each variable, with an output that tells whether the variable is initialised.
    probes: Vec<(String, Output)>,
}

fn regression(strategy: &Strategy) -> Result<Regression> {
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let fed =
        |name, columns| scope.placeholder(name, DType::Float, PartialShape::from([None, Some(columns)]));
    let batch = [fed("x", FEATURES), fed("y", 1)];
    let training = strategy.minimize(
        &scope,
        &variables,
        &Optimizer::adam(0.01),
        &batch,
        |scope, variables, batch| {
            let weights = variables.get("weights", DType::Float, &[FEATURES, 1], &Initializer::Zeros);
            let error = scope.sub(scope.matmul(batch[0], weights.value), batch[1]);
            scope.op("L2Loss").input(error).output()
        },
    )?;
    let probes = variables.are_initialized();
    Ok(Regression { graph: root.finish()?, batch, training, probes })
}

/// Opens `count` sessions one after the other, each of which runs one step over two tasks.
pub fn sessions(target: &str, count: usize) -> Fallible {
    (0..count).try_for_each(|_| session(target))
}

/// Opens `count` sessions at the same time, each of which runs one step over two tasks.
pub fn clients_at_once(target: &str, count: usize) -> Fallible {
    on_threads(count, |_| session(target))
}

fn session(target: &str) -> Fallible {
    let scope = Scope::new();
    let x = scope.placeholder("x", DType::Float, [2]);
    let on = |device: &str, input| scope.op("Identity").device(device).input(input).output();
    let on_ps = on("/job:ps/task:0", x);
    let on_worker = on("/job:worker/task:0", on_ps);
    let sum = scope.add(on_worker, x);
    let session = Session::connect(target, scope.finish()?, SessionOptions::default())?;
    let fetched = session.run(&[(x, Tensor::vector(&[1f32, 2.0])?)], &[sum], &[])?;
    assert_eq!(fetched, [Tensor::vector(&[2f32, 4.0])?]);
    session.close()?;
    Ok(())
}

/// A session with 22,500 distinct steps, far more than a master's plan cache holds.
#[derive(Debug)]
pub struct DistinctSteps {
    session: Session,
    x: Output,
    nodes: Vec<Output>,
}

impl DistinctSteps {
    /// Opens the session, whose graph has 150 nodes on two tasks.
    pub fn open(target: &str) -> Fallible<DistinctSteps> {
        let scope = Scope::new();
        let x = scope.placeholder("x", DType::Float, [2]);
        let device = |i| if i % 2 == 0 { "/job:ps/task:0" } else { "/job:worker/task:0" };
        let nodes = (0..150).map(|i| scope.op("Neg").device(device(i)).input(x).output()).collect();
        let session = Session::connect(target, scope.finish()?, SessionOptions::default())?;
        Ok(DistinctSteps { session, x, nodes })
    }

    /// Runs the distinct steps whose numbers are in `numbers`; each step fetches another pair of nodes.
    pub fn steps(&self, numbers: Range<usize>) -> Fallible {
        let (fed, negative) = (Tensor::vector(&[1f32, 2.0])?, Tensor::vector(&[-1f32, -2.0])?);
        let count = self.nodes.len();
        numbers.into_iter().try_for_each(|i| {
            let (a, b) = (self.nodes[i % count], self.nodes[i / count % count]);
            let fetched = self.session.run(&[(self.x, fed.clone())], &[a, b], &[])?;
            assert_eq!(fetched, [negative.clone(), negative.clone()]);
            Ok(())
        })
    }
}
