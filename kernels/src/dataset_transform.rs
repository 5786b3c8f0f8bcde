//! Kernels of datasets that select, repeat, reorder or cache the elements of their inputs.

use super::dataset_memory::{cache_source, seed_generator, seed_source};
use super::dataset_source::seeds;
use crate::objects::dataset::argument::{dataset, dataset_kernel, integer, string, tensors};
use crate::objects::dataset::cache::{CacheSource, cache};
use crate::objects::dataset::file_cache::file_cache;
use crate::objects::dataset::global_shuffle::global_shuffle;
use crate::objects::dataset::prefetch::Prefetch;
use crate::objects::dataset::sampling::{sample, weighted_flat_map};
use crate::objects::dataset::shuffle::{SeedSource, Shuffle};
use crate::objects::dataset::speed::{choose_fastest, sleep};
use crate::objects::dataset::{Dataset, PerPipeline, transform};
use crate::objects::io::path_of;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::Tensor;
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("ConcatenateDataset", &[], |init| {
        dataset_kernel(init, |ctx| transform::concatenate(dataset(ctx, 0)?, dataset(ctx, 1)?))
    }),
    KernelDef::of("ZipDataset", &[], |init| {
        dataset_kernel(init, |ctx| {
            transform::zip((0..ctx.num_inputs()).map(|i| dataset(ctx, i)).collect::<Result<_>>()?)
        })
    }),
    KernelDef::of("RepeatDataset", &[], |init| {
        dataset_kernel(init, |ctx| transform::repeat(dataset(ctx, 0)?, integer(ctx, 1, "count")?))
    }),
    KernelDef::of("TakeDataset", &[], |init| {
        dataset_kernel(init, |ctx| transform::take(dataset(ctx, 0)?, integer(ctx, 1, "count")?))
    }),
    KernelDef::of("SkipDataset", &[], |init| {
        dataset_kernel(init, |ctx| transform::skip(dataset(ctx, 0)?, integer(ctx, 1, "count")?))
    }),
    KernelDef::of("ShardDataset", &[], |init| {
        let require_non_empty = init.attr::<bool>("require_non_empty")?;
        dataset_kernel(init, move |ctx| {
            let (shards, index) = (integer(ctx, 1, "num_shards")?, integer(ctx, 2, "index")?);
            transform::shard(dataset(ctx, 0)?, shards, index, require_non_empty)
        })
    }),
    KernelDef::of("AutoShardDataset", &[], auto_shard),
    KernelDef::of("ExperimentalAutoShardDataset", &[], auto_shard),
    KernelDef::of("ShuffleDataset", &[], |init| {
        let reshuffle = init.attr::<bool>("reshuffle_each_iteration")?;
        dataset_kernel(init, move |ctx| {
            let seeds = SeedSource::new(seeds(ctx, 2)?, reshuffle);
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, 1)
        })
    }),
    KernelDef::of("ShuffleDatasetV2", &[], |init| {
        dataset_kernel(init, |ctx| {
            let seeds = SeedSource::Shared(seed_generator(ctx, 2)?);
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, 1)
        })
    }),
    KernelDef::of("ShuffleDatasetV3", &[], |init| {
        let reshuffle = init.attr::<bool>("reshuffle_each_iteration")?;
        dataset_kernel(init, move |ctx| {
            let seeds = seed_source(ctx, 4, seeds(ctx, 2)?, reshuffle)?;
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, 1)
        })
    }),
    KernelDef::of("GlobalShuffleDataset", &[], |init| {
        let reshuffle = init.attr::<bool>("reshuffle_each_iteration")?;
        dataset_kernel(init, move |ctx| {
            let seeds = seed_source(ctx, 3, seeds(ctx, 1)?, reshuffle)?;
            global_shuffle(dataset(ctx, 0)?, seeds)
        })
    }),
    KernelDef::of("ShuffleAndRepeatDataset", &[], |init| {
        let reshuffle = init.attr::<bool>("reshuffle_each_iteration")?;
        dataset_kernel(init, move |ctx| {
            let seeds = SeedSource::new(seeds(ctx, 2)?, reshuffle);
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, integer(ctx, 4, "count")?)
        })
    }),
    KernelDef::of("ShuffleAndRepeatDatasetV2", &[], |init| {
        let reshuffle = init.attr::<bool>("reshuffle_each_iteration")?;
        dataset_kernel(init, move |ctx| {
            let seeds = seed_source(ctx, 5, seeds(ctx, 2)?, reshuffle)?;
            Shuffle::dataset(dataset(ctx, 0)?, buffer_size(ctx)?, seeds, integer(ctx, 4, "count")?)
        })
    }),
    KernelDef::of("CacheDataset", &[], |init| {
        dataset_kernel(init, |ctx| {
            let filename = string(ctx, 1, "filename")?;
            if !filename.is_empty() {
                return file_cache(dataset(ctx, 0)?, path_of(filename));
            }
            cache(dataset(ctx, 0)?, CacheSource::Own(PerPipeline::default()))
        })
    }),
    KernelDef::of("CacheDatasetV2", &[], |init| {
        dataset_kernel(init, |ctx| {
            let filename = string(ctx, 1, "filename")?;
            if !filename.is_empty() {
                return file_cache(dataset(ctx, 0)?, path_of(filename));
            }
            cache(dataset(ctx, 0)?, cache_source(ctx, 2)?)
        })
    }),
    KernelDef::of("PrefetchDataset", &[], |init| {
        dataset_kernel(init, |ctx| Prefetch::dataset(dataset(ctx, 0)?, buffer_size(ctx)?))
    }),
    KernelDef::of("UniqueDataset", &[], unique),
    KernelDef::of("ExperimentalUniqueDataset", &[], unique),
    KernelDef::of("IgnoreErrorsDataset", &[], ignore_errors),
    KernelDef::of("ExperimentalIgnoreErrorsDataset", &[], ignore_errors),
    KernelDef::of("AssertCardinalityDataset", &[], |init| {
        dataset_kernel(init, |ctx| {
            transform::assert_cardinality(dataset(ctx, 0)?, integer(ctx, 1, "cardinality")?)
        })
    }),
    KernelDef::of("DirectedInterleaveDataset", &[], |init| {
        let stop_on_empty = init.attr::<bool>("stop_on_empty_dataset")?;
        dataset_kernel(init, move |ctx| {
            transform::directed_interleave(dataset(ctx, 0)?, datasets(ctx, 1)?, stop_on_empty)
        })
    }),
    KernelDef::of("ExperimentalDirectedInterleaveDataset", &[], |init| {
        dataset_kernel(init, |ctx| transform::directed_interleave(dataset(ctx, 0)?, datasets(ctx, 1)?, false))
    }),
    KernelDef::of("SleepDataset", &[], delayed),
    KernelDef::of("ExperimentalSleepDataset", &[], delayed),
    KernelDef::of("ChooseFastestDataset", &[], fastest),
    KernelDef::of("ExperimentalChooseFastestDataset", &[], fastest),
    KernelDef::of("SamplingDataset", &[], |init| {
        dataset_kernel(init, |ctx| {
            let rate = ctx.input(1)?;
            if rate.num_elements() != 1 {
                device::invalid!("rate must be a scalar");
            }
            sample(dataset(ctx, 0)?, rate.item::<f32>()?, seeds(ctx, 2)?)
        })
    }),
    KernelDef::of("WeightedFlatMapDataset", &[], |init| {
        let inputs = init.attr::<i64>("N")? as usize;
        dataset_kernel(init, move |ctx| {
            let weight = |weight: Tensor| match weight.num_elements() {
                1 => Ok(weight.item::<f64>()?),
                _ => device::invalid!("`weights` must be scalars, got shape {}", weight.shape()),
            };
            let weights = tensors(ctx, inputs..ctx.num_inputs())?.into_iter().map(weight);
            let weights = weights.collect::<Result<Vec<f64>>>()?;
            weighted_flat_map((0..inputs).map(|i| dataset(ctx, i)).collect::<Result<_>>()?, &weights)
        })
    }),
];

