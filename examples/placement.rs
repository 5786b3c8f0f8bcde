//! Prints the device that the placer assigns to each node of a small graph, and the placement rule that
//! decided it: `cargo run --example placement`.
//!
//! No step is run: a placement is a value computed from a graph and a set of devices.
#![allow(clippy::print_stdout)]

use anabranch::graph::{DType, DeviceName, PartialShape, Scope, TaskName};
use anabranch::placer::{DeviceSet, Names, PartitionOptions, PlaceRequest, Split, partition, place};
use anabranch::worker::KernelTables;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let scope = Scope::new();

    // A device specification may be partial; the placer chooses the missing fields.
    let ps = scope.device("/job:ps/task:1");
    let shape = PartialShape::from([4usize]);
    let w = ps.op("VarHandleOp").name("w").attr("dtype", DType::Float).attr("shape", shape).output();

    // A node that reads a variable's handle is placed with the variable, whatever device it requests.
    let value = scope.op("ReadVariableOp").name("value").input(w).attr("dtype", DType::Float).output();

    // A node that is colocated with another node is placed on that node's device.
    scope.colocate_with(value.node).op("Neg").name("beside").input(value).node();

    // An op that only reads a shape is placed with its input, and a constant with its consumer.
    let worker = scope.device("/job:worker/task:0");
    let square = worker.op("Square").name("square").input(value).output();
    scope.op("Shape").name("shape").input(square).node();
    let two = scope.constant(2.0f32);
    worker.op("Mul").name("twice").input(square).input(two).node();

    // Soft placement chooses another device, because no task has a GPU.
    scope.device("/job:worker/task:0/device:GPU:0").op("Exp").name("soft").input(value).node();

    // A node without constraints is placed on the session's own task, which is the master's task.
    scope.op("Sqrt").name("anywhere").input(value).node();
    let graph = scope.finish()?;

    // The devices of the cluster, one CPU for each task. The master's own task is /job:worker/task:1.
    let tasks = [("ps", 0), ("ps", 1), ("worker", 0), ("worker", 1)];
    let device = |(job, index): (&str, u32)| DeviceName::new(&TaskName::new(job, index), "CPU", 0);
    let devices = DeviceSet::new(tasks.into_iter().map(device).zip(1..));
    let devices = devices.with_local(TaskName::new("worker", 1));
    let request =
        PlaceRequest { devices: &devices, kernels: &KernelTables, allow_soft_placement: true, assigned: &[] };
    let placement = place(&graph, &request)?;
    for line in placement.log(&graph) {
        println!("{line}");
    }

    // A tensor that is sent to other tasks gets one pair of Send and Recv nodes for each receiving task.
    let options = PartitionOptions { devices: &devices, split: Split::Task, names: &Names::master() };
    for part in partition(&graph, placement.indices(), &options)? {
        println!("\n# {}\n{}", part.task, part.graph.to_text());
    }
    Ok(())
}
