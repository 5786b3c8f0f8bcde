//! A client of a cluster: `cargo run --example cluster -- grpc://localhost:2223`, where a task of a cluster with
//! jobs `ps` and `worker` listens (README.md says how to start one). Without an address it starts such a cluster
//! in this process, one server a task, each behind a port of its own.
#![allow(clippy::print_stdout)]

use anabranch::client::{Server, ServerConfig, Session, SessionOptions};
use anabranch::graph::{DType, Output, Scope, TaskName};
use anabranch::proto::{Cluster, pb};
use anabranch::train::{Initializer, Optimizer, Strategy, Variables};
use std::error::Error;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::watch;

fn main() -> Result<(), Box<dyn Error>> {
    match std::env::args().nth(1) {
        Some(target) => train(&target),
        None => {
            let cluster = InProcess::start(&[("ps", 1), ("worker", 1)])?;
            train(&cluster.target)?;
            cluster.stop()
        }
    }
}

/// Pulls a variable on the parameter server to 3 from the worker, and shows which device ran what.
fn train(target: &str) -> Result<(), Box<dyn Error>> {
    let root = Scope::new();
    let strategy = Strategy::ParameterServer { ps_tasks: 1, worker: 0, placement: Default::default() };
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let model = |scope: &Scope, variables: &Variables, _: &[Output]| {
        let w = variables.get("w", DType::Float, &[], &Initializer::Zeros);
        scope.square(scope.sub(w.value, scope.constant(3.0f32)))
    };
    let training = strategy.minimize(&scope, &variables, &Optimizer::gradient_descent(0.1), &[], model)?;

    let session = Session::connect(target, root.finish()?, SessionOptions::default())?;
    for device in session.list_devices()? {
        println!("{}", device.name);
    }
    session.run(&[], &[], &[training.initialize])?;
    for _ in 0..50 {
        session.run(&[], &[], &[training.train])?;
    }
    let w = variables.find("w").ok_or("no variable")?.value;
    let options = pb::RunOptions { output_partition_graphs: true, ..Default::default() };
    let asked = session.step().fetch(w).target(training.train).options(options).run()?;
    println!("w = {:.4}", asked.values[0].item::<f32>()?);
    for part in asked.metadata.unwrap_or_default().partition_graphs {
        let device = part.node.first().map_or("", |node| &node.device);
        let ops: Vec<&str> = part.node.iter().map(|node| &*node.op).collect();
        println!("{device}: {}", ops.join(" "));
    }
    session.close()?;
    Ok(())
}

/// A cluster whose tasks are servers of this process.
struct InProcess {
    runtime: Runtime,
    serving: Vec<tokio::task::JoinHandle<Result<(), anabranch::proto::Status>>>,
    stop: watch::Sender<bool>,
    /// The last task's master.
    target: String,
}

impl InProcess {
    fn start(jobs: &[(&str, u32)]) -> Result<InProcess, Box<dyn Error>> {
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
        let mut target = String::new();
        let mut serving = Vec::new();
        for (task, listener) in listeners {
            target = format!("grpc://{}", listener.local_addr()?);
            let config = ServerConfig { task, cluster: cluster.clone(), ..ServerConfig::default() };
            let mut stopped = stopped.clone();
            serving.push(runtime.spawn(async move {
                let server = Server::in_runtime(config)?;
                // The sender going away means the same.
                let stop = async move { drop(stopped.wait_for(|stop| *stop).await) };
                let served = server.serve(listener, stop, Duration::from_secs(5)).await;
                served.map_err(|e| {
                    anabranch::proto::Status::new(anabranch::graph::Code::Internal, e.to_string())
                })
            }));
        }
        Ok(InProcess { runtime, serving, stop, target })
    }

    fn stop(self) -> Result<(), Box<dyn Error>> {
        self.stop.send(true)?;
        for task in self.serving {
            self.runtime.block_on(task)??;
        }
        Ok(())
    }
}
