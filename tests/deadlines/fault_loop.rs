//! Rounds of synchronous training with random faults: processes die or stop, and connections are cut. The final
//! variables equal those of a job without faults, and no round hangs.
//!
//! `ANABRANCH_FAULT_ROUNDS` is the number of rounds and `ANABRANCH_FAULT_SEED` the seed of the first round; each
//! further round has the next seed.

use crate::support::Fallible;
use crate::support::job::{Job, SERVERS, Task};
use crate::support::relay::LinkState;
use anabranch::graph::Tensor;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

const WORKERS: usize = 3;
const LAST_STEP: i64 = 100;
/// First step at which a fault may happen.
const FIRST_FAULT: i64 = 3;
/// Longest time from the last fault of a round to the end of the round.
const PATIENCE: Duration = Duration::from_secs(100);

/// A seeded random generator (SplitMix64).
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end.max(1)
    }

    fn server(&mut self) -> Task {
        ("ps", self.below(SERVERS as u64) as usize)
    }

    fn task(&mut self) -> Task {
        match self.below((SERVERS + WORKERS) as u64) as usize {
            server if server < SERVERS => ("ps", server),
            worker => ("worker", worker - SERVERS),
        }
    }
}

/// A fault with its start, relative to the previous fault, and its duration.
#[derive(Clone, Copy)]
struct TimedFault {
    fault: Fault,
    /// Time from the beginning of the previous fault to the beginning of this fault.
    after: Duration,
    /// Time until the task runs again or the connection is restored.
    lasts: Duration,
}

/// A fault: a killed task, a stopped task, or a connection between two tasks that is cut.
#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill(Task),
    Stop(Task),
    Cut(Task, Task, LinkState),
}

impl Fault {
    fn tasks(self) -> Vec<Task> {
        match self {
            Fault::Kill(task) | Fault::Stop(task) => vec![task],
            Fault::Cut(a, b, _) => vec![a, b],
        }
    }

    fn begin(self, job: &mut Job) -> Fallible {
        match self {
            Fault::Kill((name, index)) => job.cluster.kill(name, index),
            Fault::Stop(task) => signal_if_running(job, task, "STOP"),
            Fault::Cut(a, b, link) => {
                job.set_link(a, b, link);
                Ok(())
            }
        }
    }

    fn end(self, job: &mut Job) -> Fallible {
        match self {
            Fault::Kill((name, index)) => job.cluster.spawn(name, index),
            Fault::Stop(task) => signal_if_running(job, task, "CONT"),
            Fault::Cut(a, b, _) => {
                job.set_link(a, b, LinkState::Up);
                Ok(())
            }
        }
    }
}

/// Sends a signal to a task if its process still runs; the process of a replica may already have ended.
fn signal_if_running(job: &mut Job, (name, index): Task, signal: &str) -> Fallible {
    if job.cluster.is_running(name, index)? { job.cluster.signal(name, index, signal) } else { Ok(()) }
}

impl fmt::Display for TimedFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after {:?} for {:?}", self.fault, self.after, self.lasts)
    }
}

/// The faults of a round, and the job's configuration.
struct Round {
    /// True if tasks connect through relays, which can cut the connections.
    has_relays: bool,
    /// The step at which the first fault may begin.
    begins: i64,
    faults: Vec<TimedFault>,
}

/// Returns the round that a seed determines.
fn round_of(seed: u64) -> Round {
    let mut random = Random(seed);
    let has_relays = random.below(3) > 0;
    let begins = FIRST_FAULT + random.below((LAST_STEP - FIRST_FAULT + 1) as u64) as i64;
    let mut faults: Vec<TimedFault> = Vec::new();
    for _ in 0..=random.below(4) {
        let (server, task) = (random.server(), random.task());
        let fault = match random.below(if has_relays { 4 } else { 2 }) {
            0 => Fault::Kill(task),
            1 => Fault::Stop(task),
            // Only connections with a parameter server are cut, because workers do not connect to each other.
            kind if server != task => {
                Fault::Cut(server, task, if kind == 2 { LinkState::Stalled } else { LinkState::Down })
            }
            _ => continue,
        };
        let after = Duration::from_millis(random.below(900));
        let lasts = Duration::from_millis(20 + random.below(1_500));
        faults.push(TimedFault { fault, after, lasts });
    }
    Round { has_relays, begins, faults }
}

