//! The demo, as a newcomer starts it.

mod support;

use std::process::Command;
use support::Fallible;

/// Held-out accuracy that every mode must reach, percent.
const ACCURACY: f64 = 96.0;

fn demo(mode: &str) -> Fallible<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    support::python::run(command.args(["demo", "--mode", mode]))
}

fn accuracy(said: &str) -> Fallible<f64> {
    let line = said.lines().find(|l| l.contains("held-out")).ok_or("no accuracy was printed")?;
    let percent = line.split_whitespace().rev().nth(1).ok_or("no percentage")?;
    Ok(percent.parse()?)
}

#[test]
fn local() -> Fallible {
    let said = demo("local")?;
    assert!(accuracy(&said)? >= ACCURACY, "{said}");
    assert!(
        said.contains("hidden/weights") && said.contains("/job:localhost/replica:0/task:0/device:CPU:0"),
        "{said}"
    );
    Ok(())
}

#[test]
fn in_graph() -> Fallible {
    let said = demo("in-graph")?;
    assert!(accuracy(&said)? >= ACCURACY, "{said}");
    assert!(said.contains("device:CPU:0"), "{said}");
    Ok(())
}

#[test]
fn between_graph() -> Fallible {
    let said = demo("between-graph")?;
    assert!(accuracy(&said)? >= ACCURACY, "{said}");
    let placed = said.lines().filter(|l| l.contains("/job:ps/replica:0/task:0/device:CPU:0")).count();
    assert!(placed >= 4, "{said}");
    Ok(())
}
