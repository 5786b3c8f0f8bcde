//! The program of a task of a cluster, which serves WorkerService and MasterService on one port, like
//! TensorFlow's server.

use anabranch::serve::{self, ServeFlags};
use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A worker of a cluster, with a master on the same port. Its task is given by flags or by TF_CONFIG
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    #[command(flatten)]
    serve: ServeFlags,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    serve::log_to_stderr();
    serve::exit_code(serve::run(&flags.serve, None))
}
