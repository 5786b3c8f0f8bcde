//! Python virtual environments with the packages that tests need from PyPI.

use super::Fallible;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// The longest that a command of a test may run. A client waits for ever when TensorFlow's server ends during its step.
const COMMAND_DEADLINE: Duration = Duration::from_secs(600);

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
/// all of its output.
pub fn standard_output(child: Child) -> Fallible<String> {
    let output = output(child)?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    Err(format!("ended with {}\n{stdout}\n{}", output.status, String::from_utf8_lossy(&output.stderr)).into())
}

/// Waits for a process whose output is piped, and kills it at the deadline.
fn output(mut child: Child) -> Fallible<Output> {
    let (stdout, stderr) = (reader(child.stdout.take()), reader(child.stderr.take()));
    let deadline = Instant::now() + COMMAND_DEADLINE;
    let mut is_late = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() > deadline && !is_late {
            is_late = true;
            child.kill()?;
        }
        thread::park_timeout(Duration::from_millis(20));
    };
    let [stdout, stderr] = [stdout, stderr].map(|reader| reader.join().unwrap_or_default());
    if is_late {
        let texts = [&stdout, &stderr].map(|text| String::from_utf8_lossy(text));
        return Err(format!("did not end within {COMMAND_DEADLINE:?}\n{}\n{}", texts[0], texts[1]).into());
    }
    Ok(Output { status, stdout, stderr })
}

/// Starts a thread that reads a pipe to its end.
fn reader(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // The bytes before an error are shown.
        let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
        bytes
    })
}
