//! Kernels of datasets that say how their input is to run. The order of what runs in parallel is all that is heeded;
//! elements are those of the input.

use super::dataset_argument::{dataset, makes};
use crate::dataset::{message, transform};
use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelDef, KernelInit};
use bytes::Bytes;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("OptionsDataset", &[], |init| {
        let options = init.attr::<Bytes>("serialized_options")?;
        let deterministic = message::deterministic(&options)
            .ok_or_else(|| Error::invalid("serialized_options is no message of options"))?;
        makes(move |ctx| transform::options(dataset(ctx, 0)?, deterministic))
    }),
    KernelDef::of("FinalizeDataset", &[], same),
    KernelDef::of("RewriteDataset", &[], same),
    KernelDef::of("ModelDataset", &[], same),
    KernelDef::of("OptimizeDataset", &[], same),
    KernelDef::of("OptimizeDatasetV2", &[], same),
    KernelDef::of("AssertNextDataset", &[], same),
    KernelDef::of("ExperimentalAssertNextDataset", &[], same),
    KernelDef::of("BytesProducedStatsDataset", &[], same),
    KernelDef::of("ExperimentalBytesProducedStatsDataset", &[], same),
    KernelDef::of("LatencyStatsDataset", &[], same),
    KernelDef::of("ExperimentalLatencyStatsDataset", &[], same),
    KernelDef::of("NonSerializableDataset", &[], same),
    KernelDef::of("ExperimentalNonSerializableDataset", &[], same),
    KernelDef::of("MaxIntraOpParallelismDataset", &[], same),
    KernelDef::of("ExperimentalMaxIntraOpParallelismDataset", &[], same),
    KernelDef::of("PrivateThreadPoolDataset", &[], same),
    KernelDef::of("ExperimentalPrivateThreadPoolDataset", &[], same),
];

fn same(_: &KernelInit<'_>) -> Result<Kernel> {
    makes(|ctx| dataset(ctx, 0))
}
