//! Where the placer puts each node of a small training graph, and why: `cargo run --example placement`.
//!
//! Nothing runs here: a placement is a value, made from a graph and a set of devices.
#![allow(clippy::print_stdout)]

use anabranch::graph::{DType, DeviceName, Output, PartialShape, Scope, TaskName};
use anabranch::placer::{DeviceSet, Names, PartitionOptions, PlaceRequest, Split, partition, place};
use anabranch::train::{Initializer, Optimizer, Strategy, VariablePlacement, Variables};
use anabranch::worker::KernelTables;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    // The strategy asks for devices while the graph is built: variables on parameter servers, the rest on the worker.
    let root = Scope::new();
    let strategy =
        Strategy::ParameterServer { ps_tasks: 2, worker: 0, placement: VariablePlacement::GreedyByBytes };
    let (scope, for_variables) = strategy.scopes(&root);
    let variables = Variables::new(&for_variables);
    let x = scope.placeholder("x", DType::Float, PartialShape::from([None, Some(4)]));
    let model = |scope: &Scope, variables: &Variables, batch: &[Output]| {
        let w = variables.get("w", DType::Float, &[4, 2], &Initializer::GlorotUniform { seed: 1 });
        let b = variables.get("b", DType::Float, &[2], &Initializer::Zeros);
        let scores = scope.bias_add(scope.matmul(batch[0], w.value), b.value);
        scope.mean(scope.square(scores), &[0, 1], false)
    };
    strategy.minimize(&scope, &variables, &Optimizer::momentum(0.1, 0.9), &[x], model)?;
    // A node for which nobody asks anything goes to the session's own task.
    root.op("Sqrt").name("unconstrained").input(root.constant(2.0f32)).node();
    let graph = root.finish()?;

    // The cluster as the master of /job:worker/task:1 sees it.
    let tasks = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)];
    let device = |(job, index): (&str, u32)| DeviceName::new(&TaskName::new(job, index), "CPU", 0);
    let devices = DeviceSet::new(tasks.into_iter().map(device).zip(1..));
    let devices = devices.with_local(TaskName::new("worker", 1));
    let request = PlaceRequest {
        devices: &devices,
        kernels: &KernelTables,
        allow_soft_placement: false,
        assigned: &[],
    };
    let placement = place(&graph, &request)?;
    for line in placement.log(&graph) {
        println!("{line}");
    }

    // What crosses from one task to another becomes a pair of Send and Recv.
    let options = PartitionOptions { devices: &devices, split: Split::Task, names: &Names::master() };
    println!();
    for part in partition(&graph, placement.indices(), &options)? {
        let sent = part.graph.nodes().filter(|(_, node)| node.op.name() == "_Send").count();
        println!("{}: {} nodes, of which {sent} send", part.task, part.graph.len());
    }
    Ok(())
}
