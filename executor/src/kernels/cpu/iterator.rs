//! Kernels of iterators. What may wait runs on threads for datasets.

mod one_shot;

use super::dataset_memory::{anonymous, handle, handle_input};
use super::variable::shared_name;
use crate::dataset::iterator::IteratorResource;
use crate::dataset::{DatasetVariant, Element, ElementSpec, message, threads};
use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::{AsyncContext, Kernel, KernelContext, KernelDef, KernelInit, Step};
use crate::resource::{Resource, ResourceStore};
use crate::value::Value;
use bytes::Bytes;
use graph::{DType, Optional, PartialShape, ResourceHandle, Shape, Tensor, Variant};
use parking_lot::Mutex;
use smallvec::{SmallVec, smallvec};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Iterator", &[], named),
    KernelDef::of("IteratorV2", &[], named),
    KernelDef::of("AnonymousIterator", &[], |init| anonymously(init, Lifetime::Device)),
    KernelDef::of("AnonymousIteratorV2", &[], |init| anonymously(init, Lifetime::Device)),
    KernelDef::of("AnonymousIteratorV3", &[], |init| anonymously(init, Lifetime::Step)),
    KernelDef::of("MakeIterator", &[], |_| {
        apart(|ctx| {
            let dataset = DatasetVariant::of(ctx.input(0)?)?;
            iterator_of(ctx, 1)?.set(&dataset)?;
            Ok(SmallVec::new())
        })
    }),
    KernelDef::of("OneShotIterator", &[], one_shot::iterator),
    KernelDef::of("IteratorGetNext", &[], |init| get_next(init, deliver)),
    KernelDef::of("IteratorGetNextSync", &[], |init| get_next(init, deliver)),
    KernelDef::of("IteratorGetNextAsOptional", &[], |init| {
        get_next(init, |spec, element| {
            if let Some(element) = &element {
                spec.check(&ElementSpec::of(element))?;
            }
            let optional = element.map_or(Ok(Optional::NONE), Optional::of)?;
            Ok(smallvec![Tensor::variant(optional).into()])
        })
    }),
    KernelDef::of("IteratorToStringHandle", &[], |_| {
        Kernel::sync(|ctx| {
            let handle = handle_input(ctx, 0)?;
            find(ctx.resources(), ctx.step(), handle)?;
            let text = message::write_handle(handle);
            ctx.set_output(0, Tensor::string(text));
            Ok(())
        })
    }),
    KernelDef::of("IteratorFromStringHandle", &[], from_string),
    KernelDef::of("IteratorFromStringHandleV2", &[], from_string),
    KernelDef::of("IteratorGetDevice", &[], device_of),
    KernelDef::of("ExperimentalIteratorGetDevice", &[], device_of),
    KernelDef::of("DeleteIterator", &[], |_| {
        Kernel::sync(|ctx| {
            let handle = handle_input(ctx, 0)?;
            ctx.resources().remove::<IteratorResource>(&handle.container, &handle.name);
            Ok(())
        })
    }),
    KernelDef::absent("SerializeIterator"),
    KernelDef::absent("DeserializeIterator"),
    KernelDef::absent("MultiDeviceIterator"),
    KernelDef::absent("AnonymousMultiDeviceIterator"),
    KernelDef::absent("AnonymousMultiDeviceIteratorV3"),
    KernelDef::absent("MultiDeviceIteratorInit"),
    KernelDef::absent("MultiDeviceIteratorGetNextFromShard"),
    KernelDef::absent("MultiDeviceIteratorToStringHandle"),
    KernelDef::absent("MultiDeviceIteratorFromStringHandle"),
    KernelDef::absent("DeleteMultiDeviceIterator"),
];

