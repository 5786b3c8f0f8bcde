//! The programs in `examples/`: each ends successfully, and the examples of training strategies find the weight and
//! bias of their data.

use crate::support::cluster::free_port;
use crate::support::folder::Folder;
use crate::support::{Fallible, launchers, python};
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Returns the path of an example's program; builds the examples if it is missing.
fn program(name: &str) -> Fallible<PathBuf> {
    let folder =
        std::env::current_exe()?.parent().and_then(|deps| deps.parent()).ok_or("no folder")?.join("examples");
    let program = folder.join(name);
    if !program.exists() {
        let root = env!("CARGO_MANIFEST_DIR");
        python::run(
            Command::new(env!("CARGO")).args(["build", "--workspace", "--examples"]).current_dir(root),
        )?;
    }
    Ok(program)
}

/// Checks that an example prints the weight, 0.1, and the bias, 0.3, of the line on which its training points lie; an
/// example may have `biases` equal ones.
fn check_fit(example: &str, biases: usize) -> Fallible {
    let output = python::run(&mut Command::new(program(example)?))?;
    let numbers =
        output.trim().strip_prefix("w, b = [").and_then(|s| s.strip_suffix(']')).ok_or("no numbers")?;
    let found = numbers.split(", ").map(str::parse).collect::<Result<Vec<f64>, _>>()?;
    let expected = [vec![0.1], vec![0.3; biases]].concat();
    let right = expected.iter().zip(&found).all(|(expected, found)| (expected - found).abs() < 0.02);
    assert!(found.len() == expected.len() && right, "{example}: {output}");
    Ok(())
}

#[test]
fn each_strategy_fits_the_line() -> Fallible {
    for example in ["local", "towers", "asynchronous", "synchronous", "bounded_staleness", "all_reduce"] {
        check_fit(example, 1)?;
    }
    check_fit("hybrid", 2)
}

#[test]
fn other_examples_end_successfully() -> Fallible {
    for example in ["linear_regression", "cluster", "placement", "process_group"] {
        python::run(&mut Command::new(program(example)?))?;
    }
    Ok(())
}

/// Checks the sums that the ranks of three processes print, in any order.
fn check_sums(output: &str) {
    let mut lines: Vec<&str> = output.lines().collect();
    lines.sort_unstable();
    let expected = [0, 1, 2].map(|rank| format!("rank {rank} of 3: the sum is 6"));
    assert_eq!(lines, expected, "{output}");
}

#[test]
fn launchers_start_a_process_group() -> Fallible {
    let program = program("process_group")?;
    let variables = [
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    ];
    for (rank_variable, size_variable) in variables {
        let port = free_port()?.port().to_string();
        let spawn = |rank: usize| {
            let mut command = Command::new(&program);
            command.env(rank_variable, rank.to_string()).env(size_variable, "3");
            command.env("MASTER_ADDR", "127.0.0.1").env("ANABRANCH_PORT", &port);
            command.stdout(Stdio::piped()).spawn()
        };
        let ranks = [2, 0, 1].map(spawn);
        let mut output = String::new();
        for rank in ranks {
            let ended = rank?.wait_with_output()?;
            assert!(ended.status.success(), "{rank_variable}");
            output.push_str(&String::from_utf8(ended.stdout)?);
        }
        check_sums(&output);
    }
    Ok(())
}

#[test]
fn mpiexec_and_torchrun_start_a_process_group() -> Fallible {
    let program = program("process_group")?;
    let folder = Folder::new("process-group")?;
    let port = free_port()?.port().to_string();
    let mut mpiexec = Command::new(launchers::mpiexec()?);
    mpiexec.args(["-n", "3"]).arg(&program).env("ANABRANCH_PORT", &port);
    check_sums(&python::run(&mut mpiexec)?);
    let mut torchrun = Command::new(launchers::write_torchrun(folder.path())?);
    torchrun.args(["--no-python", "--nproc-per-node", "3"]).arg(&program).env("MASTER_PORT", &port);
    check_sums(&python::run(&mut torchrun)?);
    Ok(())
}
