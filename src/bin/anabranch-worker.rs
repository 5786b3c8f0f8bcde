//! The program `anabranch-worker`; its code is in the library, which is compiled once for all programs.
#![forbid(unsafe_code)]

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    anabranch::command::worker()
}
