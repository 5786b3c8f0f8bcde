//! Programs in TensorFlow-1 style: on our servers as on TensorFlow's own, on clusters of both, and as scripts that
//! start their servers themselves.

mod support;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command};
use std::time::{Duration, Instant};
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

/// `tests/clients/own_server.py` under `anabranch run`: this script of it, with these arguments.
fn own_server(script: &str, arguments: &[&str]) -> Fallible<Command> {
    let program = python::script("tests/clients/own_server.py")?;
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    command.args(["run", "--server-flag=--threads=2", "--"]).arg(program.get_program());
    command.args(program.get_args()).arg(format!("--script={script}")).args(arguments);
    command.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ok(command)
}

/// As [`own_server`], of one task of a cluster.
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
        let said = python::run(&mut own_task(script, &cluster, 1, "worker", 0)?)?;
        assert!(said.contains("trained on") && said.contains("steps 3"), "{said}");
        terminate(&ps)?;
        let said = python::finish(ps)?;
        assert!(said.contains("the server has been stopped"), "{said}");
    }
    Ok(())
}

#[test]
fn monitored_sessions_of_such_scripts_save_and_go_on() -> Fallible {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("own-server-checkpoints");
    // It may not be there.
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
fn what_such_servers_are_given_is_theirs_and_their_sessions() -> Fallible {
    let said = python::run(&mut own_server("local", &[])?)?;
    assert!(said.contains("counted [1, 2] on two local servers"), "{said}");
    let said = python::run(&mut own_server("defaults", &[])?)?;
    let of = |server: &str, session: &str, answer: &str| {
        format!("soft placement {server} by the server, {session} configuration of the session: {answer}")
    };
    for session in ["no", "an empty", "a soft"] {
        assert!(said.contains(&of("allowed", session, "ran: 3")), "{said}");
        let alone = if session == "a soft" { "ran: 3" } else { "refused" };
        assert!(said.contains(&of("not said", session, alone)), "{said}");
    }
    let said = python::run(&mut own_server("deadlines", &[])?)?;
    assert!(said.contains("no deadline of the session: the server's held"), "{said}");
    assert!(said.contains("a longer deadline of the session: the session's held"), "{said}");
    Ok(())
}

#[test]
fn a_script_that_waits_in_a_step_ends_when_it_is_told() -> Fallible {
    let mut waiting = python::start(&mut own_server("waits", &[])?)?;
    let stdout = waiting.stdout.take().ok_or("its output is not there")?;
    let begun = BufReader::new(stdout).lines().map_while(Result::ok).any(|line| line == "waits in a step");
    assert!(begun, "{:?}", waiting.wait()?);
    terminate(&waiting)?;
    let deadline = Instant::now() + Duration::from_secs(15);
    while waiting.try_wait()?.is_none() {
        if Instant::now() > deadline {
            waiting.kill()?;
            return Err("it still waits in its step".into());
        }
        std::thread::park_timeout(Duration::from_millis(20));
    }
    // By its server's end: the client's library makes an error of its own of the signal.
    assert!(!waiting.wait()?.success());
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
