//! `anabranch ops`: lists the ops that run here, and TensorFlow's ops that do not.

use crate::command::output;
use clap::Args;
use graph::ops;
use std::collections::BTreeMap;
use std::io;

/// The ops that TensorFlow's own servers run on a CPU, listed by `tests/tensorflow/public_ops.py` from its
/// registry.
const TENSORFLOW: &str = include_str!("tensorflow.txt");

#[derive(Debug, Args)]
pub(crate) struct OpsFlags {
    /// Only ops whose names contain this text
    #[arg(default_value = "")]
    part: String,

    /// Print the ops that TensorFlow 2.21's servers run on a CPU and these servers do not
    #[arg(long)]
    missing: bool,
}

pub(crate) fn run(flags: &OpsFlags) -> io::Result<()> {
    let here: BTreeMap<&str, Vec<&str>> = ops::all()
        .iter()
        .map(|op| {
            let tables = worker::kernel_tables().into_iter().filter(|table| table.has_op(op));
            (op.name(), tables.map(|table| table.device_type).collect::<Vec<&str>>())
        })
        .filter(|(_, devices)| !devices.is_empty())
        .collect();
    let is_wanted = |name: &str| name.contains(&flags.part);
    let text: String = if flags.missing {
        let missing = TENSORFLOW.lines().filter(|name| is_wanted(name) && !here.contains_key(name));
        missing.map(|name| format!("{name}\n")).collect()
    } else {
        let here = here.iter().filter(|(name, _)| is_wanted(name));
        here.map(|(name, devices)| format!("{name}\t{}\n", devices.join(","))).collect()
    };
    output::print(&text)
}
