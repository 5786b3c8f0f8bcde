//! `anabranch graph FILE`: shows a GraphDef as text or as a picture, as it is or as a cluster would run it.

use clap::{Args, ValueEnum};
use graph::{DeviceName, Graph, TaskName};
use placer::{DeviceSet, Names, PartitionOptions, PlaceRequest, Split, partition, place};
use prost::Message;
use proto::convert::{Budget, graph_from_proto};
use proto::pb;
use std::error::Error;
use std::io::Read;
use std::path::PathBuf;
use worker::KernelTables;

#[derive(Debug, Args)]
pub(crate) struct GraphFlags {
    /// A serialised GraphDef, or a graph in textual form (`.txt`); `-` is standard input
    file: PathBuf,

    /// Place the graph on this cluster (`ps=2;worker=4`: one CPU device a task) and split it by task
    #[arg(long)]
    cluster: Option<String>,

    /// How to print it
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,

    /// Nodes that ask for a device that is not there go elsewhere instead of failing
    #[arg(long)]
    soft_placement: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    Dot,
}

pub(crate) fn run(flags: &GraphFlags) -> Result<(), Box<dyn Error + Send + Sync>> {
    let graph = read(flags)?;
    match &flags.cluster {
        None => print(&graph, flags.format),
        Some(cluster) => {
            for (task, part) in split(&graph, cluster, flags.soft_placement)? {
                let title = format!("{task}: {} of {} nodes", part.len(), graph.len());
                print_titled(&title, &part, flags.format);
            }
        }
    }
    Ok(())
}

fn read(flags: &GraphFlags) -> Result<Graph, Box<dyn Error + Send + Sync>> {
    let name = flags.file.display();
    let bytes = if flags.file.as_os_str() == "-" {
        let mut bytes = Vec::new();
        std::io::stdin().read_to_end(&mut bytes)?;
        bytes
    } else {
        std::fs::read(&flags.file).map_err(|e| format!("{name}: {e}"))?
    };
    if flags.file.extension().is_some_and(|e| e == "txt") {
        return Ok(Graph::from_text(&String::from_utf8(bytes)?).map_err(|e| format!("{name}: {e}"))?);
    }
    let def = pb::GraphDef::decode(bytes.as_slice()).map_err(|e| format!("{name} is no GraphDef: {e}"))?;
    Ok(graph_from_proto(def, &mut Budget::default())?)
}

/// The graph placed over one CPU a task, and split.
fn split(
    graph: &Graph,
    cluster: &str,
    soft: bool,
) -> Result<Vec<(TaskName, Graph)>, Box<dyn Error + Send + Sync>> {
    let mut devices = Vec::new();
    for job in cluster.split(';').filter(|j| !j.is_empty()) {
        let (name, count) = job.split_once('=').ok_or_else(|| format!("'{job}' is not job=number"))?;
        let count: u32 = count.trim().parse().map_err(|e| format!("'{job}' is not job=number: {e}"))?;
        for task in 0..count {
            devices.push((DeviceName::new(&TaskName::new(name.trim(), task), "CPU", 0), u64::from(task) + 1));
        }
    }
    let devices = DeviceSet::new(devices);
    let request =
        PlaceRequest { devices: &devices, kernels: &KernelTables, allow_soft_placement: soft, assigned: &[] };
    let placement = place(graph, &request)?;
    let options = PartitionOptions { devices: &devices, split: Split::Task, names: &Names::master() };
    let parts = partition(graph, placement.indices(), &options)?;
    Ok(parts.into_iter().map(|part| (part.task, part.graph)).collect())
}

#[allow(clippy::print_stdout)]
fn print_titled(title: &str, graph: &Graph, format: Format) {
    match format {
        Format::Text => println!("# {title}"),
        Format::Dot => println!("// {title}"),
    }
    print(graph, format);
}

#[allow(clippy::print_stdout)]
fn print(graph: &Graph, format: Format) {
    match format {
        Format::Text => print!("{}", graph.to_text()),
        Format::Dot => print!("{}", graph.to_dot()),
    }
}