/// A kernel that may wait: it runs on a thread for datasets.
pub(super) fn apart(
    compute: impl Fn(&mut AsyncContext) -> Result<SmallVec<[Value; 4]>> + Send + Sync + 'static,
) -> Result<Kernel> {
    let compute = Arc::new(compute);
    Kernel::asynchronous(move |ctx| {
        let compute = compute.clone();
        // The thread takes the context; if there is none to be had, it is still here for the answer.
        let waiting = Arc::new(Mutex::new(Some(ctx)));
        let taken = waiting.clone();
        let started = threads::spawn(move || {
            let Some(mut ctx) = taken.lock().take() else { return };
            let result = ctx.step.cancellation.check().and_then(|()| {
                catch_unwind(AssertUnwindSafe(|| compute(&mut ctx)))
                    .unwrap_or_else(|payload| Err(crate::executor::panicked(&ctx.node, payload.as_ref())))
            });
            ctx.done(result);
        });
        if let Err(error) = started
            && let Some(ctx) = waiting.lock().take()
        {
            ctx.done(Err(error));
        }
    })
}

/// What an iterator of this node gives.
pub(super) fn spec(init: &KernelInit<'_>) -> Result<ElementSpec> {
    ElementSpec::new(
        init.attr::<Vec<DType>>("output_types")?,
        init.attr::<Vec<PartialShape>>("output_shapes")?,
    )
}

/// The iterator of this name, made where there is none.
pub(super) fn shared(
    store: &ResourceStore,
    container: &str,
    name: &str,
    spec: &ElementSpec,
) -> Result<Arc<IteratorResource>> {
    let iterator = store.lookup_or_create(container, name, || Ok(IteratorResource::new(spec.clone())))?;
    spec.check(&iterator.spec)?;
    Ok(iterator)
}

/// The name under which a kernel's iterator is found: one that sessions share, or the kernel's own, whose iterator
/// ends with it.
#[derive(Debug)]
pub(super) struct Name {
    container: String,
    name: String,
    /// Where the kernel's own iterator is.
    own: Option<Arc<dyn Device>>,
}

impl Name {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Name> {
        let (container, name) = shared_name(init)?;
        if init.attr::<Bytes>("shared_name")?.is_empty() {
            let name = format!("{}_{name}", anonymous("Iterator"));
            return Ok(Name { container, name, own: Some(init.device.clone()) });
        }
        Ok(Name { container, name, own: None })
    }

    /// The iterator, made where there is none, and its handle.
    pub(super) fn iterator(
        &self,
        device: &Arc<dyn Device>,
        spec: &ElementSpec,
    ) -> Result<(Arc<IteratorResource>, ResourceHandle)> {
        let iterator = shared(device.resources(), &self.container, &self.name, spec)?;
        let mut handle = handle(device, self.name.clone(), IteratorResource::KIND);
        if !self.container.is_empty() {
            handle.container = self.container.as_str().into();
        }
        Ok((iterator, handle))
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        if let Some(device) = &self.own {
            device.resources().remove::<IteratorResource>(&self.container, &self.name);
        }
    }
}

fn named(init: &KernelInit<'_>) -> Result<Kernel> {
    let name = Name::of(init)?;
    let spec = spec(init)?;
    Kernel::sync(move |ctx| {
        let (_, handle) = name.iterator(ctx.device(), &spec)?;
        ctx.set_output(0, Tensor::resource(handle));
        Ok(())
    })
}

/// How long an iterator without a name is there.
#[derive(Clone, Copy, PartialEq)]
enum Lifetime {
    /// Until it is deleted.
    Device,
    Step,
}

fn anonymously(init: &KernelInit<'_>, lifetime: Lifetime) -> Result<Kernel> {
    let spec = spec(init)?;
    Kernel::sync(move |ctx| {
        let handle = handle(ctx.device(), anonymous("Iterator"), IteratorResource::KIND);
        let store = match lifetime {
            Lifetime::Device => ctx.resources(),
            Lifetime::Step => &ctx.step().resources,
        };
        shared(store, &handle.container, &handle.name, &spec)?;
        ctx.set_output(0, Tensor::resource(handle));
        if ctx.num_outputs() > 1 {
            ctx.set_output(1, Tensor::variants(vec![Variant::EMPTY], Shape::scalar())?);
        }
        Ok(())
    })
}

