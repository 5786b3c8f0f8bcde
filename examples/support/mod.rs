//! Code that the examples of training strategies share: a model, and a cluster whose tasks are servers in this process.
#![allow(dead_code)]

use anabranch::client::{Server, ServerConfig};
use anabranch::graph::{DType, Output, Scope, TaskName};
use anabranch::proto::{Cluster, Status};
use anabranch::train::{
    Dataset, Hook, Initializer, Input, Master, MonitoredConfig, MonitoredSession, Optimizer, Role, Strategy,
    Training, Variables, hooks,
};
use std::error::Error;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

pub(crate) type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

/// Returns the mean squared error of the line `x * w + b` at a batch of points.
pub(crate) fn line(scope: &Scope, variables: &Variables, batch: &[Output]) -> Output {
    let w = variables.get("w", DType::Float, &[], &Initializer::Zeros);
    let b = variables.get("b", DType::Float, &[], &Initializer::Zeros);
    let error = scope.sub(scope.add(scope.mul(batch[0], w.value), b.value), batch[1]);
    scope.mean(scope.square(error), &[0], false)
}

/// Returns an input pipeline of batches of 20 points. It repeats the 100 points of a line without end, each time in
/// another order.
pub(crate) fn points(scope: &Scope) -> Fallible<Input> {
    let x: Vec<f32> = (0..100).map(|i| i as f32 / 100.0).collect();
    let y: Vec<f32> = x.iter().map(|x| 0.1 * x + 0.3).collect();
    let tensors = [anabranch::graph::Tensor::vector(&x)?, anabranch::graph::Tensor::vector(&y)?];
    let points = Dataset::from_tensors(scope, &tensors).shuffle(100, 7).repeat(None);
    Ok(points.batch(20, true).prefetch(2).input("points"))
}

/// A function that adds a model and returns its loss for a batch of points.
pub(crate) type Model = fn(&Scope, &Variables, &[Output]) -> Output;

/// Fits the line with a training strategy, and returns `w` and `b`.
pub(crate) fn train(strategy: &Strategy, master: Master, is_chief: bool, steps: i64) -> Fallible<Vec<f32>> {
    train_model(line, strategy, master, is_chief, steps)
}

/// Trains a model with a training strategy, and returns its variables, which have one element each.
pub(crate) fn train_model(
    model: Model,
    strategy: &Strategy,
    master: Master,
    is_chief: bool,
    steps: i64,
) -> Fallible<Vec<f32>> {
    let root = Scope::new();
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let input = points(&scope)?;
    let optimizer = Optimizer::gradient_descent(0.2);
    let training = strategy.minimize(&scope, &variables, &optimizer, &input.next, model)?;
    let Training { train, .. } = training;
    let values: Vec<Output> = variables.trainable().iter().map(|v| v.value).collect();

    let stop = hooks::StopAtStep { last_step: steps };
    let last = hooks::FinalOps { fetches: values, ..Default::default() };
    let all: Vec<Box<dyn Hook>> = vec![input.hook(), Box::new(stop), Box::new(last.clone())];
    let config = MonitoredConfig { role: Role::fixed(is_chief), ..MonitoredConfig::default() };
    let mut session = MonitoredSession::new(master, root.finish()?, training, None, all, config)?;
    while session.run(&[], &[], &[train])?.is_some() {}
    session.finish()?;
    let values = last.values.lock().iter().map(|v| v.item::<f32>()).collect::<Result<Vec<_>, _>>();
    Ok(values?)
}

/// Trains with one thread for each worker; each thread is a client of its worker's task. Returns the result of worker
/// 0, the chief.
pub(crate) fn train_on(
    cluster: &InProcessCluster,
    strategy: impl Fn(u32) -> Strategy + Sync,
    steps: i64,
) -> Fallible<Vec<f32>> {
    train_model_on(line, cluster, strategy, steps)
}

/// Trains a model like [`train_on`].
pub(crate) fn train_model_on(
    model: Model,
    cluster: &InProcessCluster,
    strategy: impl Fn(u32) -> Strategy + Sync,
    steps: i64,
) -> Fallible<Vec<f32>> {
    let mut found = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..)
            .zip(cluster.targets("worker"))
            .map(|(worker, target)| {
                let strategy = &strategy;
                scope.spawn(move || {
                    train_model(model, &strategy(worker), Master::Remote(target), worker == 0, steps)
                })
            })
            .collect();
        let joined =
            workers.into_iter().map(|w| w.join().unwrap_or_else(|_| Err("a worker panicked".into())));
        joined.collect::<Fallible<Vec<_>>>()
    })?;
    Ok(found.swap_remove(0))
}

/// A cluster whose tasks are servers of this process, each listening on its own port.
pub(crate) struct InProcessCluster {
    runtime: Runtime,
    serving: Vec<tokio::task::JoinHandle<Result<(), Status>>>,
    stop: watch::Sender<bool>,
    cluster: Cluster,
}

impl InProcessCluster {
    pub(crate) fn start(jobs: &[(&str, u32)]) -> Fallible<InProcessCluster> {
        let runtime = Runtime::new()?;
        let mut cluster = Cluster::new();
        let mut listeners = Vec::new();
        for &(job, count) in jobs {
            for index in 0..count {
                let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0"))?;
                cluster.insert(job, index, &listener.local_addr()?.to_string())?;
                listeners.push((TaskName::new(job, index), listener));
            }
        }
        let (stop, stopped) = watch::channel(false);
        let mut serving = Vec::new();
        for (task, listener) in listeners {
            let config = ServerConfig { task, cluster: cluster.clone(), ..ServerConfig::default() };
            let mut stopped = stopped.clone();
            serving.push(runtime.spawn(async move {
                let server = Server::in_runtime(config)?;
                // `wait_for` fails only if the sender was dropped, which also stops the server.
                let stop = async move { drop(stopped.wait_for(|stop| *stop).await) };
                server.serve(listener, stop, Duration::from_secs(5)).await;
                Ok(())
            }));
        }
        Ok(InProcessCluster { runtime, serving, stop, cluster })
    }

    /// Returns the targets by which clients connect to a job's tasks.
    pub(crate) fn targets(&self, job: &str) -> Vec<String> {
        let of_job = self.cluster.tasks().filter(|(task, _)| *task.job == *job);
        of_job.map(|(_, address)| format!("grpc://{address}")).collect()
    }

    pub(crate) fn stop(self) -> Fallible {
        self.stop.send(true)?;
        for task in self.serving {
            self.runtime.block_on(task)??;
        }
        Ok(())
    }
}
