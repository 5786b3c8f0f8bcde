//! Where the placer puts each node of a small graph, and which rule decided: `cargo run --example placement`.
//!
//! Nothing runs here: a placement is a value, made from a graph and a set of devices.
#![allow(clippy::print_stdout)]

use anabranch::graph::{DType, DeviceName, PartialShape, Scope, TaskName};
use anabranch::placer::{DeviceSet, Names, PartitionOptions, PlaceRequest, Split, partition, place};
use anabranch::worker::KernelTables;
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let scope = Scope::new();

    // A device that is asked for, wholly or in part: the parts left open are the placer's.
    let ps = scope.device("/job:ps/task:1");
    let shape = PartialShape::from([4usize]);
    let w = ps.op("VarHandleOp").name("w").attr("dtype", DType::Float).attr("shape", shape).output();

    // Who holds a variable's handle is where the variable is, whatever is asked for.
    let value = scope.op("ReadVariableOp").name("value").input(w).attr("dtype", DType::Float).output();

    // Tied to another node by name: wherever that goes.
    scope.colocate_with(value.node).op("Neg").name("beside").input(value).node();

    // A shape alone is no reason to move a tensor; a constant goes where it is used.
    let worker = scope.device("/job:worker/task:0");
    let square = worker.op("Square").name("square").input(value).output();
    scope.op("Shape").name("shape").input(square).node();
    let two = scope.constant(2.0f32);
    worker.op("Mul").name("twice").input(square).input(two).node();

    // Soft placement: no task has such a device, so another one does.
    scope.device("/job:worker/task:0/device:GPU:0").op("Exp").name("soft").input(value).node();

    // Nothing is asked for: the session's own task, which is that of its master.
    scope.op("Sqrt").name("anywhere").input(value).node();
    let graph = scope.finish()?;

    // The cluster as the master of /job:worker/task:1 sees it, with one CPU a task.
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

    // What crosses from one task to another becomes a pair of Send and Recv, once for each task.
    let options = PartitionOptions { devices: &devices, split: Split::Task, names: &Names::master() };
    for part in partition(&graph, placement.indices(), &options)? {
        println!("\n# {}\n{}", part.task, part.graph.to_text());
    }
    Ok(())
}
