//! The program of a task that only serves as a master. Sessions on its port use the workers of the cluster;
//! its own CPU device is only used for feeds and fetches.

use anabranch::serve::{self, ServeFlags};
use clap::Parser;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A master of a cluster, which must name it as a task (of job "master" unless --job says otherwise)
#[derive(Debug, Parser)]
#[command(version)]
struct Flags {
    #[command(flatten)]
    serve: ServeFlags,
}

fn main() -> ExitCode {
    let flags = Flags::parse();
    serve::log_to_stderr();
    serve::exit_code(serve::run(&flags.serve, Some("master")))
}
