//! `anabranch graph FILE`: prints a GraphDef as text or in Graphviz's format, unchanged or as a cluster would
//! run it.

use crate::command::output;
use clap::{Args, ValueEnum};
use graph::passes::lower;
use graph::{DeviceName, DeviceSpec, Graph, TaskName};
use placer::{DeviceSet, Names, PartitionOptions, PlaceRequest, Placement, Split, partition, place};
use prost::Message;
use proto::convert::{Budget, graph_from_proto};
use proto::pb;
use std::error::Error;
use std::io::{self, Read};
use std::path::PathBuf;
use worker::KernelTables;

/// The maximum number of tasks of a job; a larger number is probably a typing error.
const MAX_TASKS: u32 = 100_000;
const MAX_GPUS: u32 = 64;

#[derive(Debug, Args)]
pub(crate) struct GraphFlags {
    /// A serialised GraphDef, or a graph in textual form (`.txt`); `-` is standard input
    file: PathBuf,

    /// Place the graph on this cluster and split it by task: `ps=2;worker=4` has one CPU device for each task, and in
    /// `ps=2;worker=4:2` each worker also has two GPUs. The devices of this machine are not used
    #[arg(long)]
    cluster: Option<String>,

    /// The task of the session's master (`/job:worker/task:0`), on which unconstrained nodes are placed. By default
    /// such nodes are on the first device by name
    #[arg(long, requires = "cluster")]
    master: Option<String>,

    /// The output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Place nodes that request a missing device elsewhere instead of failing
    #[arg(long, requires = "cluster")]
    soft_placement: bool,

    /// Before the graph, print the device of each node and the placement rule that decided it
    #[arg(long, requires = "cluster")]
    explain: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Dot,
}

type Fallible<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

pub(crate) fn run(flags: &GraphFlags) -> Fallible {
    let graph = read(flags)?;
    let text = match &flags.cluster {
        None => printed(&graph, flags.format),
        Some(cluster) => placed(&graph, cluster, flags)?,
    };
    Ok(output::print(&text)?)
}

fn read(flags: &GraphFlags) -> Fallible<Graph> {
    let name = flags.file.display();
    let bytes = if flags.file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        io::stdin().read_to_end(&mut bytes)?;
        bytes
    } else {
        std::fs::read(&flags.file).map_err(|e| format!("{name}: {e}"))?
    };
    if flags.file.extension().is_some_and(|e| e == "txt") {
        let text = String::from_utf8(bytes).map_err(|e| format!("{name}: {e}"))?;
        return Ok(Graph::from_text(&text).map_err(|e| format!("{name}: {e}"))?);
    }
    let def = pb::GraphDef::decode(bytes.as_slice()).map_err(|e| format!("{name} is no GraphDef: {e}"))?;
    Ok(graph_from_proto(def, &mut Budget::default()).map_err(|e| format!("{name}: {e}"))?)
}

/// Lowers function calls, places the graph on a cluster, and returns the partition of each task as text.
fn placed(graph: &Graph, cluster: &str, flags: &GraphFlags) -> Fallible<String> {
    let graph = &lower(graph)?;
    let devices = devices(cluster)?;
    let devices = match &flags.master {
        None => devices,
        Some(master) => {
            let task = task(master)?;
            if !devices.tasks().contains(&task) {
                return Err(format!("--master: the cluster has no task {task}").into());
            }
            devices.with_local(task)
        }
    };
    let request = PlaceRequest {
        devices: &devices,
        kernels: &KernelTables,
        allow_soft_placement: flags.soft_placement,
        assigned: &[],
    };
    let placement = place(graph, &request)?;
    for warning in &placement.warnings {
        eprintln!("anabranch: {warning}");
    }
    let options = PartitionOptions { devices: &devices, split: Split::Task, names: &Names::master() };
    let mut text = if flags.explain { explained(graph, &placement, flags.format) } else { String::new() };
    for part in partition(graph, placement.indices(), &options)? {
        let title = format!("{}: {} of {} nodes", part.task, part.graph.len(), graph.len());
        text += &comment(&title, flags.format);
        text += &printed(&part.graph, flags.format);
    }
    Ok(text)
}

/// Returns the devices of a cluster: one CPU device for each task, and the GPUs that its job lists.
fn devices(cluster: &str) -> Fallible<DeviceSet> {
    let mut devices = Vec::new();
    for job in cluster.split(';').filter(|j| !j.is_empty()) {
        let wrong = |why: &str| format!("--cluster: '{job}' is not job=tasks or job=tasks:gpus{why}");
        let number = |text: &str| text.trim().parse::<u32>().map_err(|e| wrong(&format!(": {e}")));
        let (name, numbers) = job.split_once('=').ok_or_else(|| wrong(""))?;
        let (tasks, gpus) = numbers.split_once(':').unwrap_or((numbers, "0"));
        let (tasks, gpus) = (number(tasks)?, number(gpus)?);
        if tasks > MAX_TASKS || gpus > MAX_GPUS {
            return Err(format!(
                "--cluster: '{job}' has more than {MAX_TASKS} tasks, or than {MAX_GPUS} GPUs a task"
            )
            .into());
        }
        for task in 0..tasks {
            let task = TaskName::new(name.trim(), task);
            let all = [("CPU", 0)].into_iter().chain((0..gpus).map(|id| ("GPU", id)));
            for (device_type, id) in all {
                devices.push((DeviceName::new(&task, device_type, id), devices.len() as u64 + 1));
            }
        }
    }
    if devices.is_empty() {
        return Err("--cluster: it has no tasks".into());
    }
    Ok(DeviceSet::new(devices))
}

fn task(text: &str) -> Fallible<TaskName> {
    let spec = DeviceSpec::parse(text).map_err(|e| format!("--master: {e}"))?;
    match (spec.job, spec.task) {
        (Some(job), task) => Ok(TaskName::new(&job, task.unwrap_or(0))),
        _ => Err(format!("--master: '{text}' is no task: expected /job:worker/task:0").into()),
    }
}

fn explained(graph: &Graph, placement: &Placement, format: Format) -> String {
    placement.log(graph).map(|line| comment(&line, format)).collect()
}

fn comment(line: &str, format: Format) -> String {
    match format {
        Format::Text => format!("# {line}\n"),
        Format::Dot => format!("// {line}\n"),
    }
}

fn printed(graph: &Graph, format: Format) -> String {
    match format {
        Format::Text => graph.to_text(),
        Format::Dot => graph.to_dot(),
    }
}
