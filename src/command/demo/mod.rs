//! `anabranch demo`: trains a model on one device, on towers in one graph, or by workers in separate processes, with
//! parameter servers, synchronously or asynchronously, or without.

mod cluster;
mod digits;
mod layers;
mod mode;
mod problem;
mod random;
mod replica;
mod report;
mod training;
mod wide_and_deep;

use super::launch::{self, LaunchFlags};
use clap::{Args, ValueEnum};
use device::gpu_options::GpuSelection;
use mode::{Compute, Mode, REPLICAS};
use std::error::Error;
use training::Plan;
use worker::gpus;

#[derive(Debug, Args)]
pub(crate) struct DemoFlags {
    /// The model to train
    #[arg(long, value_enum, default_value_t = Model::Digits)]
    model: Model,

    /// How the model is replicated
    #[arg(long, value_enum, default_value_t = Mode::BetweenGraph)]
    mode: Mode,

    /// Training steps of all replicas together; by default the model's own number
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,

    /// Examples in each step; by default the model's own number. Workers that combine their gradients share them
    #[arg(long)]
    batch: Option<usize>,

    /// Compute the model on the first GPU of each client's process or worker; parameter servers use no GPU
    #[arg(long)]
    gpu: bool,

    #[command(flatten)]
    launch: LaunchFlags,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Model {
    /// A classifier of handwritten digits
    Digits,
    /// A model of clicks by synthetic users: linear weights of single features and of a pair of features, and
    /// dense layers over embeddings, with tables cut into shards
    WideAndDeep,
}

pub(crate) fn run(flags: &DemoFlags) -> Result<(), Box<dyn Error + Send + Sync>> {
    // A launcher with a single process makes no difference to the demo.
    let environment = launch::find()?.filter(|environment| environment.size > 1);
    let processes = environment.as_ref().map(|environment| environment.size);
    check(flags, processes)?;
    let problem = match flags.model {
        Model::Digits => digits::problem()?,
        Model::WideAndDeep => wide_and_deep::problem()?,
    };
    let plan = Plan {
        mode: flags.mode,
        compute: if flags.gpu { Compute::OnGpu } else { Compute::Anywhere },
        steps: flags.steps.unwrap_or(problem.steps),
        batch: flags.batch.unwrap_or(problem.batch),
    };
    let outcome = match environment {
        None => Some(training::run(&problem, plan)?),
        Some(environment) => training::run_launched(&problem, plan, flags.launch.meet(&environment)?)?,
    };
    if let Some(outcome) = outcome {
        report::print(&outcome);
    }
    Ok(())
}

/// Checks that the flags agree with each other and with the number of processes that a launcher has started, if one has.
fn check(flags: &DemoFlags, processes: Option<usize>) -> Result<(), Box<dyn Error + Send + Sync>> {
    if let Some(count) = processes
        && flags.mode != Mode::AllReduce
    {
        let mode = flags.mode.name();
        let text = format!("--mode {mode} starts its own processes, but a launcher has started {count}");
        return Err(format!("{text}: use --mode all-reduce, or start this command once").into());
    }
    let sharers = processes.unwrap_or(REPLICAS as usize);
    if let Some(batch) = flags.batch
        && (batch == 0 || !batch.is_multiple_of(sharers))
    {
        let wanted = format!("it must be a multiple of {sharers}, and more than 0");
        return Err(format!("--batch is {batch}: {wanted}").into());
    }
    if flags.gpu
        && let Err(why) = gpus::find_gpus(&GpuSelection::All)
    {
        return Err(format!("--gpu: {why}").into());
    }
    if flags.mode == Mode::Hybrid && flags.model == Model::Digits {
        let model = "--mode hybrid places tables, and the model digits has none";
        return Err(format!("{model}: use --model wide-and-deep, or --mode all-reduce").into());
    }
    Ok(())
}
