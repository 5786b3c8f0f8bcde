//! The examples, as they are in `examples/`: each ends well, and those of strategies find the line.

mod support;

use std::path::PathBuf;
use std::process::Command;
use support::{Fallible, python};

/// An example's program, built if it is not there.
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

fn finds_the_line(example: &str) -> Fallible {
    let said = python::run(&mut Command::new(program(example)?))?;
    let numbers =
        said.trim().strip_prefix("w, b = [").and_then(|s| s.strip_suffix(']')).ok_or("no numbers")?;
    let found = numbers.split(", ").map(str::parse).collect::<Result<Vec<f64>, _>>()?;
    let right = [0.1, 0.3].iter().zip(&found).all(|(wanted, found)| (wanted - found).abs() < 0.02);
    assert!(found.len() == 2 && right, "{example}: {said}");
    Ok(())
}

#[test]
fn each_strategy_finds_the_line() -> Fallible {
    for example in ["local", "towers", "asynchronous", "synchronous", "bounded_staleness"] {
        finds_the_line(example)?;
    }
    Ok(())
}

#[test]
fn the_others_end_well() -> Fallible {
    for example in ["linear_regression", "cluster", "placement"] {
        python::run(&mut Command::new(program(example)?))?;
    }
    Ok(())
}
