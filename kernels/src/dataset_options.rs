//! Kernels of datasets that set options of the input pipeline. Only the option for the order of parallel results has an
//! effect; the elements are those of the input dataset.

use super::dataset_memory::handle_input;
use crate::objects::dataset::argument::{dataset, dataset_kernel};
use crate::objects::dataset::{message, transform};
use bytes::Bytes;
use device::Result;
use device::handle::{ObjectName, Owner};
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::resource::Resource;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("OptionsDataset", &[], |init| {
        let options = init.attr::<Bytes>("serialized_options")?;
        message::merged_options([&options, &options])?;
        dataset_kernel(init, move |ctx| transform::options(dataset(ctx, 0)?, &options))
    }),
    KernelDef::of("FinalizeDataset", &[], pass_through),
    KernelDef::of("RewriteDataset", &[], pass_through),
    KernelDef::of("ModelDataset", &[], pass_through),
    KernelDef::of("OptimizeDataset", &[], pass_through),
    KernelDef::of("OptimizeDatasetV2", &[], pass_through),
    KernelDef::of("AssertNextDataset", &[], pass_through),
    KernelDef::of("ExperimentalAssertNextDataset", &[], pass_through),
    KernelDef::of("NonSerializableDataset", &[], pass_through),
    KernelDef::of("ExperimentalNonSerializableDataset", &[], pass_through),
    KernelDef::of("MaxIntraOpParallelismDataset", &[], pass_through),
    KernelDef::of("ExperimentalMaxIntraOpParallelismDataset", &[], pass_through),
    KernelDef::of("PrivateThreadPoolDataset", &[], pass_through),
    KernelDef::of("ExperimentalPrivateThreadPoolDataset", &[], pass_through),
    KernelDef::of("AssertPrevDataset", &[], |init| {
        dataset_kernel(init, |ctx| {
            if ctx.input(1)?.shape().rank() != 1 {
                device::invalid!("transformations must be a vector");
            }
            dataset(ctx, 0)
        })
    }),
    KernelDef::of("ThreadPoolHandle", &[], thread_pool),
    KernelDef::of("ExperimentalThreadPoolHandle", &[], thread_pool),
    KernelDef::of("ThreadPoolDataset", &[], with_thread_pool),
    KernelDef::of("ExperimentalThreadPoolDataset", &[], with_thread_pool),
];

/// The object behind the handle of a thread pool. Datasets run on the threads of the process, so it has no threads.
#[derive(Debug)]
struct ThreadPool;

impl Resource for ThreadPool {
    const KIND: &'static str = "tensorflow::data::experimental::ThreadPoolResource";
}

fn thread_pool(init: &KernelInit<'_>) -> Result<Kernel> {
    if init.attr::<i64>("num_threads")? < 0 {
        device::invalid!("`num_threads` must be >= 0");
    }
    Owner::new(init, ObjectName::of(init, false)?).kernel(|_, _| Ok(ThreadPool), |_, _| Ok(()))
}

/// `ThreadPoolDataset`: the input, after a check that the thread pool exists.
fn with_thread_pool(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| {
        let handle = handle_input(ctx, 1)?;
        ctx.resources().lookup::<ThreadPool>(&handle.container, &handle.name)?;
        dataset(ctx, 0)
    })
}

fn pass_through(init: &KernelInit<'_>) -> Result<Kernel> {
    dataset_kernel(init, |ctx| dataset(ctx, 0))
}
