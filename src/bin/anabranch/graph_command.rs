//! `anabranch graph FILE`: shows a GraphDef as text or as a picture, as it is or as a cluster would run it.

use clap::{Args, ValueEnum};
use graph::{Graph, TaskName};
use placer::{DeviceSet, PartitionBy, PlaceRequest, partition, place};
use prost::Message;
use proto::{Cluster, convert, pb};
use std::error::Error;
use std::path::PathBuf;

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
