//! The demo, as a newcomer starts it: each model trains under every strategy as well as on one device.

mod support;

use std::process::Command;
use support::Fallible;

/// Points of held-out accuracy, in percent, that a strategy may differ from one device.
const TOLERANCE: f64 = 1.0;

const MODES: [&str; 6] =
    ["in-graph", "between-graph", "synchronous", "accumulators", "backup", "bounded-staleness"];

fn demo(model: &str, mode: &str) -> Fallible<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    support::python::run(command.args(["demo", "--model", model, "--mode", mode]))
}

fn accuracy(said: &str) -> Fallible<f64> {
    let line = said.lines().find(|l| l.contains("held-out")).ok_or("no accuracy was printed")?;
    let percent = line.split_whitespace().rev().nth(1).ok_or("no percentage")?;
    Ok(percent.parse()?)
}

/// Trains a model in every mode; `variable` is one that it has.
fn trains_in_every_mode(model: &str, variable: &str, least: f64) -> Fallible {
    let said = demo(model, "local")?;
    let local = accuracy(&said)?;
    assert!(local >= least, "{said}");
    let is_there = said.lines().any(|line| line.contains(variable) && line.contains("/job:localhost/"));
    assert!(is_there, "{said}");
    for mode in MODES {
        let said = demo(model, mode)?;
        let found = accuracy(&said)?;
        assert!((found - local).abs() <= TOLERANCE, "{mode}: {found} %, on one device {local} %\n{said}");
        let places: &[&str] = match mode {
            "in-graph" => &["/job:localhost/replica:0/task:0/device:CPU:0"],
            _ => &["/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0"],
        };
        for place in places {
            assert!(
                said.lines().filter(|line| line.ends_with(place)).count() >= 4,
                "{mode}: {place}\n{said}"
            );
        }
    }
    Ok(())
}

#[test]
fn digits() -> Fallible {
    trains_in_every_mode("digits", "hidden/weights", 96.0)
}

#[test]
fn wide_and_deep() -> Fallible {
    trains_in_every_mode("wide-and-deep", "wide/place_x_hour/part_1", 92.0)
}
