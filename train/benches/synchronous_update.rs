//! Benchmark of a synchronous training step (gradient buffers, staged values and their commit, the chief's thread, the
//! token) against a step that updates the variables in place. Servers and replica run in one process, so no network is
//! measured.

use anabranch_train::{
    Initializer, Master, MonitoredConfig, MonitoredSession, Optimizer, Strategy, SyncMode, Training,
    Variables,
};
use client::{Server, ServerConfig};
use graph::{DType, Graph, NodeId, Scope};
use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// The allocator of the server programs.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Fallible<T = ()> = Result<T, Box<dyn std::error::Error>>;

const WIDTH: usize = 64;
const ROUNDS: usize = 7;

/// The environment variable that makes the program run one round of one case, synchronous or in place, and print its
/// peak memory.
const SIDE_VARIABLE: &str = "ANABRANCH_BENCH_SIDE";

/// A benchmark case: training of a table with rows of 256 bytes, whose step consists mostly of the update.
struct UpdateCase {
    name: &'static str,
    rows: usize,
    /// The number of rows with a gradient in a step; `None` for one dense gradient of all rows.
    touched: Option<usize>,
    optimizer: fn(f64) -> Optimizer,
    /// The number of training steps in a timed round.
    steps: usize,
}

#[rustfmt::skip]
const CASES: &[UpdateCase] = &[
    UpdateCase { name: "1 KiB, dense", rows: 4, touched: None, optimizer: Optimizer::gradient_descent, steps: 300 },
    UpdateCase { name: "64 MiB, dense", rows: 1 << 18, touched: None, optimizer: Optimizer::gradient_descent, steps: 5 },
    UpdateCase { name: "64 MiB, dense, Adam", rows: 1 << 18, touched: None, optimizer: Optimizer::adam, steps: 5 },
    UpdateCase { name: "64 MiB, 256 rows", rows: 1 << 18, touched: Some(1 << 8), optimizer: Optimizer::gradient_descent, steps: 200 },
    UpdateCase { name: "64 MiB, 16,384 rows", rows: 1 << 18, touched: Some(1 << 14), optimizer: Optimizer::gradient_descent, steps: 20 },
    UpdateCase { name: "64 MiB, 16,384 rows, Adam", rows: 1 << 18, touched: Some(1 << 14), optimizer: Optimizer::adam, steps: 20 },
];

/// A training session of one replica on a server of its own.
struct Job {
    session: MonitoredSession,
    train: NodeId,
}

fn strategy(is_synchronous: bool) -> Strategy {
    if !is_synchronous {
        return Strategy::Local;
    }
    let sync = SyncMode::Sync { replicas_to_aggregate: 1, backup: 0, aggregation: Default::default() };
    Strategy::ParameterServer { ps_tasks: 0, worker: 0, placement: Default::default(), sync }
}

impl UpdateCase {
    fn model(&self, strategy: &Strategy) -> Fallible<(Graph, Training)> {
        let root = Scope::new();
        let (scope, for_variables) = strategy.scopes(&root);
        let variables = Variables::new(&for_variables);
        let optimizer = (self.optimizer)(0.1);
        let training = strategy.minimize(&scope, &variables, &optimizer, &[], |scope, variables, _| {
            let first = Initializer::Constant(0.5);
            let table = variables.get("table", DType::Float, &[self.rows, WIDTH], &first);
            let Some(touched) = self.touched else { return scope.sum(table.value, &[0, 1], false) };
            let (start, end) = (scope.constant(0i64), scope.constant(self.rows as i64));
            let rows = scope.range(start, end, scope.constant((self.rows / touched) as i64));
            let picked = variables.embedding_lookup(scope, &[table], rows, Default::default());
            scope.sum(picked, &[0, 1], false)
        })?;
        Ok((root.finish()?, training))
    }

    fn start(&self, is_synchronous: bool) -> Fallible<Job> {
        let (graph, training) = self.model(&strategy(is_synchronous))?;
        let train = training.train;
        let master = Master::InProcess(Arc::new(Server::new(ServerConfig::default())?));
        let config = MonitoredConfig::default();
        let session = MonitoredSession::new(master, graph, training, None, Vec::new(), config)?;
        Ok(Job { session, train })
    }

    /// Runs the case's training steps in `job`, and returns the mean time per step in microseconds.
    fn round(&self, job: &mut Job) -> Fallible<f64> {
        let start = Instant::now();
        for _ in 0..self.steps {
            job.session.run(&[], &[], &[job.train])?;
        }
        Ok(start.elapsed().as_secs_f64() * 1e6 / self.steps as f64)
    }

    /// Returns the median times in microseconds of a step that updates the variables in place and of a synchronous
    /// step. Rounds of both kinds alternate.
    fn times(&self) -> Fallible<[f64; 2]> {
        let mut jobs = [self.start(false)?, self.start(true)?];
        let mut times = [Vec::new(), Vec::new()];
        for round in 0..=ROUNDS {
            for (job, times) in jobs.iter_mut().zip(&mut times) {
                let time = self.round(job)?;
                // Round 0 only warms up and is not measured.
                if round > 0 {
                    times.push(time);
                }
            }
        }
        Ok(times.map(|mut times| {
            times.sort_by(f64::total_cmp);
            times[ROUNDS / 2]
        }))
    }

    /// Returns the peak memory in MiB of a new process that runs one round of synchronous or of in-place steps.
    fn memory(&self, is_synchronous: bool) -> Fallible<f64> {
        let side = format!("{}/{is_synchronous}", self.name);
        let output = Command::new(std::env::current_exe()?).env(SIDE_VARIABLE, side).output()?;
        let text = String::from_utf8(output.stdout)?;
        Ok(text.trim().parse().map_err(|_| format!("{text}{}", String::from_utf8_lossy(&output.stderr)))?)
    }
}

fn peak_memory() -> Fallible<f64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("no VmHWM")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1024.0)
}

fn run_one_side(side: &str) -> Fallible {
    let (name, is_synchronous) = side.split_once('/').ok_or("no such side")?;
    let case = CASES.iter().find(|case| case.name == name).ok_or("no such case")?;
    let mut job = case.start(is_synchronous.parse()?)?;
    case.round(&mut job)?;
    writeln!(std::io::stdout(), "{:.1}", peak_memory()?)?;
    Ok(())
}

fn main() -> Fallible {
    if let Ok(side) = std::env::var(SIDE_VARIABLE) {
        return run_one_side(&side);
    }
    let mut out = std::io::stdout();
    writeln!(
        out,
        "| update | in place, µs | synchronous, µs | | memory, MiB | |\n|---|---|---|---|---|---|"
    )?;
    for case in CASES {
        let [one, other] = case.times()?;
        let (less, more) = (case.memory(false)?, case.memory(true)?);
        let UpdateCase { name, .. } = case;
        writeln!(
            out,
            "| {name} | {one:.0} | {other:.0} | {:.2} | {less:.0} | {more:.0} (+{:.0}) |",
            other / one,
            more - less
        )?;
    }
    Ok(())
}
