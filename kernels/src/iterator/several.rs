//! Kernels of iterators whose elements are distributed over several devices.

use super::handle::{Lifetime, anonymously, delete, from_string, iterator_of, named, to_string};
use super::{dataset_thread_kernel, end_of_sequence};
use crate::objects::dataset::multi_device::MultiDeviceIterator;
use crate::objects::dataset::on_device::{components, spec_of};
use crate::objects::dataset::{DatasetVariant, ElementSpec, Pull};
use device::Result;
use device::kernel::{KernelDef, KernelInit};
use graph::Tensor;
use smallvec::smallvec;

/// The prefix of the names of anonymous iterators.
const KIND: &str = "MultiDeviceIterator";

pub(crate) const KERNELS: &[KernelDef] = &[
    KernelDef::of("MultiDeviceIterator", &[], |init| named(init, KIND, iterator_maker(init)?)),
    KernelDef::of("AnonymousMultiDeviceIterator", &[], |init| {
        anonymously(init, Lifetime::Device, KIND, iterator_maker(init)?)
    }),
    KernelDef::of("AnonymousMultiDeviceIteratorV3", &[], |init| {
        anonymously(init, Lifetime::Step, KIND, iterator_maker(init)?)
    }),
    KernelDef::of("MultiDeviceIteratorInit", &[], |_| {
        dataset_thread_kernel(|ctx| {
            let (dataset, most) = (DatasetVariant::of(ctx.input(0)?)?, ctx.input(2)?.item::<i64>()?);
            let incarnation = iterator_of::<MultiDeviceIterator>(ctx, 1)?.set(&dataset, most)?;
            Ok(smallvec![Tensor::from(incarnation).into()])
        })
    }),
    KernelDef::of("MultiDeviceIteratorGetNextFromShard", &[], |init| {
        let spec = super::handle::spec(init)?;
        dataset_thread_kernel(move |ctx| {
            let iterator = iterator_of::<MultiDeviceIterator>(ctx, 0)?;
            let (shard, incarnation) = (ctx.input(1)?.item::<i32>()?, ctx.input(2)?.item::<i64>()?);
            let pull = Pull { cancellation: ctx.step.cancellation.clone() };
            let element = iterator.next(shard, incarnation, &pull)?.ok_or_else(end_of_sequence)?;
            spec.check(&spec_of(&element))?;
            Ok(components(element))
        })
    }),
    KernelDef::of("MultiDeviceIteratorToStringHandle", &[], to_string::<MultiDeviceIterator>),
    KernelDef::of("MultiDeviceIteratorFromStringHandle", &[], from_string::<MultiDeviceIterator>),
    KernelDef::of("DeleteMultiDeviceIterator", &[], delete::<MultiDeviceIterator>),
];

/// Returns a function that makes iterators for as many devices as the node names.
fn iterator_maker(
    init: &KernelInit<'_>,
) -> Result<impl Fn(&ElementSpec) -> MultiDeviceIterator + Send + Sync + 'static> {
    let devices = init.attr::<Vec<bytes::Bytes>>("devices")?.len();
    Ok(move |spec: &ElementSpec| MultiDeviceIterator::new(spec.clone(), devices))
}
