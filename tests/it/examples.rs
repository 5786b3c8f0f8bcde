//! The programs in `examples/`: each ends successfully, and the examples of training strategies find the weight and
//! bias of their data.

use crate::support::{Fallible, python};
use std::path::PathBuf;
use std::process::Command;

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

/// Checks that an example prints the weight and bias, 0.1 and 0.3, of the line on which its training points lie.
fn check_fit(example: &str) -> Fallible {
    let output = python::run(&mut Command::new(program(example)?))?;
    let numbers =
        output.trim().strip_prefix("w, b = [").and_then(|s| s.strip_suffix(']')).ok_or("no numbers")?;
    let found = numbers.split(", ").map(str::parse).collect::<Result<Vec<f64>, _>>()?;
    let right = [0.1, 0.3].iter().zip(&found).all(|(expected, found)| (expected - found).abs() < 0.02);
    assert!(found.len() == 2 && right, "{example}: {output}");
    Ok(())
}

#[test]
fn each_strategy_fits_the_line() -> Fallible {
    for example in ["local", "towers", "asynchronous", "synchronous", "bounded_staleness", "all_reduce"] {
        check_fit(example)?;
    }
    Ok(())
}

#[test]
fn other_examples_end_successfully() -> Fallible {
    for example in ["linear_regression", "cluster", "placement"] {
        python::run(&mut Command::new(program(example)?))?;
    }
    Ok(())
}
