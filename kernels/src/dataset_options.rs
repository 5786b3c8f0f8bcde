//! Kernels of datasets that set options of the input pipeline. Only the option for the order of parallel results has an
//! effect; the elements are those of the input dataset.

use crate::objects::dataset::argument::{dataset, dataset_kernel};
use crate::objects::dataset::{message, transform};
use bytes::Bytes;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::{Error, Result};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("OptionsDataset", &[], |init| {
        let options = init.attr::<Bytes>("serialized_options")?;
        let deterministic = message::deterministic(&options)
            .ok_or_else(|| Error::invalid("serialized_options is not a serialized Options message"))?;
        dataset_kernel(move |ctx| transform::options(dataset(ctx, 0)?, deterministic))
    }),
    KernelDef::of("FinalizeDataset", &[], pass_through),
    KernelDef::of("RewriteDataset", &[], pass_through),
    KernelDef::of("ModelDataset", &[], pass_through),
    KernelDef::of("OptimizeDataset", &[], pass_through),
    KernelDef::of("OptimizeDatasetV2", &[], pass_through),
    KernelDef::of("AssertNextDataset", &[], pass_through),
    KernelDef::of("ExperimentalAssertNextDataset", &[], pass_through),
    KernelDef::of("BytesProducedStatsDataset", &[], pass_through),
    KernelDef::of("ExperimentalBytesProducedStatsDataset", &[], pass_through),
    KernelDef::of("LatencyStatsDataset", &[], pass_through),
    KernelDef::of("ExperimentalLatencyStatsDataset", &[], pass_through),
    KernelDef::of("NonSerializableDataset", &[], pass_through),
    KernelDef::of("ExperimentalNonSerializableDataset", &[], pass_through),
    KernelDef::of("MaxIntraOpParallelismDataset", &[], pass_through),
    KernelDef::of("ExperimentalMaxIntraOpParallelismDataset", &[], pass_through),
    KernelDef::of("PrivateThreadPoolDataset", &[], pass_through),
    KernelDef::of("ExperimentalPrivateThreadPoolDataset", &[], pass_through),
];

fn pass_through(_: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(|ctx| dataset(ctx, 0))
}
