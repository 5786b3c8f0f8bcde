//! The examples, as they are in `examples/`: each ends well, and those of strategies find the line.

mod support;

use std::path::PathBuf;
use std::process::Command;
use support::{Fallible, python};

/// An example's program, as its source is now.
fn program(name: &str) -> Fallible<PathBuf> {
    let exe = std::env::current_exe()?;
    let profile = exe.parent().and_then(|deps| deps.parent()).ok_or("no folder")?;
    // With all the packages, as tests are built: nothing is left to do where all of them were.
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--workspace", "--example", name]).current_dir(env!("CARGO_MANIFEST_DIR"));
    if profile.ends_with("release") {
        build.arg("--release");
    }
    python::run(&mut build)?;
    Ok(profile.join("examples").join(name))
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
