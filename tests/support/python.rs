//! A Python with TensorFlow: the peer that everything is compared with, and the client that users bring.

pub use super::environment::run;

use super::{Fallible, environment};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The release that behaviour is compared with.
const TENSORFLOW: &str = "tensorflow-cpu==2.21.*";

/// The interpreter of a virtual environment below `target/` that has TensorFlow.
pub fn interpreter() -> Fallible<PathBuf> {
    environment::made("tensorflow", &[TENSORFLOW])
}

/// A script of this repository, by its path from the root, ready to run with arguments.
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

/// Starts a process whose output will be collected.
pub fn start(command: &mut Command) -> Fallible<Child> {
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}

/// Waits for a process; what it printed is in the error if it ended badly.
pub fn finish(child: Child) -> Fallible<String> {
    let output = child.wait_with_output()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    Err(format!("ended with {}\n{stdout}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into())
}
