//! Client programs in TensorFlow-1 style: their results on our servers are compared with those on TensorFlow's
//! servers, they run on clusters that mix both kinds of servers, and scripts that start servers themselves run
//! unchanged.

use crate::support::cluster::Cluster;
use crate::support::{Fallible, python};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

const WORKER: &str = env!("CARGO_BIN_EXE_anabranch-worker");

#[test]
fn programs_compute_the_same_as_on_tensorflow_servers() -> Fallible {
    let output = python::run(python::script("tests/clients/run.py")?.args(["--server", WORKER]))?;
    assert!(output.contains(" programs, 0 failed"), "{output}");
    Ok(())
}

#[test]
fn mixed_clusters_compute_the_same_as_tensorflow_servers() -> Fallible {
    let output = python::run(python::script("tests/clients/mixed.py")?.args(["--server", WORKER]))?;
    assert!(output.contains("16 mixtures, 0 failed"), "{output}");
    Ok(())
}

/// Returns the command that runs one script of `tests/clients/own_server.py` under `anabranch run`.
fn own_server(script: &str, arguments: &[&str]) -> Fallible<Command> {
    let program = python::process("tests/clients/own_server.py")?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    command.args(["run", "--server-flag=--threads=2", "--"]).arg(program.get_program());
    command.args(program.get_args()).arg(format!("--script={script}")).args(arguments);
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ok(command)
}

/// Returns the command of [`own_server`] with the flags of one task of a cluster.
fn own_task(script: &str, cluster: &Cluster, workers: usize, job: &str, task: usize) -> Fallible<Command> {
    let addresses: Vec<String> = (0..workers).map(|i| cluster.address("worker", i).to_string()).collect();
    let mut command = own_server(script, &[])?;
    command.arg(format!("--ps_hosts={}", cluster.address("ps", 0)));
    command.arg(format!("--worker_hosts={}", addresses.join(",")));
    command.args([format!("--job_name={job}"), format!("--task_index={task}")]);
    Ok(command)
}

fn terminate(process: &Child) -> Fallible {
    assert!(Command::new("kill").arg(process.id().to_string()).status()?.success());
    Ok(())
}

#[test]
fn scripts_that_start_servers_run_unchanged() -> Fallible {
    for script in ["train", "distribute"] {
        let cluster = Cluster::reserve(&[("ps", 1), ("worker", 1)])?;
        let ps = python::start(&mut own_task(script, &cluster, 1, "ps", 0)?)?;
        let output = python::run(&mut own_task(script, &cluster, 1, "worker", 0)?)?;
        assert!(output.contains("trained on") && output.contains("steps 3"), "{output}");
        terminate(&ps)?;
        let output = python::finish(ps)?;
        assert!(output.contains("the server has been stopped"), "{output}");
    }
    Ok(())
}

#[test]
fn monitored_sessions_of_scripts_that_start_servers_resume_from_their_checkpoint() -> Fallible {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("own-server-checkpoints");
    // The error is ignored, because the folder may not exist.
    let _ = fs::remove_dir_all(&folder);
    let mut saved = 0;
    for last in [50, 80] {
        let cluster = Cluster::reserve(&[("ps", 1), ("worker", 2)])?;
        let start = |job: &str, task: usize| -> Fallible<Child> {
            let mut command = own_task("monitored", &cluster, 2, job, task)?;
            command.arg(format!("--folder={}", folder.display()));
            python::start(command.args([format!("--first_step={saved}"), format!("--last_step={last}")]))
        };
        let (ps, chief, other) = (start("ps", 0)?, start("worker", 0)?, start("worker", 1)?);
        let (chief, other) = (python::finish(chief)?, python::finish(other)?);
        assert!(other.contains("worker 1 trained from step"), "{other}");
        let step = |behind: &str| -> Fallible<i64> {
            let digits = chief.split(behind).nth(1).and_then(|rest| rest.split([',', ' ', '\n']).next());
            Ok(digits.ok_or_else(|| chief.clone())?.parse()?)
        };
        assert_eq!(step("worker 0 trained from step ")?, saved, "{chief}");
        saved = step("saved at step ")?;
        assert!(saved >= last, "{chief}");
        terminate(&ps)?;
        python::finish(ps)?;
    }
    Ok(())
}

#[test]
fn server_configuration_applies_to_sessions_without_their_own() -> Fallible {
    let output = python::run(&mut own_server("local", &[])?)?;
    assert!(output.contains("counted [1, 2] on two local servers"), "{output}");
    let output = python::run(&mut own_server("defaults", &[])?)?;
    let line = |server: &str, session: &str, answer: &str| {
        format!("soft placement {server} by the server, {session} configuration of the session: {answer}")
    };
    for session in ["no", "an empty", "a soft"] {
        assert!(output.contains(&line("allowed", session, "ran: 3")), "{output}");
        let answer = if session == "a soft" { "ran: 3" } else { "refused" };
        assert!(output.contains(&line("not set", session, answer)), "{output}");
    }
    let output = python::run(&mut own_server("deadlines", &[])?)?;
    assert!(output.contains("no deadline of the session: the server's held"), "{output}");
    assert!(output.contains("a longer deadline of the session: the session's held"), "{output}");
    Ok(())
}

#[test]
fn script_that_waits_in_a_step_ends_on_sigterm() -> Fallible {
    let mut waiting = python::start(&mut own_server("waits", &[])?)?;
    let stdout = waiting.stdout.take().ok_or("the output is not captured")?;
    let begun = BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line == "waits in a step");
    assert!(begun, "{:?}", waiting.wait()?);
    terminate(&waiting)?;
    let deadline = Instant::now() + Duration::from_secs(15);
    while waiting.try_wait()?.is_none() {
        if Instant::now() > deadline {
            waiting.kill()?;
            return Err("the script still waits in its step".into());
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    // The program ends with an error, because its server is stopped and its step fails.
    assert!(!waiting.wait()?.success());
    Ok(())
}

#[test]
fn run_exits_with_the_exit_code_of_its_program() -> Fallible {
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
    let output = String::from_utf8_lossy(&missing.stderr).into_owned();
    assert!(output.contains("no-such-program cannot be started"), "{output}");
    // `anabranch run` adds a sitecustomize module; a sitecustomize module of the program is still loaded.
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
