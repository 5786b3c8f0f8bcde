//! Kernels of iterators. A kernel that may block runs on one of the threads for datasets.

mod handle;
mod one_shot;
pub(super) mod several;

use self::handle::{Lifetime, anonymously, delete, from_string, iterator_of, named, spec, to_string};
use super::dataset_memory::handle_input;
use crate::objects::dataset::iterator::IteratorResource;
use crate::objects::dataset::on_device::{components, spec_of};
use crate::objects::dataset::state::ExternalStatePolicy;
use crate::objects::dataset::{DatasetVariant, Element, ElementSpec, Pull, threads};
use bytes::Bytes;
use device::kernel::{AsyncContext, Kernel, KernelContext, KernelDef, KernelInit};
use device::transfer::all_to_device;
use device::value::{ListElement, Value};
use device::{Error, Result};
use graph::tensor::IteratorState;
use graph::{Optional, Shape, Tensor, Variant};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Iterator", &[], |init| named(init, KIND, unset)),
    KernelDef::of("IteratorV2", &[], |init| named(init, KIND, unset)),
    KernelDef::of("AnonymousIterator", &[], |init| anonymously(init, Lifetime::Device, KIND, unset)),
    KernelDef::of("AnonymousIteratorV2", &[], |init| anonymously(init, Lifetime::Device, KIND, unset)),
    KernelDef::of("AnonymousIteratorV3", &[], |init| anonymously(init, Lifetime::Step, KIND, unset)),
    KernelDef::of("MakeIterator", &[], |_| {
        dataset_thread_kernel(|ctx| {
            let dataset = DatasetVariant::of(ctx.input(0)?)?;
            iterator_of::<IteratorResource>(ctx, 1)?.set(&dataset)?;
            Ok(SmallVec::new())
        })
    }),
    KernelDef::of("OneShotIterator", &[], one_shot::iterator),
    KernelDef::of("IteratorGetNext", &[], get_next),
    KernelDef::of("IteratorGetNextSync", &[], get_next),
    KernelDef::of("IteratorGetNextAsOptional", &[], get_next_as_optional::<Tensor>),
    KernelDef::of("IteratorToStringHandle", &[], to_string::<IteratorResource>),
    KernelDef::of("IteratorFromStringHandle", &[], from_string::<IteratorResource>),
    KernelDef::of("IteratorFromStringHandleV2", &[], from_string::<IteratorResource>),
    KernelDef::of("IteratorGetDevice", &[], device_of),
    KernelDef::of("ExperimentalIteratorGetDevice", &[], device_of),
    KernelDef::of("IteratorGetModelProto", &[], model),
    KernelDef::of("DeleteIterator", &[], delete::<IteratorResource>),
    KernelDef::of("SerializeIterator", &[], serialize),
    KernelDef::of("DeserializeIterator", &[], deserialize),
];

/// The largest number of bytes of a saved state: a message of a variant cannot be longer than 2 GiB, and needs some
/// bytes for its fields.
const MAX_STATE: usize = i32::MAX as usize - 1024;

/// The prefix of the names of anonymous iterators.
const KIND: &str = "Iterator";

/// Returns an iterator without a dataset.
fn unset(spec: &ElementSpec) -> IteratorResource {
    IteratorResource::new(spec.clone())
}

/// Makes a kernel that may block; it runs on a thread for datasets.
pub(super) fn dataset_thread_kernel(
    compute: impl Fn(&mut AsyncContext) -> Result<SmallVec<[Value; 4]>> + Send + Sync + 'static,
) -> Result<Kernel> {
    let compute = Arc::new(compute);
    Kernel::asynchronous(move |ctx| {
        let compute = compute.clone();
        // The thread takes the context out of the cell; if no thread can be started the context is still in the
        // cell and receives the error.
        let cell = Arc::new(Mutex::new(Some(ctx)));
        let shared = cell.clone();
        let started = threads::spawn(move || {
            let Some(mut ctx) = shared.lock().take() else { return };
            let result = ctx.step.cancellation.check().and_then(|()| {
                catch_unwind(AssertUnwindSafe(|| compute(&mut ctx)))
                    .unwrap_or_else(|payload| Err(Error::panicked(&ctx.node, payload.as_ref())))
            });
            ctx.done(result);
        });
        if let Err(error) = started
            && let Some(ctx) = cell.lock().take()
        {
            ctx.done(Err(error));
        }
    })
}

/// `IteratorGetNext`: outputs the next element, in the memory of the kernel's device.
pub fn get_next(init: &KernelInit<'_>) -> Result<Kernel> {
    next_element_kernel(init, |spec, element, ctx| match element {
        Err(error) => ctx.done(Err(error)),
        Ok(None) => ctx.done(Err(end_of_sequence())),
        Ok(Some(element)) => {
            let is_expected = element.len() == spec.dtypes.len()
                && element.iter().zip(&spec.dtypes).all(|(tensor, dtype)| tensor.dtype() == *dtype);
            if !is_expected && let Err(error) = spec.check(&spec_of(&element)) {
                return ctx.done(Err(error));
            }
            all_to_device(&ctx.device, components(element), ctx.done);
        }
    })
}

