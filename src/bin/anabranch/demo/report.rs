//! What the demo shows: progress while it trains, and the outcome.

use indicatif::{ProgressBar, ProgressStyle};
use std::time::Instant;

/// The bar: steps done, steps a second, the last loss.
#[derive(Debug)]
pub(super) struct Progress {
    bar: ProgressBar,
    started: Instant,
}

impl Progress {
    pub(super) fn start(steps: u64) -> Progress {
        let bar = ProgressBar::new(steps);
        if let Ok(style) =
            ProgressStyle::with_template("{bar:40} {pos}/{len} steps  {per_sec}  {msg}  [{elapsed_precise}]")
        {
            bar.set_style(style);
        }
        Progress { bar, started: Instant::now() }
    }

    pub(super) fn say(&self, line: &str) {
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    pub(super) fn step(&self, loss: f32) {
        self.bar.inc(1);
        self.bar.set_message(format!("loss {loss:.4}"));
    }

    pub(super) fn finish(&self) {
        let steps = self.bar.position();
        self.bar.finish();
        let rate = steps as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
        self.say(&format!("{steps} steps, {rate:.0} steps/s, {}", self.bar.message()));
    }
}

/// What training came to.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) right: usize,
    pub(super) asked: usize,
    /// Of all replicas, as the shared counter says.
    pub(super) steps: i64,
    /// Variables and the devices that hold them.
    pub(super) variables: Vec<(String, String)>,
}

#[allow(clippy::print_stdout)]
pub(super) fn print(outcome: &Outcome) {
    let percent = 100.0 * outcome.right as f64 / outcome.asked.max(1) as f64;
    println!(
        "after {} steps, {} of {} held-out digits are right: {percent:.2} %",
        outcome.steps, outcome.right, outcome.asked
    );
    println!("variables:");
    let width = outcome.variables.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, device) in &outcome.variables {
        println!("  {name:width$}  {device}");
    }
}
