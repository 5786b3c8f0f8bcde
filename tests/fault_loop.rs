//! Rounds of training in step while processes die or stop and links are cut, as a seed says: the variables at the end are
//! those of an undisturbed job, and nothing hangs.
//!
//! `ANABRANCH_FAULT_ROUNDS` and `ANABRANCH_FAULT_SEED` say how many rounds, and the seed of the first; each further one
//! has the next seed.

mod support;

use anabranch::graph::Tensor;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};
use support::Fallible;
use support::job::{Job, SERVERS, Task};
use support::relay::Link;
use support::replica::live_if_asked;

const WORKERS: usize = 3;
const LAST_STEP: i64 = 100;
/// By then there is something to go on from.
const FIRST_FAULT: i64 = 3;
/// A round that takes longer hangs.
const PATIENCE: Duration = Duration::from_secs(100);

/// What the rounds start as processes.
#[test]
fn replica() -> Fallible {
    live_if_asked()
}

/// Numbers that follow from a seed (SplitMix64).
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

/// What happens to a job.
#[derive(Clone, Copy)]
struct Fault {
    what: What,
    /// After the fault before it has begun.
    after: Duration,
    /// Until the task or the link is back.
    lasts: Duration,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Kill(Task),
    Stop(Task),
    Cut(Task, Task, Link),
}

impl What {
    fn tasks(self) -> Vec<Task> {
        match self {
            What::Kill(task) | What::Stop(task) => vec![task],
            What::Cut(a, b, _) => vec![a, b],
        }
    }

    fn begin(self, job: &mut Job) -> Fallible {
        match self {
            What::Kill((name, index)) => job.cluster.kill(name, index),
            What::Stop(task) => tell(job, task, "STOP"),
            What::Cut(a, b, link) => {
                job.set_link(a, b, link);
                Ok(())
            }
        }
    }

    fn end(self, job: &mut Job) -> Fallible {
        match self {
            What::Kill((name, index)) => job.cluster.spawn(name, index),
            What::Stop(task) => tell(job, task, "CONT"),
            What::Cut(a, b, _) => {
                job.set_link(a, b, Link::Up);
                Ok(())
            }
        }
    }
}

/// Sends a task a signal, unless it has ended: a replica may be done before the others.
fn tell(job: &mut Job, (name, index): Task, signal: &str) -> Fallible {
    if job.cluster.is_running(name, index)? { job.cluster.signal(name, index, signal) } else { Ok(()) }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} after {:?} for {:?}", self.what, self.after, self.lasts)
    }
}

/// What a seed says.
struct Round {
    /// Links can be cut.
    has_relays: bool,
    /// The step at which it begins, or the end of the job.
    begins: i64,
    faults: Vec<Fault>,
}

fn round_of(seed: u64) -> Round {
    let mut random = Random(seed);
    let has_relays = random.below(3) > 0;
    let begins = FIRST_FAULT + random.below((LAST_STEP - FIRST_FAULT + 1) as u64) as i64;
    let mut faults: Vec<Fault> = Vec::new();
    for _ in 0..=random.below(4) {
        let (server, task) = (random.server(), random.task());
        let what = match random.below(if has_relays { 4 } else { 2 }) {
            0 => What::Kill(task),
            1 => What::Stop(task),
            // Workers say nothing to each other.
            held if server != task => {
                What::Cut(server, task, if held == 2 { Link::Held } else { Link::Down })
            }
            _ => continue,
        };
        let after = Duration::from_millis(random.below(900));
        let lasts = Duration::from_millis(20 + random.below(1_500));
        faults.push(Fault { what, after, lasts });
    }
    Round { has_relays, begins, faults }
}

/// Lets the faults happen, until the job is over.
fn disturb(job: &mut Job, round: &Round) -> Fallible<usize> {
    job.until_step(round.begins)?;
    let mut begun: Vec<(Instant, What)> = Vec::new();
    let (mut next, mut at) = (round.faults.iter().peekable(), Instant::now());
    let mut count = 0;
    while next.peek().is_some() || !begun.is_empty() {
        let now = Instant::now();
        for i in (0..begun.len()).rev() {
            if begun[i].0 <= now {
                begun.swap_remove(i).1.end(job)?;
            }
        }
        if let Some(fault) = next.next_if(|fault| at + fault.after <= now) {
            if job.is_over()? {
                next = [].iter().peekable();
                continue;
            }
            // One that is in trouble already is spared this.
            if begun.iter().any(|(_, what)| what.tasks().iter().any(|task| fault.what.tasks().contains(task)))
            {
                continue;
            }
            fault.what.begin(job)?;
            count += 1;
            at = Instant::now();
            begun.push((at + fault.lasts, fault.what));
        }
        thread::park_timeout(Duration::from_millis(2));
    }
    Ok(count)
}

fn start(name: &str, has_relays: bool) -> Fallible<Job> {
    let orders = |orders: &mut support::replica::Orders| {
        (orders.workers, orders.last_step) = (WORKERS as u32, LAST_STEP);
        orders.pause = Duration::from_millis(20);
    };
    Job::start(name, "replica", orders, has_relays)
}

fn run(seed: u64, undisturbed: &[Tensor]) -> Fallible<usize> {
    let round = round_of(seed);
    let mut job = start("fault-loop", round.has_relays)?;
    let ended = disturb(&mut job, &round).and_then(|count| Ok((count, job.end(PATIENCE)?)));
    let failed = |what: &str| -> Box<dyn std::error::Error> {
        let told: Vec<String> = round.faults.iter().map(Fault::to_string).collect();
        let (begins, told) = (round.begins, told.join("; "));
        format!("seed {seed}: {what}\nfaults from step {begins} on: {told}\n{}", job.logs()).into()
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
    let undisturbed = job.end(PATIENCE).map_err(|error| format!("undisturbed: {error}\n{}", job.logs()))?;
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
    assert!(happened > 0, "nothing has happened in {rounds} rounds");
    Ok(())
}
