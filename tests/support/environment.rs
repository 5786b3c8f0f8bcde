//! Python virtual environments with the packages that tests need from PyPI.

use super::Fallible;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

/// The longest time that a command of a test may run. The limit is needed because a client waits for ever if
/// TensorFlow's server ends during its step.
const COMMAND_DEADLINE: Duration = Duration::from_secs(600);
/// The longest wait for the output of a command that has ended: processes that the command has started may keep its
/// pipes open.
const PIPE_DEADLINE: Duration = Duration::from_secs(10);

/// Returns the interpreter of the virtual environment `name` below `target/`; creates the environment if it is missing
/// or has other packages.
pub fn ensure_environment(name: &str, packages: &[&str]) -> Fallible<PathBuf> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(root)?;
    // Test binaries run concurrently: the first creates the environment, the others wait for the lock.
    let lock = File::create(root.join(format!("{name}.lock")))?;
    lock.lock()?;
    let environment = root.join(name);
    let python = environment.join("bin/python");
    let ready = environment.join("ready");
    let package_list = packages.join("\n");
    if fs::read_to_string(&ready).is_ok_and(|text| text == package_list) {
        return Ok(python);
    }
    if environment.exists() {
        fs::remove_dir_all(&environment)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run(Command::new(&python).args(pip).args(packages))?;
    fs::write(&ready, package_list)?;
    Ok(python)
}

/// Runs a command to its end and returns its standard output; if the command exits with an error or runs too long, fails
/// with all of the command's output.
pub fn run(command: &mut Command) -> Fallible<String> {
    let child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()?;
    standard_output(child).map_err(|error| format!("{command:?} {error}").into())
}

/// Waits for a process and returns its standard output; if the process exits with an error or runs too long, fails with
/// all of its output. A process that runs too long is killed.
pub fn standard_output(mut child: Child) -> Fallible<String> {
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let status = wait_or_kill(&mut child)?;
    let until = Instant::now() + PIPE_DEADLINE;
    let [stdout, stderr] = [stdout, stderr].map(|chunks| collect(&chunks, until));
    match status {
        Some(status) if status.success() => Ok(stdout),
        Some(status) => Err(format!("ended with {status}\n{stdout}\n{stderr}").into()),
        None => Err(format!("did not end within {COMMAND_DEADLINE:?}\n{stdout}\n{stderr}").into()),
    }
}

/// Waits for a process. Returns `None` if it had to be killed at the deadline.
fn wait_or_kill(child: &mut Child) -> Fallible<Option<ExitStatus>> {
    let deadline = Instant::now() + COMMAND_DEADLINE;
    while Instant::now() < deadline {
        if let Some(status) = child.try_wait()? {
            return Ok(Some(status));
        }
        thread::park_timeout(Duration::from_millis(20));
    }
    child.kill()?;
    child.wait()?;
    Ok(None)
}

/// Starts a thread that reads a pipe. Returns the channel over which the thread sends the bytes.
fn read(pipe: Option<impl Read + Send + 'static>) -> Receiver<Vec<u8>> {
    let (chunks, received) = channel();
    thread::spawn(move || {
        let Some(mut pipe) = pipe else { return };
        let mut buffer = vec![0; 64 << 10];
        while let Ok(length @ 1..) = pipe.read(&mut buffer) {
            if chunks.send(buffer[..length].to_vec()).is_err() {
                return;
            }
        }
    });
    received
}

/// Returns the text that a pipe has delivered, up to its end or up to the time `until`.
fn collect(chunks: &Receiver<Vec<u8>>, until: Instant) -> String {
    let mut bytes = Vec::new();
    while let Ok(chunk) = chunks.recv_timeout(until.saturating_duration_since(Instant::now())) {
        bytes.extend(chunk);
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
