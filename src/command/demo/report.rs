//! The output of the demo: progress during training, and the outcome.

use graph::{Output, Tensor};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::Instant;
use train::{Hook, HookContext, RunArgs, RunValues};

/// The progress bar: finished steps, steps per second and the last loss.
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

    /// Returns the progress of a replica whose steps another process shows.
    pub(super) fn hidden() -> Progress {
        Progress { bar: ProgressBar::hidden(), started: Instant::now() }
    }

    pub(super) fn print_line(&self, line: &str) {
        if self.bar.is_hidden() {
            eprintln!("{line}");
        } else {
            self.bar.println(line);
        }
    }

    /// Returns a hook that shows a replica's global step and `loss` in the progress bar.
    pub(super) fn hook(&self, loss: Output) -> impl Hook + use<> {
        ProgressHook { bar: self.bar.clone(), loss }
    }

    pub(super) fn finish(&self) {
        let steps = self.bar.position();
        self.bar.finish();
        let rate = steps as f64 / self.started.elapsed().as_secs_f64().max(1e-9);
        self.print_line(&format!("{steps} steps, {rate:.0} steps/s, {}", self.bar.message()));
    }
}

struct ProgressHook {
    bar: ProgressBar,
    loss: Output,
}

impl Hook for ProgressHook {
    fn before_run(&mut self, _: &HookContext<'_>) -> train::Result<RunArgs> {
        Ok(RunArgs { fetches: vec![self.loss], ..RunArgs::default() })
    }

    fn after_run(&mut self, _: &HookContext<'_>, run: &RunValues<'_>) -> train::Result<()> {
        if let Some(step) = run.global_step.and_then(|step| u64::try_from(step).ok()) {
            // Replicas may report global steps out of order, so the position is never decreased.
            self.bar.set_position(step.max(self.bar.position()));
        }
        if let Some(loss) = run.values.first().map(Tensor::item::<f32>).transpose()? {
            self.bar.set_message(format!("loss {loss:.4}"));
        }
        Ok(())
    }
}

/// The results of training.
#[derive(Debug)]
pub(super) struct Outcome {
    pub(super) correct: usize,
    pub(super) evaluated: usize,
    /// Plural noun for the examples, such as "digits".
    pub(super) examples: &'static str,
    /// Number of steps of all replicas together: the final global step.
    pub(super) steps: i64,
    /// Devices that ran the evaluation, with the number of nodes on each.
    pub(super) nodes: Vec<(String, usize)>,
    /// Names of the variables, with the device that holds each.
    pub(super) variables: Vec<(String, String)>,
}

impl Outcome {
    pub(super) fn percent(&self) -> f64 {
        100.0 * self.correct as f64 / self.evaluated.max(1) as f64
    }
}

#[allow(clippy::print_stdout)]
pub(super) fn print(outcome: &Outcome) {
    let Outcome { correct, evaluated, examples, steps, .. } = outcome;
    println!(
        "after {steps} steps, {correct} of {evaluated} held-out {examples} are right: {:.2} %",
        outcome.percent()
    );
    let nodes: Vec<String> =
        outcome.nodes.iter().map(|(device, count)| format!("{device} ({count})")).collect();
    println!("nodes that reported their device ran on {}", nodes.join(", "));
    println!("variables:");
    let width = outcome.variables.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, device) in &outcome.variables {
        println!("  {name:width$}  {device}");
    }
}
