//! Kernels of datasets that select, repeat, reorder or cache the elements of their inputs.

use super::dataset_memory::{cache_source, seed_generator, seed_source};
use super::dataset_source::seeds;
use crate::objects::dataset::argument::{dataset, dataset_kernel, integer, string};
use crate::objects::dataset::cache::{CacheSource, cache};
use crate::objects::dataset::prefetch::Prefetch;
use crate::objects::dataset::shuffle::{SeedSource, Shuffle};
use crate::objects::dataset::{PerPipeline, transform};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("ConcatenateDataset", &[], |_| {
        dataset_kernel(|ctx| transform::concatenate(dataset(ctx, 0)?, dataset(ctx, 1)?))
    }),
    KernelDef::of("ZipDataset", &[], |_| {
        dataset_kernel(|ctx| {
            transform::zip((0..ctx.num_inputs()).map(|i| dataset(ctx, i)).collect::<Result<_>>()?)
        })
    }),
    KernelDef::of("RepeatDataset", &[], |_| {
        dataset_kernel(|ctx| transform::repeat(dataset(ctx, 0)?, integer(ctx, 1, "count")?))
    }),
    KernelDef::of("TakeDataset", &[], |_| {
        dataset_kernel(|ctx| transform::take(dataset(ctx, 0)?, integer(ctx, 1, "count")?))
    }),
    KernelDef::of("SkipDataset", &[], |_| {
        dataset_kernel(|ctx| transform::skip(dataset(ctx, 0)?, integer(ctx, 1, "count")?))
    }),
    KernelDef::of("ShardDataset", &[], |init| {
        let require_non_empty = init.attr::<bool>("require_non_empty")?;
        dataset_kernel(move |ctx| {
            let (shards, index) = (integer(ctx, 1, "num_shards")?, integer(ctx, 2, "index")?);
            transform::shard(dataset(ctx, 0)?, shards, index, require_non_empty)
        })
    }),
    KernelDef::of("AutoShardDataset", &[], auto_shard),
    KernelDef::of("ExperimentalAutoShardDataset", &[], auto_shard),
    KernelDef::of("ShuffleDataset", &[], |init| {
        let reshuffle = init.attr::<bool>("reshuffle_each_iteration")?;
        dataset_kernel(move |ctx| {
            let seeds = SeedSource::new(seeds(ctx, 2)?, reshuffle);
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, 1)
        })
    }),
    KernelDef::of("ShuffleDatasetV2", &[], |_| {
        dataset_kernel(|ctx| {
            let seeds = SeedSource::Shared(seed_generator(ctx, 2)?);
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, 1)
        })
    }),
    KernelDef::of("ShuffleDatasetV3", &[], |init| {
        let reshuffle = init.attr::<bool>("reshuffle_each_iteration")?;
        dataset_kernel(move |ctx| {
            let seeds = seed_source(ctx, 4, seeds(ctx, 2)?, reshuffle)?;
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, 1)
        })
    }),
    KernelDef::of("ShuffleAndRepeatDataset", &[], |init| {
        let reshuffle = init.attr::<bool>("reshuffle_each_iteration")?;
        dataset_kernel(move |ctx| {
            let seeds = SeedSource::new(seeds(ctx, 2)?, reshuffle);
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, integer(ctx, 4, "count")?)
        })
    }),
    KernelDef::of("ShuffleAndRepeatDatasetV2", &[], |init| {
        let reshuffle = init.attr::<bool>("reshuffle_each_iteration")?;
        dataset_kernel(move |ctx| {
            let seeds = seed_source(ctx, 5, seeds(ctx, 2)?, reshuffle)?;
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, integer(ctx, 4, "count")?)
        })
    }),
    KernelDef::of("CacheDataset", &[], |_| {
        dataset_kernel(|ctx| {
            check_in_memory(ctx)?;
            cache(dataset(ctx, 0)?, CacheSource::Own(PerPipeline::default()))
        })
    }),
    KernelDef::of("CacheDatasetV2", &[], |_| {
        dataset_kernel(|ctx| {
            check_in_memory(ctx)?;
            cache(dataset(ctx, 0)?, cache_source(ctx, 2)?)
        })
    }),
    KernelDef::of("PrefetchDataset", &[], |_| {
        dataset_kernel(|ctx| Prefetch::dataset(dataset(ctx, 0)?, buffer_size(ctx)?))
    }),
    KernelDef::of("UniqueDataset", &[], unique),
    KernelDef::of("ExperimentalUniqueDataset", &[], unique),
    KernelDef::of("IgnoreErrorsDataset", &[], ignore_errors),
    KernelDef::of("ExperimentalIgnoreErrorsDataset", &[], ignore_errors),
    KernelDef::of("AssertCardinalityDataset", &[], |_| {
        dataset_kernel(|ctx| transform::assert_cardinality(dataset(ctx, 0)?, integer(ctx, 1, "cardinality")?))
    }),
    KernelDef::of("DirectedInterleaveDataset", &[], |init| {
        let stop_on_empty = init.attr::<bool>("stop_on_empty_dataset")?;
        dataset_kernel(move |ctx| {
            let inputs = (1..ctx.num_inputs()).map(|i| dataset(ctx, i)).collect::<Result<_>>()?;
            transform::directed_interleave(dataset(ctx, 0)?, inputs, stop_on_empty)
        })
    }),
];

fn auto_shard(init: &KernelInit<'_>) -> Result<Kernel> {
    let policy = init.attr::<i64>("auto_shard_policy")?;
    dataset_kernel(move |ctx| {
        let (workers, index) = (integer(ctx, 1, "num_workers")?, integer(ctx, 2, "index")?);
        transform::auto_shard(dataset(ctx, 0)?, workers, index, policy)
    })
}

fn buffer_size(ctx: &KernelContext<'_>) -> Result<i64> {
    integer(ctx, 1, "buffer_size")
}

/// Checks that a cache is in memory, because caches in files are not supported.
fn check_in_memory(ctx: &KernelContext<'_>) -> Result<()> {
    match string(ctx, 1, "filename")?.is_empty() {
        true => Ok(()),
        false => Err(Error::unimplemented(format!("{} with a file name", ctx.node().op.name()))),
    }
}

fn unique(_: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(|ctx| transform::unique(dataset(ctx, 0)?))
}

fn ignore_errors(_: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(|ctx| transform::ignore_errors(dataset(ctx, 0)?))
}