fn end_of_sequence() -> Error {
    Error::new(graph::Code::OutOfRange, "End of sequence")
}

/// `IteratorGetNextAsOptional`: like [`get_next`], but the end of the sequence is an empty optional, not an error.
pub fn get_next_as_optional<T: ListElement>(init: &KernelInit<'_>) -> Result<Kernel> {
    next_element_kernel(init, |spec, element, ctx| {
        let AsyncContext { device, done, .. } = ctx;
        let to_output =
            |optional: graph::Result<Optional<T>>| Ok(smallvec![Tensor::variant(optional?).into()]);
        match element {
            Err(error) => done(Err(error)),
            Ok(None) => done(to_output(Ok(Optional::NONE))),
            Ok(Some(element)) => {
                if let Err(error) = spec.check(&spec_of(&element)) {
                    return done(Err(error));
                }
                let finish = move |components: Result<SmallVec<[Value; 4]>>| {
                    let held = components.and_then(|all| all.into_iter().map(T::of).collect::<Result<_>>());
                    done(held.and_then(|held| to_output(Optional::of(held))));
                };
                all_to_device(&device, components(element), Box::new(finish));
            }
        }
    })
}

/// A function that completes a kernel with an element, with the end of the sequence (`None`), or with an error.
type ElementHandler = fn(&ElementSpec, Result<Option<Element>>, AsyncContext);

/// Makes a kernel that requests the next element of the iterator in input 0 and passes it to `handle`.
fn next_element_kernel(init: &KernelInit<'_>, handle: ElementHandler) -> Result<Kernel> {
    let spec = Arc::new(spec(init)?);
    Kernel::asynchronous(move |ctx| match iterator_of::<IteratorResource>(&ctx, 0) {
        Ok(iterator) => {
            let (cancellation, spec) = (ctx.step.cancellation.clone(), spec.clone());
            iterator.get_next(&cancellation, Box::new(move |element| handle(&spec, element, ctx)));
        }
        Err(error) => ctx.done(Err(error)),
    })
}

/// `SerializeIterator`: outputs a vector of one variant that holds the state of the iterator.
fn serialize(init: &KernelInit<'_>) -> Result<Kernel> {
    let policy = ExternalStatePolicy::from_number(init.attr("external_state_policy")?)?;
    Kernel::asynchronous(move |ctx| match iterator_of::<IteratorResource>(&ctx, 0) {
        Ok(iterator) => {
            let cancellation = ctx.step.cancellation.clone();
            let finish = move |state: Result<Bytes>| {
                let variant = |state: Bytes| {
                    if state.len() > MAX_STATE {
                        let message = format!(
                            "the state of the iterator has {} bytes, more than {MAX_STATE}; make the buffers of its \
                             dataset smaller, such as those of shuffle and prefetch",
                            state.len()
                        );
                        return Err(Error::new(graph::Code::ResourceExhausted, message));
                    }
                    let variant = Variant::new(IteratorState(state));
                    Ok(smallvec![Tensor::variants(vec![variant], Shape::new(&[1])?)?.into()])
                };
                ctx.done(state.and_then(variant));
            };
            iterator.save(policy, &cancellation, Box::new(finish));
        }
        Err(error) => ctx.done(Err(error)),
    })
}

/// `IteratorGetModelProto`: outputs the `ModelProto` message of the iterator's pipeline.
fn model(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::asynchronous(move |ctx| match iterator_of::<IteratorResource>(&ctx, 0) {
        Ok(iterator) => {
            let cancellation = ctx.step.cancellation.clone();
            let finish = move |model: Result<Bytes>| {
                ctx.done(model.map(|model| smallvec![Tensor::string(model).into()]));
            };
            iterator.model(&cancellation, Box::new(finish));
        }
        Err(error) => ctx.done(Err(error)),
    })
}

/// `DeserializeIterator`: moves an iterator to the position of a saved state.
fn deserialize(_: &KernelInit<'_>) -> Result<Kernel> {
    dataset_thread_kernel(|ctx| {
        let iterator = iterator_of::<IteratorResource>(ctx, 0)?;
        let [variant] = ctx.input(1)?.as_variants()? else {
            device::invalid!(
                "serialized must hold one iterator state, as SerializeIterator of this server wrote it, got {}",
                ctx.input(1)?.num_elements()
            );
        };
        let state = variant.expect::<IteratorState>("the state of an iterator")?;
        iterator.restore(state.0.clone(), &Pull { cancellation: ctx.step.cancellation.clone() })?;
        Ok(SmallVec::new())
    })
}

/// Outputs the name of the device of an iterator's handle.
fn device_of(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx: &mut KernelContext<'_>| {
        let device = handle_input(ctx, 0)?.device.to_string();
        ctx.set_output(0, Tensor::string(device));
        Ok(())
    })
}
