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

use clap::{Args, ValueEnum};
use device::gpu_options::GpuSelection;
use mode::{Compute, Mode, REPLICAS};
use std::error::Error;
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

    /// Examples in each step; by default the model's own number
    #[arg(long)]
    batch: Option<usize>,

    /// Compute the model on the first GPU of each client's process or worker; parameter servers use no GPU
    #[arg(long)]
    gpu: bool,
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
    if let Some(batch) = flags.batch
        && (batch == 0 || !batch.is_multiple_of(REPLICAS as usize))
    {
        let wanted = format!("it must be a multiple of {REPLICAS}, and more than 0");
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
    let problem = match flags.model {
        Model::Digits => digits::problem()?,
        Model::WideAndDeep => wide_and_deep::problem()?,
    };
    let compute = if flags.gpu { Compute::OnGpu } else { Compute::Anywhere };
    report::print(&training::run(&problem, flags.mode, compute, flags.steps, flags.batch)?);
    Ok(())
}