/// Returns the datasets in the inputs from input `start` on.
fn datasets(ctx: &KernelContext<'_>, start: usize) -> Result<Vec<Arc<Dataset>>> {
    (start..ctx.num_inputs()).map(|i| dataset(ctx, i)).collect()
}

/// `SleepDataset`: delays each element.
fn delayed(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| sleep(dataset(ctx, 0)?, integer(ctx, 1, "sleep_microseconds")?))
}

/// `ChooseFastestDataset`: the elements of the fastest of several equal datasets.
fn fastest(init: &KernelInit<'_>) -> Result<Kernel> {
    let experiments = init.attr::<i64>("num_experiments")?;
    dataset_kernel(init, move |ctx| choose_fastest(datasets(ctx, 0)?, experiments))
}

fn auto_shard(init: &KernelInit<'_>) -> Result<Kernel> {
    let policy = init.attr::<i64>("auto_shard_policy")?;
    dataset_kernel(init, move |ctx| {
        let (workers, index) = (integer(ctx, 1, "num_workers")?, integer(ctx, 2, "index")?);
        transform::auto_shard(dataset(ctx, 0)?, workers, index, policy)
    })
}

fn buffer_size(ctx: &KernelContext<'_>) -> Result<i64> {
    integer(ctx, 1, "buffer_size")
}

fn unique(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| transform::unique(dataset(ctx, 0)?))
}

fn ignore_errors(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| transform::ignore_errors(dataset(ctx, 0)?))
}
