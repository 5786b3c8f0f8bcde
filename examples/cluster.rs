//! A client of a cluster: `cargo run --example cluster -- grpc://localhost:2223`, with the address of a task
//! of a cluster with jobs `ps` and `worker` (README.md explains how to start one). Without an address the
//! example starts such a cluster in this process, with one server and one port for each task.
#![allow(clippy::print_stdout)]

mod support;

use anabranch::client::{Session, SessionOptions};
use anabranch::graph::{DType, Output, Scope};
use anabranch::proto::pb;
use anabranch::train::{Initializer, Optimizer, Strategy, Variables};

fn main() -> support::Fallible {
    match std::env::args().nth(1) {
        Some(target) => train(&target),
        None => {
            let cluster = support::InProcessCluster::start(&[("ps", 1), ("worker", 1)])?;
            train(&cluster.targets("worker")[0])?;
            cluster.stop()
        }
    }
}

/// Trains a variable on the parameter server towards the value 3, with the gradients computed on the worker,
/// and prints the ops that each device ran.
fn train(target: &str) -> support::Fallible {
    let root = Scope::new();
    let strategy = Strategy::ParameterServer {
        ps_tasks: 1,
        worker: 0,
        placement: Default::default(),
        sync: Default::default(),
    };
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
