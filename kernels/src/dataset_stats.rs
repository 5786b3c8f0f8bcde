//! Kernels of statistics of input pipelines: aggregators, and the datasets that record in them.

use super::dataset_memory::object_input;
use crate::objects::dataset::argument::{dataset, dataset_kernel, string};
use crate::objects::dataset::stats::{
    StatsAggregator, StatsDelivery, StatsScope, bytes_stats, latency_stats, with_stats,
};
use crate::objects::summary_writer::SummaryWriter;
use device::Result;
use device::handle::{ObjectName, Owner};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::Tensor;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("StatsAggregatorHandle", &[], |init| aggregator(init, StatsDelivery::Summary)),
    KernelDef::of("ExperimentalStatsAggregatorHandle", &[], |init| aggregator(init, StatsDelivery::Summary)),
    KernelDef::of("StatsAggregatorHandleV2", &[], |init| aggregator(init, StatsDelivery::Writer)),
    KernelDef::of("StatsAggregatorSummary", &[], summary),
    KernelDef::of("ExperimentalStatsAggregatorSummary", &[], summary),
    KernelDef::of("StatsAggregatorSetSummaryWriter", &[], |_| {
        Kernel::sync(|ctx| {
            let aggregator = object_input::<StatsAggregator>(ctx, 0)?;
            aggregator.set_writer(object_input::<SummaryWriter>(ctx, 1)?);
            Ok(())
        })
    }),
    KernelDef::of("SetStatsAggregatorDataset", &[], set_aggregator),
    KernelDef::of("ExperimentalSetStatsAggregatorDataset", &[], set_aggregator),
    KernelDef::of("BytesProducedStatsDataset", &[], bytes_produced),
    KernelDef::of("ExperimentalBytesProducedStatsDataset", &[], bytes_produced),
    KernelDef::of("LatencyStatsDataset", &[], latency),
    KernelDef::of("ExperimentalLatencyStatsDataset", &[], latency),
];

fn aggregator(init: &KernelInit<'_>, delivery: StatsDelivery) -> Result<Kernel> {
    let name = ObjectName::of(init, false)?;
    Owner::new(init, name).kernel(move |_, _| Ok(StatsAggregator::new(delivery)), |_, _| Ok(()))
}

/// `StatsAggregatorSummary`: outputs the `Summary` message of the values recorded so far.
fn summary(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let summary = object_input::<StatsAggregator>(ctx, 0)?.summary();
        ctx.set_output(0, Tensor::string(summary));
        Ok(())
    })
}

/// `SetStatsAggregatorDataset`: the input, whose datasets record in an aggregator. The prefix of counters is not used,
/// because no dataset has counters.
fn set_aggregator(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| {
        let aggregator = object_input(ctx, 1)?;
        let tag = name(ctx, 2, "tag")?;
        string(ctx, 3, "counter_prefix")?;
        with_stats(dataset(ctx, 0)?, StatsScope { aggregator, tag })
    })
}

fn bytes_produced(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| bytes_stats(dataset(ctx, 0)?, name(ctx, 1, "tag")?))
}

fn latency(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| latency_stats(dataset(ctx, 0)?, name(ctx, 1, "tag")?))
}

/// Returns the name of a statistic in input `i`.
fn name(ctx: &KernelContext<'_>, i: usize, input: &str) -> Result<String> {
    Ok(String::from_utf8_lossy(&string(ctx, i, input)?).into_owned())
}
