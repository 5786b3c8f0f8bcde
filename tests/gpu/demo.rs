//! `anabranch demo` with each model on a GPU, in each replication mode.

use super::Fallible;
use cuda::gpus;
use device::gpu_options::{GpuOptions, GpuSelection};

const MODES: [&str; 7] =
    ["local", "in-graph", "between-graph", "synchronous", "accumulators", "backup", "bounded-staleness"];

/// Largest allowed difference between the held-out accuracy on a GPU and on the CPU, in percentage points.
const TOLERANCE: f64 = 1.0;

/// Runs the demo and returns its output. Unless `on_gpu`, all GPUs are hidden from it.
fn demo(model: &str, mode: &str, on_gpu: bool) -> Fallible<String> {
    let mut demo = crate::anabranch();
    demo.args(["demo", "--model", model, "--mode", mode]);
    if on_gpu {
        demo.arg("--gpu")
    } else {
        demo.env("CUDA_VISIBLE_DEVICES", "")
    };
    let said = demo.output()?;
    let text = String::from_utf8_lossy(&said.stdout).into_owned();
    match said.status.success() {
        true => Ok(text),
        false => Err(format!("{mode}: {text}\n{}", String::from_utf8_lossy(&said.stderr)).into()),
    }
}

/// Returns the held-out accuracy in percent that the demo printed.
fn accuracy(said: &str) -> Fallible<f64> {
    let line = said.lines().find(|line| line.contains("held-out")).ok_or("no accuracy was printed")?;
    Ok(line.split_whitespace().rev().nth(1).ok_or("no percentage")?.parse()?)
}

/// Trains a model in each mode, and compares the accuracy with the CPU's.
fn trains_in_every_mode(model: &str) -> Fallible {
    if crate::first_gpu(&GpuOptions::default())?.is_none() {
        return Ok(());
    }
    let said = demo(model, "local", false)?;
    assert!(!said.contains("GPU"), "{said}");
    let on_cpu = accuracy(&said)?;
    for mode in MODES {
        let said = demo(model, mode, true)?;
        let told = said
            .lines()
            .find(|line| line.starts_with("nodes that reported their device"))
            .unwrap_or_default();
        assert!(told.contains("/device:GPU:0 ("), "{mode}: {said}");
        let found = accuracy(&said)?;
        assert!((found - on_cpu).abs() <= TOLERANCE, "{mode}: {found} %, on a CPU {on_cpu} %\n{said}");
        // No device of a parameter server is a GPU.
        let on_servers = said.lines().filter(|line| line.contains("/job:ps/"));
        assert!(on_servers.clone().all(|line| !line.ends_with("GPU:0")), "{mode}: {said}");
        assert_eq!(on_servers.count() > 0, !matches!(mode, "local" | "in-graph"), "{mode}: {said}");
    }
    Ok(())
}

#[test]
fn demo_learns_digits_in_every_mode() -> Fallible {
    trains_in_every_mode("digits")
}

#[test]
fn demo_learns_clicks_in_every_mode() -> Fallible {
    trains_in_every_mode("wide-and-deep")
}

#[test]
fn demo_without_a_gpu_reports_the_reason() -> Fallible {
    let Err(why) = gpus::find_gpus(&GpuSelection::All) else { return Ok(()) };
    let said = demo("digits", "local", true).err().ok_or("the demo ran")?.to_string();
    assert!(said.contains(&format!("anabranch: --gpu: {why}")), "{said}");
    Ok(())
}
