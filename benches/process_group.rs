//! Latency and bandwidth of process groups: `cargo bench --bench process_group -- --ranks 2,4 --mib 64`. Each rank is a
//! process on 127.0.0.1. Rank 0 prints a line of JSON for each operation and size: the median, the minimum and the 90th
//! percentile of its times in microseconds, and bytes per second: `algbw` is size / median, `busbw` is `algbw` times
//! 2(n-1)/n. `--ops` selects operations, `--bytes` one size, `--transport` one of auto, shm, tcp. Under a launcher the
//! program is one rank.
#![allow(clippy::print_stdout)]

use anabranch::client::{GroupOptions, ProcessGroup, Reduction};
use anabranch::graph::{DType, Shape, Tensor};
use std::error::Error;
use std::net::TcpListener;
use std::process::Command;
use std::time::{Duration, Instant};

type Fallible<T = ()> = Result<T, Box<dyn Error>>;

/// Sizes of the tensors in bytes.
const SIZES: [usize; 9] = [4, 4 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20, 64 << 20, 256 << 20];
const OPERATIONS: &str = "all_reduce,broadcast,reduce,all_gather,reduce_scatter,all_to_all,barrier,ping_pong";
/// Time for the runs of one operation and size.
const BUDGET: Duration = Duration::from_secs(2);
const MAX_RUNS: usize = 400;

fn main() -> Fallible {
    if std::env::var_os("RANK").is_some() || std::env::var_os("PMI_RANK").is_some() {
        return measure();
    }
    for ranks in option("--ranks").unwrap_or("2".into()).split(',') {
        run_ranks(ranks.parse()?)?;
    }
    Ok(())
}

/// Returns the value of an option of the command line.
fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

/// Runs this program once for each rank.
fn run_ranks(size: usize) -> Fallible {
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let spawn = |rank: usize| {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(std::env::args().skip(1));
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", size.to_string());
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", port.to_string()).spawn()
    };
    let mut ranks = (0..size).map(spawn).collect::<Result<Vec<_>, _>>()?;
    for rank in &mut ranks {
        if !rank.wait()?.success() {
            return Err("a rank has failed".into());
        }
    }
    Ok(())
}

fn measure() -> Fallible {
    let environment = anabranch::client::process_group::Environment::read(|name| std::env::var(name).ok())?;
    let transport = option("--transport").unwrap_or("auto".into()).parse()?;
    let options = GroupOptions { transport, ..GroupOptions::default() };
    let group = ProcessGroup::from_environment(&environment, options)?;
    let largest = (option("--mib").map_or(Ok(64), |mib| mib.parse::<usize>())? << 20).max(4096);
    let only = option("--bytes").map(|bytes| bytes.parse::<usize>()).transpose()?;
    let sizes = || only.map_or(SIZES.to_vec(), |bytes| vec![bytes]).into_iter();
    for name in option("--ops").unwrap_or(OPERATIONS.into()).split(',') {
        for bytes in sizes().filter(|bytes| only.is_some() || *bytes <= largest) {
            let bytes = if name == "barrier" { 0 } else { bytes };
            if matches!(name, "reduce_scatter" | "all_to_all") && bytes < 4096 {
                continue;
            }
            report(&group, name, bytes)?;
            if name == "barrier" {
                break;
            }
        }
    }
    Ok(())
}

/// Runs an operation many times, and prints its times on rank 0.
fn report(group: &ProcessGroup, name: &str, bytes: usize) -> Fallible {
    let tensor = input(group.size(), name, bytes)?;
    let mut times = timed(group, || run(group, name, &tensor))?;
    times.sort_unstable();
    if group.rank() == 0 {
        let micros = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
        let median = times[times.len() / 2];
        let bandwidth = (bytes as f64 / median.as_secs_f64()).round();
        let line = serde_json::json!({
            "peer": "anabranch", "op": name, "ranks": group.size(), "bytes": bytes, "us": micros(median),
            "min": micros(times[0]), "p90": micros(times[times.len() * 9 / 10]), "algbw": bandwidth,
            "busbw": (bandwidth * 2.0 * (group.size() - 1) as f64 / group.size() as f64).round(),
            "runs": times.len(),
        });
        println!("{line}");
    }
    Ok(())
}

/// Returns the input tensor of an operation, which has `bytes` bytes.
fn input(size: usize, name: &str, bytes: usize) -> Fallible<Tensor> {
    let count = (bytes / 4).max(1);
    let dims = match name {
        "reduce_scatter" | "all_to_all" => vec![size, count / size],
        _ => vec![count],
    };
    Ok(Tensor::full(1f32, Shape::new(&dims)?)?)
}

fn run(group: &ProcessGroup, name: &str, tensor: &Tensor) -> Fallible {
    let tensor = tensor.clone();
    match name {
        "all_reduce" => drop(group.all_reduce(tensor, Reduction::SUM)?),
        "all_reduce_bf16" => {
            let half = Tensor::zeros(DType::BFloat16, tensor.shape().clone())?;
            drop(group.all_reduce(half, Reduction::SUM)?);
        }
        "broadcast" => drop(group.broadcast(tensor, 0)?),
        "reduce" => drop(group.reduce(tensor, Reduction::SUM, 0)?),
        "all_gather" => drop(group.all_gather(tensor)?),
        "reduce_scatter" => drop(group.reduce_scatter(tensor, Reduction::SUM)?),
        "all_to_all" => drop(group.all_to_all(tensor)?),
        "barrier" => group.barrier()?,
        "ping_pong" => match group.rank() {
            0 => {
                group.send(tensor, 1)?;
                drop(group.recv(1)?);
            }
            1 => group.send(group.recv(0)?, 0)?,
            _ => {}
        },
        other => return Err(format!("{other} is none of {OPERATIONS}").into()),
    }
    Ok(())
}

/// Returns the times of several runs, after two runs that warm up. All ranks run equally often; rank 0 computes the
/// number from the time of one run.
fn timed(group: &ProcessGroup, run: impl Fn() -> Fallible) -> Fallible<Vec<Duration>> {
    let time = || {
        let start = Instant::now();
        run().map(|()| start.elapsed())
    };
    time()?;
    time()?;
    let one = time()?.as_secs_f64().max(1e-6);
    let count = ((BUDGET.as_secs_f64() / one) as usize).clamp(3, MAX_RUNS);
    let count = group.broadcast(Tensor::from(count as i64), 0)?.item::<i64>()?;
    (0..count).map(|_| time()).collect()
}
