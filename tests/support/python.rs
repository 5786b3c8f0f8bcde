//! A Python environment with TensorFlow, which tests use as the reference for results and as the client of a
//! cluster.

pub use super::environment::{run, standard_output as finish};

use super::{Fallible, environment};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The PyPI package of the TensorFlow release with which behaviour is compared.
const TENSORFLOW: &str = "tensorflow-cpu==2.21.*";

/// Returns the interpreter of a virtual environment below `target/` that has TensorFlow.
pub fn interpreter() -> Fallible<PathBuf> {
    environment::ensure_environment("tensorflow", &[TENSORFLOW])
}

/// Returns the command that runs a script of this repository, given by its path from the root.
pub fn script(path: &str) -> Fallible<Command> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let mut command = Command::new(interpreter()?);
    command
        .arg(path)
        .stdin(Stdio::null())
        .env("TF_CPP_MIN_LOG_LEVEL", "3")
        .env("TF_ENABLE_ONEDNN_OPTS", "0")
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// Starts a process whose output [`finish`] collects.
pub fn start(command: &mut Command) -> Fallible<Child> {
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}
