//! Virtual environments of Python: what tests need from PyPI.

use super::Fallible;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The interpreter of the environment of this name below `target/`, made with these packages if it is not there.
pub fn made(name: &str, packages: &[&str]) -> Fallible<PathBuf> {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR"));
    fs::create_dir_all(root)?;
    // Test binaries run side by side: one makes the environment, the others wait.
    let lock = File::create(root.join(format!("{name}.lock")))?;
    lock.lock()?;
    let environment = root.join(name);
    let python = environment.join("bin/python");
    let ready = environment.join("ready");
    let wanted = packages.join("\n");
    if fs::read_to_string(&ready).is_ok_and(|text| text == wanted) {
        return Ok(python);
    }
    if environment.exists() {
        fs::remove_dir_all(&environment)?;
    }
    run(Command::new("python3").args(["-m", "venv"]).arg(&environment))?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check"];
    run(Command::new(&python).args(pip).args(packages))?;
    fs::write(&ready, wanted)?;
    Ok(python)
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