/// Injects the faults of a round until the job has ended; returns the number of faults that were injected.
fn disturb(job: &mut Job, round: &Round) -> Fallible<usize> {
    job.until_step(round.begins)?;
    let mut begun: Vec<(Instant, Fault)> = Vec::new();
    let (mut next, mut at) = (round.faults.iter().peekable(), Instant::now());
    let mut count = 0;
    while next.peek().is_some() || !begun.is_empty() {
        let now = Instant::now();
        for i in (0..begun.len()).rev() {
            if begun[i].0 <= now {
                begun.swap_remove(i).1.end(job)?;
            }
        }
        if let Some(timed) = next.next_if(|timed| at + timed.after <= now) {
            if job.has_ended()? {
                next = [].iter().peekable();
                continue;
            }
            // A fault is skipped if one of its tasks already has a fault.
            if begun
                .iter()
                .any(|(_, fault)| fault.tasks().iter().any(|task| timed.fault.tasks().contains(task)))
            {
                continue;
            }
            timed.fault.begin(job)?;
            count += 1;
            at = Instant::now();
            begun.push((at + timed.lasts, timed.fault));
        }
        thread::park_timeout(Duration::from_millis(2));
    }
    Ok(count)
}

fn start(name: &str, has_relays: bool) -> Fallible<Job> {
    let configure = |config: &mut crate::support::replica::ReplicaConfig| {
        (config.workers, config.last_step) = (WORKERS as u32, LAST_STEP);
        config.pause = Duration::from_millis(20);
    };
    Job::start(name, configure, has_relays)
}

/// Runs a round and checks that its final variables equal `undisturbed`; returns the number of faults.
fn run(seed: u64, undisturbed: &[Tensor]) -> Fallible<usize> {
    let round = round_of(seed);
    let mut job = start("fault-loop", round.has_relays)?;
    let ended = disturb(&mut job, &round).and_then(|count| Ok((count, job.finish(PATIENCE)?)));
    let failed = |failure: &str| -> Box<dyn std::error::Error> {
        let faults: Vec<String> = round.faults.iter().map(TimedFault::to_string).collect();
        let (begins, faults) = (round.begins, faults.join("; "));
        format!("seed {seed}: {failure}\nfaults from step {begins} on: {faults}\n{}", job.logs()).into()
    };
    match ended {
        Ok((count, found)) if found == undisturbed => Ok(count),
        Ok((_, found)) => Err(failed(&format!("{found:?}, undisturbed {undisturbed:?}"))),
        Err(error) => Err(failed(&error.to_string())),
    }
}

#[test]
fn rounds_of_faults_end_with_the_variables_of_an_undisturbed_job() -> Fallible {
    let number = |name: &str, default: u64| {
        std::env::var(name)
            .ok()
            .map_or(Ok(default), |text| text.parse::<u64>().map_err(|e| format!("{name}: {e}")))
    };
    let (rounds, seed) = (number("ANABRANCH_FAULT_ROUNDS", 5)?, number("ANABRANCH_FAULT_SEED", 1)?);
    let mut job = start("fault-loop-undisturbed", false)?;
    let undisturbed =
        job.finish(PATIENCE).map_err(|error| format!("undisturbed: {error}\n{}", job.logs()))?;
    drop(job);
    let (mut failures, mut happened) = (Vec::new(), 0);
    for seed in seed..seed.saturating_add(rounds) {
        let started = Instant::now();
        match run(seed, &undisturbed) {
            Ok(count) => {
                happened += count;
                eprintln!("round {seed}: {count} faults, {:.1} s", started.elapsed().as_secs_f64());
            }
            Err(error) => {
                eprintln!("round {seed} failed after {:.1} s\n{error}", started.elapsed().as_secs_f64());
                failures.push(seed);
            }
        }
    }
    assert!(failures.is_empty(), "seeds of rounds that failed: {failures:?}");
    assert!(happened > 0, "no fault was injected in {rounds} rounds");
    Ok(())
}
