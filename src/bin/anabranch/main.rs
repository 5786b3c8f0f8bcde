//! The command `anabranch`.
#![forbid(unsafe_code)]

mod ckpt_command;
mod demo;
mod doctor_command;
mod graph_command;
mod ops_command;
mod output;
mod run_command;

use anabranch::serve::{self, ServeFlags};
use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A distributed dataflow-graph runtime
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Inspect checkpoints, compare them, or convert them to other formats
    Ckpt(ckpt_command::CkptFlags),
    /// Train a model on one or several devices, in one of many modes, and show where every node ran
    Demo(demo::DemoFlags),
    /// Print the NVIDIA libraries and GPUs of this machine, and their problems
    Doctor,
    /// Print a GraphDef: as text, placed and partitioned for a cluster, or as Graphviz dot
    Graph(graph_command::GraphFlags),
    /// Print the ops that run here, or TensorFlow's ops that do not
    Ops(ops_command::OpsFlags),
    /// Run a program that starts TensorFlow's servers itself, with our servers in their place
    Run(run_command::RunFlags),
    /// Run a task of a cluster, like anabranch-worker
    Worker(Box<ServeFlags>),
}

fn main() -> ExitCode {
    let result: Result<ExitCode, Box<dyn Error + Send + Sync>> = match Flags::parse().command {
        Command::Ckpt(flags) => {
            ckpt_command::run(&flags).map(|same| if same { ExitCode::SUCCESS } else { ExitCode::FAILURE })
        }
        Command::Demo(flags) => demo::run(&flags).map(|()| ExitCode::SUCCESS),
        Command::Doctor => doctor_command::run().map(|()| ExitCode::SUCCESS).map_err(Into::into),
        Command::Graph(flags) => graph_command::run(&flags).map(|()| ExitCode::SUCCESS),
        Command::Ops(flags) => ops_command::run(&flags).map(|()| ExitCode::SUCCESS).map_err(Into::into),
        Command::Run(flags) => run_command::run(&flags),
        Command::Worker(flags) => {
            serve::log_to_stderr();
            return serve::exit_code(serve::run(&flags, None));
        }
    };
    match result {
        Ok(code) => code,
        Err(error) => {
            eprintln!("anabranch: {error}");
            ExitCode::FAILURE
        }
    }
}
