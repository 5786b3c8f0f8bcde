//! Python virtual environments with the packages that tests need from PyPI.

use super::Fallible;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

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

/// Runs a command to its end and returns its standard output; if the command exits with an error, fails with all of the
/// command's output.
pub fn run(command: &mut Command) -> Fallible<String> {
    let output = command.output()?;
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(stdout);
    }
    let stderr = String::from_utf8_lossy(&output.stderr);
    Err(format!("{command:?} ended with {}\n{stdout}\n{stderr}", output.status).into())
}
