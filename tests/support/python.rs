//! A Python environment with TensorFlow, which tests use as the reference for results and as the client of a
//! cluster.

pub use super::environment::{run, standard_output as finish};

use super::{Fallible, environment};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;

/// The PyPI package of the TensorFlow release with which behaviour is compared.
const TENSORFLOW: &str = "tensorflow-cpu==2.21.*";

/// Returns the interpreter of a virtual environment below `target/` that has TensorFlow.
pub fn interpreter() -> Fallible<PathBuf> {
    environment::ensure_environment("tensorflow", &[TENSORFLOW])
}

/// Returns the command that runs a script of this repository, given by its path from the root. The script runs in a copy
/// of a process that has imported TensorFlow.
pub fn script(path: &str) -> Fallible<Command> {
    let mut command = Command::new(interpreter()?);
    command.args(["-I", "-S"]).arg(in_repository(FORK_SERVER)).args(["run", fork_server()?]);
    set_environment(command.arg(in_repository(path)));
    Ok(command)
}

/// Returns the command that runs a script in an interpreter of its own, so that the script can be stopped and resumed, or
/// run by a launcher.
pub fn process(path: &str) -> Fallible<Command> {
    let mut command = Command::new(interpreter()?);
    set_environment(command.arg(in_repository(path)));
    Ok(command)
}

const FORK_SERVER: &str = "tests/support/fork_server.py";

/// Starts the process that has imported TensorFlow, which ends with this one, and returns the name of its socket.
fn fork_server() -> Fallible<&'static str> {
    static SERVER: OnceLock<Result<(String, Child), String>> = OnceLock::new();
    let start = || -> Fallible<(String, Child)> {
        let socket = format!("anabranch-tests-{}", std::process::id());
        let mut command = Command::new(interpreter()?);
        set_environment(command.arg(in_repository(FORK_SERVER)).args(["serve", &socket]));
        let mut server = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        // The server writes a byte when it accepts requests, and ends when its standard input does.
        let mut ready = [0];
        server.stdout.take().ok_or("no standard output")?.read_exact(&mut ready)?;
        Ok((socket, server))
    };
    match SERVER.get_or_init(|| start().map_err(|error| error.to_string())) {
        Ok((socket, _)) => Ok(socket),
        Err(error) => Err(format!("{FORK_SERVER} does not start: {error}").into()),
    }
}

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

fn set_environment(command: &mut Command) {
    command
        .stdin(Stdio::null())
        .env("TF_CPP_MIN_LOG_LEVEL", "3")
        .env("TF_ENABLE_ONEDNN_OPTS", "0")
        .env("CUDA_VISIBLE_DEVICES", "")
        .env("PYTHONDONTWRITEBYTECODE", "1");
}

/// Starts a process whose output [`finish`] collects.
pub fn start(command: &mut Command) -> Fallible<Child> {
    Ok(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?)
}
