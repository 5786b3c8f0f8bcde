//! Tests of `anabranch demo` and `anabranch run` under launchers: MPICH's `mpiexec`, and a script that sets the
//! variables of torchrun.

use crate::support::cluster::free_port;
use crate::support::folder::Folder;
use crate::support::{Fallible, launchers, python};
use std::process::{Command, Stdio};

const ANABRANCH: &str = env!("CARGO_BIN_EXE_anabranch");

/// The variables of launchers, and the variables that determine the meeting address.
const VARIABLES: [&str; 12] = [
    "RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "OMPI_COMM_WORLD_RANK",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_RANK",
    "PMI_SIZE",
    "SLURM_PROCID",
    "TF_CONFIG",
];

/// Returns a command without variables of launchers in its environment, whose processes meet at a free port of this
/// machine.
fn command(program: impl AsRef<std::ffi::OsStr>) -> Fallible<Command> {
    let mut command = Command::new(program);
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command.env("ANABRANCH_PORT", free_port()?.port().to_string()).stdin(Stdio::null());
    Ok(command)
}

/// Returns a command that runs `anabranch` as the process of a rank under torchrun on this host.
fn ranked(rank: usize, size: usize) -> Fallible<Command> {
    let mut command = command(ANABRANCH)?;
    command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
    Ok(command)
}

/// Runs a command that fails. Returns its standard error.
fn failure(mut command: Command) -> Fallible<String> {
    let output = command.output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() { Err(format!("{command:?} has not failed: {text}").into()) } else { Ok(text) }
}

/// Runs the demo under a launcher. Checks that rank 0 alone prints the outcome, and that the model is accurate.
fn check_demo(mut launch: Command) -> Fallible {
    let output = python::run(launch.args([ANABRANCH, "demo", "--mode", "all-reduce"]))?;
    let outcomes: Vec<&str> = output.lines().filter(|line| line.contains("held-out")).collect();
    let [outcome] = outcomes[..] else { return Err(format!("not one outcome: {output}").into()) };
    assert!(outcome.starts_with("after 600 steps, "), "{output}");
    let percent = outcome.split_whitespace().rev().nth(1).ok_or("no percentage")?;
    assert!(percent.parse::<f64>()? >= 96.0, "{output}");
    let on_first = |line: &&str| line.ends_with("/job:worker/replica:0/task:0/device:CPU:0");
    assert!(output.lines().filter(on_first).count() >= 4, "{output}");
    Ok(())
}

#[test]
fn mpiexec_runs_the_demo_with_a_worker_for_each_process() -> Fallible {
    let mut launch = command(launchers::mpiexec()?)?;
    launch.args(["-n", "2"]);
    check_demo(launch)
}

#[test]
fn torchrun_runs_the_demo_with_a_worker_for_each_process() -> Fallible {
    let folder = Folder::new("torchrun")?;
    let mut launch = command(launchers::write_torchrun(folder.path())?)?;
    // Three workers share 64 examples, so each gets 21.
    launch.args(["--nproc-per-node", "3", "--no-python"]);
    launch.env_remove("ANABRANCH_PORT").env("MASTER_PORT", free_port()?.port().to_string());
    check_demo(launch)
}

#[test]
fn a_tensorflow_program_under_mpiexec_finds_its_cluster() -> Fallible {
    let program = python::process("tests/clients/launched.py")?;
    let mut launch = command(launchers::mpiexec()?)?;
    launch.args(["-n", "2", ANABRANCH, "run", "--"]).arg(program.get_program()).args(program.get_args());
    launch.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let output = python::run(&mut launch)?;
    for task in 0..2 {
        assert!(output.contains(&format!("task {task} of 2: the sum is 11")), "{output}");
    }
    Ok(())
}

#[test]
fn run_gives_each_process_its_task_unless_its_task_is_known() -> Fallible {
    let print = ["run", "--", "sh", "-c", "echo \"$TF_CONFIG\""];
    let start = |rank: usize, port: &str| -> Fallible<_> {
        python::start(ranked(rank, 2)?.env("ANABRANCH_PORT", port).args(print))
    };
    let port = free_port()?.port().to_string();
    let processes = [start(0, &port)?, start(1, &port)?];
    let mut clusters = Vec::new();
    for (rank, process) in processes.into_iter().enumerate() {
        let config: serde_json::Value = serde_json::from_str(&python::finish(process)?)?;
        assert_eq!(config["task"], serde_json::json!({"type": "worker", "index": rank}));
        clusters.push(config["cluster"]["worker"].clone());
    }
    assert!(clusters[0] == clusters[1] && clusters[0].as_array().is_some_and(|all| all.len() == 2));
    // A TF_CONFIG that the user has set is kept, and these processes do not wait for each other.
    let kept = python::run(ranked(0, 2)?.env("TF_CONFIG", "mine").args(print))?;
    assert_eq!(kept, "mine\n");
    let flags = ["run", "--no-tf-config", "--", "sh", "-c", "echo \"${TF_CONFIG-unset}\""];
    assert_eq!(python::run(ranked(1, 2)?.args(flags))?, "unset\n");
    Ok(())
}

#[test]
fn missing_ranks_and_variables_are_named() -> Fallible {
    let mut alone = ranked(0, 3)?;
    alone.args(["demo", "--mode", "all-reduce", "--launch-deadline", "0.3"]);
    let text = failure(alone)?;
    assert!(text.contains("these ranks did not come to rank 0 at port"), "{text}");
    assert!(text.contains("in time: 1, 2"), "{text}");
    let mut second = ranked(1, 2)?;
    second.args(["run", "--launch-deadline", "0.3", "--", "true"]);
    let text = failure(second)?;
    assert!(text.contains("rank 1 cannot reach rank 0 at 127.0.0.1:"), "{text}");
    let half = [("RANK", "WORLD_SIZE"), ("PMI_SIZE", "PMI_RANK")];
    for (set, missing) in half {
        for arguments in [&["demo", "--mode", "all-reduce"][..], &["run", "--", "true"]] {
            let mut command = command(ANABRANCH)?;
            command.env(set, "1").args(arguments);
            let text = failure(command)?;
            assert!(text.contains(&format!("{missing} is not set")), "{text}");
        }
    }
    let mut malformed = ranked(0, 2)?;
    malformed.args(["run", "--launch-deadline=-1", "--", "true"]);
    let text = failure(malformed)?;
    assert!(text.contains("--launch-deadline is -1"), "{text}");
    Ok(())
}

#[test]
fn modes_with_processes_of_their_own_are_refused_under_a_launcher() -> Fallible {
    for mode in ["local", "between-graph", "hybrid"] {
        let mut command = ranked(0, 2)?;
        command.args(["demo", "--model", "wide-and-deep", "--mode", mode]);
        let text = failure(command)?;
        let expected = format!("--mode {mode} starts its own processes, but a launcher has started 2");
        assert!(text.contains(&expected), "{text}");
    }
    let mut uneven = ranked(0, 3)?;
    uneven.args(["demo", "--mode", "all-reduce", "--batch", "64"]);
    let text = failure(uneven)?;
    assert!(text.contains("--batch is 64: it must be a multiple of 3"), "{text}");
    Ok(())
}
