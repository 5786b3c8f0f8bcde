//! The command `anabranch demo`: each model is as accurate under every strategy as on one device.

use crate::support::Fallible;
use std::process::Command;

/// Largest allowed difference, in percentage points, between the held-out accuracy of a mode and of one device.
const TOLERANCE: f64 = 1.0;

const MODES: [&str; 7] =
    ["in-graph", "between-graph", "synchronous", "accumulators", "backup", "bounded-staleness", "all-reduce"];

/// The devices of the variables of a mode with parameter servers.
const SERVERS: [&str; 2] = ["/job:ps/replica:0/task:0/device:CPU:0", "/job:ps/replica:0/task:1/device:CPU:0"];

fn demo(model: &str, mode: &str) -> Fallible<String> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    crate::support::python::run(command.args(["demo", "--model", model, "--mode", mode]))
}

/// Parses the held-out accuracy in percent from the demo's output.
fn accuracy(output: &str) -> Fallible<f64> {
    let line = output.lines().find(|l| l.contains("held-out")).ok_or("no accuracy was printed")?;
    let percent = line.split_whitespace().rev().nth(1).ok_or("no percentage")?;
    Ok(percent.parse()?)
}

/// Trains a model in `modes` and checks its accuracy, which must be at least `least` percent; `variable` names one
/// of the model's variables.
fn trains_in_every_mode(model: &str, modes: &[&str], variable: &str, least: f64) -> Fallible {
    let output = demo(model, "local")?;
    let local = accuracy(&output)?;
    assert!(local >= least, "{output}");
    let is_there = output.lines().any(|line| line.contains(variable) && line.contains("/job:localhost/"));
    assert!(is_there, "{output}");
    for &mode in modes {
        let output = demo(model, mode)?;
        let found = accuracy(&output)?;
        assert!((found - local).abs() <= TOLERANCE, "{mode}: {found} %, on one device {local} %\n{output}");
        let devices: &[&str] = match mode {
            "in-graph" => &["/job:localhost/replica:0/task:0/device:CPU:0"],
            "all-reduce" => &["/job:worker/replica:0/task:0/device:CPU:0"],
            "hybrid" => &["/job:worker/replica:0/task:0/device:CPU:0", SERVERS[0], SERVERS[1]],
            _ => &SERVERS,
        };
        for device in devices {
            assert!(
                output.lines().filter(|line| line.ends_with(device)).count() >= 4,
                "{mode}: {device}\n{output}"
            );
        }
    }
    Ok(())
}

#[test]
fn digits() -> Fallible {
    trains_in_every_mode("digits", &MODES, "hidden/weights", 96.0)
}

#[test]
fn wide_and_deep() -> Fallible {
    let modes = [&MODES[..], &["hybrid"]].concat();
    trains_in_every_mode("wide-and-deep", &modes, "wide/place_x_hour/part_1", 92.0)
}

#[test]
fn a_model_without_tables_is_refused_in_hybrid_mode() -> Fallible {
    let refused = demo("digits", "hybrid").err().map(|error| error.to_string()).unwrap_or_default();
    assert!(refused.contains("use --model wide-and-deep, or --mode all-reduce"), "{refused}");
    Ok(())
}
