//! Iterators on a GPU, whose elements are prefetched into the GPU's memory;
//! `tf.data.experimental.prefetch_to_device` builds such an iterator over a `GeneratorDataset` on the GPU. The
//! ops are placed on the CPU unless the graph asks for a GPU.

use super::host::{on_demand, same_as_cpu};
use device::kernel::{ALL_ARGUMENTS, KernelDef};
use device::value::AnyTensor;
use kernels::plan::iterator::{get_next, get_next_as_optional};

/// Defines a kernel for a GPU that is the CPU's kernel of the op, with all arguments in host memory.
const fn hosted(op: &'static str) -> KernelDef {
    on_demand(same_as_cpu(op, &[], ALL_ARGUMENTS))
}

/// Defines the kernel of an op that outputs an iterator's next element.
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
    on_demand(KernelDef::of("IteratorGetNextAsOptional", &[], get_next_as_optional::<AnyTensor>)),
];
