//! The programs of this package: the command `anabranch`, and the servers of a task.

mod ckpt_command;
mod demo;
mod doctor_command;
mod graph_command;
mod launch;
mod ops_command;
mod output;
mod run_command;

use crate::serve::{self, ServeFlags};
use clap::{Parser, Subcommand};
use std::error::Error;
use std::process::ExitCode;

/// A distributed dataflow-graph runtime
#[derive(Debug, Parser)]
#[command(version)]
struct CommandFlags {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Inspect checkpoints, compare them, or convert them to other formats
    Ckpt(ckpt_command::CkptFlags),
    /// Train a model on one or several devices, in one of several replication modes, and show where every node ran
    Demo(demo::DemoFlags),
    /// Print the NVIDIA libraries, GPUs and RDMA devices of this machine, and their problems
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

/// Runs the command `anabranch`.
pub fn anabranch() -> ExitCode {
    let result: Result<ExitCode, Box<dyn Error + Send + Sync>> = match CommandFlags::parse().command {
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

/// A worker of a cluster, with a master on the same port. Its task is given by flags or by TF_CONFIG
#[derive(Debug, Parser)]
#[command(name = "anabranch-worker", version)]
struct WorkerFlags {
    #[command(flatten)]
    serve: ServeFlags,
}

/// Runs `anabranch-worker`: a task of a cluster, which serves WorkerService and MasterService on one port, like TensorFlow's
/// server.
pub fn worker() -> ExitCode {
    let flags = WorkerFlags::parse();
    serve::log_to_stderr();
    serve::exit_code(serve::run(&flags.serve, None))
}

/// A master of a cluster, which must name the master as a task (of job "master" unless --job says otherwise)
#[derive(Debug, Parser)]
#[command(name = "anabranch-master", version)]
struct MasterFlags {
    #[command(flatten)]
    serve: ServeFlags,
}

/// Runs `anabranch-master`: a task that only serves as a master. Sessions on its port use the workers of the cluster; its own
/// CPU device is only used for feeds and fetches.
pub fn master() -> ExitCode {
    let flags = MasterFlags::parse();
    serve::log_to_stderr();
    serve::exit_code(serve::run(&flags.serve, Some("master")))
}
