//! Programs in TensorFlow-1 style: on our servers as on TensorFlow's own, on clusters of both, and as scripts that
//! start their servers themselves.

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use support::cluster::Cluster;
use support::{Fallible, python};

const WORKER: &str = env!("CARGO_BIN_EXE_anabranch-worker");

#[test]
fn programs_say_the_same_as_on_the_peers_servers() -> Fallible {
    let said = python::run(python::script("tests/clients/run.py")?.args(["--server", WORKER]))?;
    assert!(said.contains(" programs, 0 failed"), "{said}");
    Ok(())
}

#[test]
fn clusters_of_both_implementations_compute_the_same() -> Fallible {
    let said = python::run(python::script("tests/clients/mixed.py")?.args(["--server", WORKER]))?;
    assert!(said.contains("16 mixtures, 0 failed"), "{said}");
    Ok(())
}

#[test]
fn scripts_that_start_servers_run_unchanged() -> Fallible {
    let cluster = Cluster::reserve(&[("ps", 1), ("worker", 1)])?;
    let run = |job: &str| -> Fallible<Command> {
        let script = python::script("tests/clients/own_server.py")?;
        let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
        command
            .args(["run", "--server-flag=--threads=2", "--"])
            .arg(script.get_program())
            .args(script.get_args());
        command.envs(script.get_envs().filter_map(|(name, value)| Some((name, value?))));
        command.arg(format!("--ps_hosts={}", cluster.address("ps", 0)));
        command.arg(format!("--worker_hosts={}", cluster.address("worker", 0)));
        command.args([&format!("--job_name={job}"), "--task_index=0"]);
        Ok(command)
    };
    let ps = python::start(&mut run("ps")?)?;
    let said = python::run(&mut run("worker")?)?;
    assert!(said.contains("trained on") && said.contains("steps 3"), "{said}");
    assert!(Command::new("kill").arg(ps.id().to_string()).status()?.success());
    let said = python::finish(ps)?;
    assert!(said.contains("the server has been stopped"), "{said}");
    Ok(())
}

#[test]
fn run_ends_as_its_program_does() -> Fallible {
    let python = python::interpreter()?;
    let ended = Command::new(env!("CARGO_BIN_EXE_anabranch"))
        .args(["run", "--"])
        .arg(&python)
        .args(["-c", "import sys; sys.exit(7)"])
        .status()?;
    assert_eq!(ended.code(), Some(7));
    let missing =
        Command::new(env!("CARGO_BIN_EXE_anabranch")).args(["run", "--", "no-such-program"]).output()?;
    assert_eq!(missing.status.code(), Some(1));
    let said = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(said.contains("no-such-program cannot be started"), "{said}");
    // A program's own customisation of its Python still loads.
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("site");
    fs::create_dir_all(&folder)?;
    fs::write(folder.join("sitecustomize.py"), "import sys; sys.own = 5\n")?;
    let ended = Command::new(env!("CARGO_BIN_EXE_anabranch"))
        .env("PYTHONPATH", &folder)
        .args(["run", "--"])
        .arg(&python)
        .args(["-c", "import sys; sys.exit(sys.own)"])
        .status()?;
    assert_eq!(ended.code(), Some(5));
    Ok(())
}
