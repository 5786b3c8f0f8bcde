//! Whole programs with a GPU: steps that are cancelled, processes that are killed, and a cluster. Without a GPU, the
//! same programs run on a CPU.

use super::Fallible;
use crate::support::cluster::Cluster;
use client::{Server, ServerConfig, Session, SessionOptions};
use graph::{Code, DType, Graph, NodeId, Output, Scope, Tensor};
use proto::pb;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

const DEADLINE: Duration = Duration::from_secs(60);

/// Returns `GPU:0` if there is a GPU, else `CPU:0`.
fn device() -> Fallible<&'static str> {
    Ok(if crate::first_gpu(&Default::default())?.is_some() { "GPU:0" } else { "CPU:0" })
}

fn options() -> SessionOptions {
    let config = pb::ConfigProto { allow_soft_placement: true, ..Default::default() };
    SessionOptions { config, ..SessionOptions::default() }
}

/// A graph on one device: an endless loop, and a matrix product.
struct TestGraph {
    graph: Graph,
    initialize: NodeId,
    /// The value of a variable that counts the endless steps that have started.
    begun: Output,
    /// The node that runs a loop of matrix products without end.
    endless: NodeId,
    /// The placeholder of a matrix.
    factor: Output,
    /// The sum of all elements of the product of the factor with itself.
    product: Output,
}

impl TestGraph {
    /// Builds a graph whose loop and matrix product are on `device`.
    fn on(device: &str) -> Fallible<TestGraph> {
        let root = Scope::new();
        let (host, scope) = (root.device("/device:CPU:0"), root.device(&format!("/device:{device}")));
        let counter = host.var_handle("begun", DType::Int64, graph::PartialShape::scalar());
        let initialize = host.assign_variable(counter, host.constant(0i64));
        let begins = host.assign_add_variable(counter, host.constant(1i64));
        let ones =
            |scope: &Scope, size: i32| scope.fill(scope.constant_vector(&[size; 2]), scope.constant(1.0f32));
        let first = ones(&scope.control(&[begins]), 256);
        let turns = scope.control(&[begins]).constant(0i32);
        let looped = scope.while_loop(
            &[turns, first],
            |scope, v| scope.less(v[0], scope.constant(i32::MAX)),
            |scope, v| {
                let halved = scope.mul(v[1], scope.constant(1.0f32 / 256.0));
                vec![scope.add(v[0], scope.constant(1i32)), scope.matmul(halved, v[1])]
            },
            &Default::default(),
        );
        let factor = scope.placeholder("factor", DType::Float, [64usize, 64]);
        Ok(TestGraph {
            factor,
            initialize,
            begun: host.read_variable(counter, DType::Int64),
            endless: looped.get(1).ok_or("no loop")?.node,
            product: scope.sum(scope.matmul(factor, factor), &[0, 1], false),
            graph: root.finish()?,
        })
    }

    /// Checks that a step returns the correct product.
    fn computes(&self, session: &Session) -> Fallible {
        let ones = Tensor::full(1.0f32, graph::Shape::new(&[64, 64])?)?;
        let step = session.step().feed(self.factor, ones).fetch(self.product);
        let product = step.timeout(DEADLINE).run()?.values.remove(0);
        assert_eq!(product.item::<f32>()?, 64.0 * 64.0 * 64.0);
        Ok(())
    }

    /// Runs the endless step on another thread, calls `end` once the step has started, and returns the step's
    /// error.
    fn cut_short(
        &self,
        session: &Session,
        timeout: Duration,
        end: impl FnOnce() -> Fallible,
    ) -> Fallible<client::Error> {
        session.run(&[], &[], &[self.initialize])?;
        thread::scope(|scope| {
            let step = scope.spawn(|| session.step().target(self.endless).timeout(timeout).run());
            let deadline = Instant::now() + DEADLINE;
            while session.run(&[], &[self.begun], &[])?[0].item::<i64>()? == 0 {
                if step.is_finished() || Instant::now() > deadline {
                    return Err("the step has not begun".into());
                }
                thread::park_timeout(Duration::from_millis(2));
            }
            end()?;
            let ended = step.join().map_err(|_| "the step's thread panicked")?;
            ended.err().ok_or_else(|| "the endless step has ended".into())
        })
    }
}

#[test]
fn running_step_ends_at_its_deadline_and_the_next_runs() -> Fallible {
    let work = TestGraph::on(device()?)?;
    let session = Session::local_with(work.graph.clone(), ServerConfig::default(), options())?;
    let error = work.cut_short(&session, Duration::from_secs(2), || Ok(()))?;
    assert_eq!(error.code(), Code::DeadlineExceeded, "{error}");
    work.computes(&session)
}

#[test]
fn running_step_ends_with_its_session_and_another_session_runs() -> Fallible {
    let work = TestGraph::on(device()?)?;
    let server = Arc::new(Server::new(ServerConfig::default())?);
    let session = Session::on_server(&server, work.graph.clone(), options())?;
    let error = work.cut_short(&session, DEADLINE, || Ok(session.close()?))?;
    assert_eq!(error.code(), Code::Cancelled, "{error}");
    work.computes(&Session::on_server(&server, work.graph.clone(), options())?)
}

