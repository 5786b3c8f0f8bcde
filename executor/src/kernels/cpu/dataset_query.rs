//! Kernels that ask something of a dataset: how many elements, the one that it has, all of them reduced.

use super::dataset_argument::{dataset, makes};
use super::iterator::apart;
use crate::dataset::{DatasetVariant, MakeContext, Pull};
use crate::error::Result;
use crate::kernel::{Kernel, KernelDef, KernelInit};
use crate::value::Value;
use graph::Tensor;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("DatasetCardinality", &[], cardinality),
    KernelDef::of("ExperimentalDatasetCardinality", &[], cardinality),
    KernelDef::of("DatasetToSingleElement", &[], |_| {
        apart(|ctx| {
            let dataset = DatasetVariant::of(ctx.input(0)?)?;
            let mut iterator = dataset.iterator(&MakeContext::root(dataset.deterministic))?;
            let pull = Pull { cancellation: ctx.step.cancellation.clone() };
            let Some(element) = iterator.next(&pull)? else { crate::invalid!("Dataset was empty.") };
            if iterator.next(&pull)?.is_some() {
                crate::invalid!("Dataset had more than one element.");
            }
            Ok(element.into_iter().map(Value::Host).collect())
        })
    }),
    KernelDef::of("WrapDatasetVariant", &[], |_| makes(|ctx| dataset(ctx, 0))),
    KernelDef::of("UnwrapDatasetVariant", &[], |_| makes(|ctx| dataset(ctx, 0))),
];

fn cardinality(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let cardinality = dataset(ctx, 0)?.cardinality;
        ctx.set_output(0, Tensor::scalar(cardinality));
        Ok(())
    })
}
