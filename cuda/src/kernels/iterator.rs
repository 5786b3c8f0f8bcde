//! Iterators whose elements come to the GPU before steps ask for them: those of a dataset that generates them here, as
//! `tf.data.experimental.prefetch_to_device` makes it. Where no device is asked for they are the CPU's.

use super::host::{on_demand, same_as_cpu};
use device::kernel::{ALL_ARGUMENTS, KernelDef};
use device::value::Placed;
use kernels::iterator::{get_next, get_next_as_optional};

const fn hosted(op: &'static str) -> KernelDef {
    on_demand(same_as_cpu(op, &[], ALL_ARGUMENTS))
}

const fn gives(op: &'static str) -> KernelDef {
    let def = KernelDef::of(op, &[], get_next);
    on_demand(KernelDef { any_memory: &["components"], ..def })
}

pub(super) const KERNELS: &[KernelDef] = &[
    hosted("GeneratorDataset"),
    hosted("PrefetchDataset"),
    hosted("Iterator"),
    hosted("IteratorV2"),
    hosted("AnonymousIterator"),
    hosted("AnonymousIteratorV2"),
    hosted("AnonymousIteratorV3"),
    hosted("MakeIterator"),
    hosted("DeleteIterator"),
    hosted("IteratorToStringHandle"),
    hosted("IteratorFromStringHandle"),
    hosted("IteratorFromStringHandleV2"),
    gives("IteratorGetNext"),
    gives("IteratorGetNextSync"),
    on_demand(KernelDef::of("IteratorGetNextAsOptional", &[], get_next_as_optional::<Placed>)),
];
