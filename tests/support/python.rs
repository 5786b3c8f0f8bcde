//! A Python with TensorFlow: the peer that everything is compared with, and the client that users bring.

use super::Fallible;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The release that behaviour is compared with.
const TENSORFLOW: &str = "tensorflow-cpu==2.21.*";

/// The interpreter of a virtual environment below `target/`, made if it is not there.
pub fn interpreter() -> Fallible<PathBuf> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(root)?;
    // Test binaries run side by side: one makes the environment, the others wait.
    let lock = File::create(root.join("tensorflow.lock"))?;
    lock.lock()?;
    let environment = root.join("tensorflow");
    let python = environment.join("bin/python");
    let ready = environment.join("ready");
    if fs::read_to_string(&ready).is_ok_and(|text| text == TENSORFLOW) {
        return Ok(python);
    }
    if environment.exists() {
        fs::remove_dir_all(&environment)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    run(Command::new(&python).args([
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        TENSORFLOW,
    ]))?;
    fs::write(&ready, TENSORFLOW)?;
    Ok(python)
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

/// Runs to its end; what it printed is in the error if that is bad.
pub fn run(command: &mut Command) -> Fallible<String> {
    let output = command.output()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}\n{stdout}\n{stderr}", output.status).into())
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