/// The iterator behind a handle: one of the device, or of the step.
fn find(store: &ResourceStore, step: &Step, handle: &ResourceHandle) -> Result<Arc<IteratorResource>> {
    if let Some(found) = step.resources.find(&handle.container, &handle.name) {
        return Ok(found);
    }
    store.lookup(&handle.container, &handle.name)
}

/// The iterator behind the handle in input `i`.
fn iterator_of(ctx: &AsyncContext, i: usize) -> Result<Arc<IteratorResource>> {
    let [handle] = ctx.input(i)?.as_resources()? else {
        crate::invalid!("expected one resource handle");
    };
    let here = ctx.device.name().to_string();
    if *handle.device != *here {
        crate::invalid!(
            "Trying to access resource {} located in device {} from device {here}",
            handle.name,
            handle.device
        );
    }
    find(ctx.device.resources(), &ctx.step, handle)
}

type Outputs = SmallVec<[Value; 4]>;

/// A kernel that asks for the next element and answers with what `convert` makes of it.
fn get_next(
    init: &KernelInit<'_>,
    convert: fn(&ElementSpec, Option<Element>) -> Result<Outputs>,
) -> Result<Kernel> {
    let spec = Arc::new(spec(init)?);
    Kernel::asynchronous(move |ctx| {
        let iterator = iterator_of(&ctx, 0);
        let cancellation = ctx.step.cancellation.clone();
        let spec = spec.clone();
        match iterator {
            Ok(iterator) => iterator.get_next(
                &cancellation,
                Box::new(move |result| ctx.done(result.and_then(|element| convert(&spec, element)))),
            ),
            Err(error) => ctx.done(Err(error)),
        }
    })
}

fn deliver(spec: &ElementSpec, element: Option<Element>) -> Result<Outputs> {
    let Some(element) = element else {
        return Err(Error::new(graph::Code::OutOfRange, "End of sequence"));
    };
    let is_expected = element.len() == spec.dtypes.len()
        && element.iter().zip(&spec.dtypes).all(|(tensor, dtype)| tensor.dtype() == *dtype);
    if !is_expected {
        spec.check(&ElementSpec::of(&element))?;
    }
    Ok(element.into_iter().map(Value::Host).collect())
}

/// Reads a handle from a string, and checks that the iterator is there and gives what is expected, where that is
/// said.
fn from_string(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtypes = init.attr::<Vec<DType>>("output_types")?;
    let shapes = init.attr::<Vec<PartialShape>>("output_shapes")?;
    Kernel::sync(move |ctx| {
        let handle = match ctx.input(0)?.as_strings()? {
            [text] => message::read_handle(text),
            _ => crate::invalid!("string_handle must be a scalar"),
        };
        let Some(handle) = handle else {
            crate::invalid!("Could not parse string_handle as a valid ResourceHandle");
        };
        let here = ctx.device().name().to_string();
        if *handle.device != *here {
            crate::invalid!(
                "Attempted create an iterator on device \"{here}\" from handle defined on device \"{}\"",
                handle.device
            );
        }
        let iterator = find(ctx.resources(), ctx.step(), &handle)?;
        if !dtypes.is_empty() {
            let shapes = match shapes.len() == dtypes.len() {
                true => shapes.clone(),
                false => vec![PartialShape::unknown(); dtypes.len()],
            };
            ElementSpec::new(dtypes.clone(), shapes)?.check(&iterator.spec)?;
        }
        ctx.set_output(0, Tensor::resource(handle));
        Ok(())
    })
}

fn device_of(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx: &mut KernelContext<'_>| {
        let device = handle_input(ctx, 0)?.device.to_string();
        ctx.set_output(0, Tensor::string(device));
        Ok(())
    })
}