#[test]
fn worker_killed_during_a_step_works_after_restart() -> Fallible {
    let work = TestGraph::on(device()?)?;
    let mut cluster = Cluster::start_with(&[("worker", 1)], &["--gpus", "all"])?;
    let target = cluster.target("worker", 0);
    let session = Session::connect(&target, work.graph.clone(), options())?;
    let error = work.cut_short(&session, DEADLINE, || cluster.kill("worker", 0))?;
    assert_eq!(error.code(), Code::Unavailable, "{error}");
    cluster.spawn("worker", 0)?;
    cluster.wait_until_listening("worker", 0)?;
    work.computes(&Session::connect(&target, work.graph.clone(), options())?)
}

/// Runs gradient descent on the sum of squares of the product of a constant and a variable. Returns the device of the
/// product, and the variable's value after some steps.
fn descend(
    variable_on: &str,
    product_on: &str,
    open: impl FnOnce(Graph) -> Fallible<Session>,
) -> Fallible<(String, Tensor)> {
    let root = Scope::new();
    let (ps, worker) = (root.device(variable_on), root.device(product_on));
    let w = ps.var_handle("w", DType::Float, [3usize, 2]);
    let first =
        ps.assign_variable(w, ps.constant(Tensor::try_from([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]])?));
    let value = ps.read_variable(w, DType::Float);
    let x = worker.constant(Tensor::try_from([[0.5f32, -1.0, 2.0], [1.5, 0.25, -0.75]])?);
    let product = worker.op("MatMul").name("product").input(x).input(value).output();
    let loss = worker.sum(worker.square(product), &[0, 1], false);
    let gradient =
        worker.gradients(&[loss], &[value], &[])?.first().copied().flatten().ok_or("no gradient")?;
    let step = ps.resource_apply_gradient_descent(w, ps.constant(0.01f32), gradient);
    let session = open(root.finish()?)?;
    session.run(&[], &[], &[first])?;
    let record = pb::RunOptions { output_partition_graphs: true, ..Default::default() };
    let done = session.step().target(step).options(record).timeout(DEADLINE).run()?;
    let graphs = done.metadata.map(|metadata| metadata.partition_graphs).unwrap_or_default();
    let placed = graphs.iter().flat_map(|graph| &graph.node).find(|node| node.name == "product");
    let placed = placed.map(|node| node.device.clone()).ok_or("no product")?;
    for _ in 0..20 {
        session.run(&[], &[], &[step])?;
    }
    Ok((placed, session.run(&[], &[value], &[])?.remove(0)))
}

#[test]
fn worker_trains_variables_of_a_cpu_parameter_server() -> Fallible {
    let device = device()?;
    let mut cluster = Cluster::reserve(&[("ps", 1), ("worker", 1)])?;
    for (job, gpus) in [("ps", "none"), ("worker", "all")] {
        cluster.set_flags(&["--gpus", gpus]);
        cluster.spawn(job, 0)?;
        cluster.wait_until_listening(job, 0)?;
    }
    let target = cluster.target("worker", 0);
    let on = format!("/job:worker/task:0/device:{device}");
    let (placed, trained) =
        descend("/job:ps/task:0", &on, |graph| Ok(Session::connect(&target, graph, options())?))?;
    assert_eq!(placed, format!("/job:worker/replica:0/task:0/device:{device}"));
    let (_, alone) = descend("/device:CPU:0", "/device:CPU:0", |graph| Ok(Session::local(graph)?))?;
    for (found, wanted) in trained.values::<f32>()?.iter().zip(alone.values::<f32>()?) {
        assert!((found - wanted).abs() < 1e-3, "{found} is not {wanted}");
    }
    Ok(())
}

/// In each step a variable's value is sent to another task's device, and a changed value is sent back. With GPUs, each
/// process maps the memory of the other process.
#[test]
fn large_tensor_is_copied_between_gpus_of_two_processes_and_back() -> Fallible {
    const ROWS: usize = 512;
    let device = device()?;
    let cluster = Cluster::start_with(&[("worker", 2)], &["--gpus", "all"])?;
    let root = Scope::new();
    let on = |task: u32| root.device(&format!("/job:worker/task:{task}/device:{device}"));
    let (own, other, host) = (on(0), on(1), root.device("/job:worker/task:0/device:CPU:0"));
    let w = own.var_handle("w", DType::Float, [ROWS, ROWS]);
    let numbers: Vec<f32> = (0..ROWS * ROWS).map(|i| (i % 1021) as f32).collect();
    let first =
        own.assign_variable(w, own.constant(Tensor::vector(&numbers)?.reshaped([ROWS, ROWS].try_into()?)?));
    let value = own.read_variable(w, DType::Float);
    let changed = other.add(value, other.constant(1.0f32));
    let step = own.assign_variable(w, own.neg(changed));
    let seen = host.identity(own.read_variable(w, DType::Float));
    let session = Session::connect(&cluster.target("worker", 0), root.finish()?, options())?;
    session.run(&[], &[], &[first])?;
    // The number of steps is even, because every second step restores the variable's first value.
    for _ in 0..40 {
        session.step().target(step).timeout(DEADLINE).run()?;
    }
    assert_eq!(session.run(&[], &[seen], &[])?.remove(0).values::<f32>()?, numbers);
    if device.starts_with("GPU") {
        for (from, to) in [(0, 1), (1, 0)] {
            let log = cluster.log("worker", from)?;
            let goes = format!("/job:worker/replica:0/task:{to}/device:GPU:0 at");
            let line = log.lines().find(|line| line.contains(&goes) && line.contains("directly"));
            assert!(
                line.is_some(),
                "task {from} says nothing of tensors that go to task {to} directly: {log}"
            );
        }
    }
    Ok(())
}
