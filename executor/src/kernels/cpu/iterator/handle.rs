//! Iterators behind handles and names, of one device or of several.

use super::super::dataset_memory::{anonymous, handle, handle_input};
use super::super::variable::shared_name;
use crate::dataset::iterator::IteratorResource;
use crate::dataset::shards::MultiDeviceIterator;
use crate::dataset::{ElementSpec, message};
use crate::device::Device;
use crate::error::Result;
use crate::kernel::{AsyncContext, Kernel, KernelInit, Step};
use crate::resource::{Resource, ResourceStore};
use bytes::Bytes;
use graph::{DType, PartialShape, ResourceHandle, Shape, Tensor, Variant};
use std::marker::PhantomData;
use std::sync::Arc;

/// What gives elements to who asks for them.
pub(in crate::kernels::cpu) trait Iterates: Resource {
    /// What these must be.
    fn spec(&self) -> &ElementSpec;
}

impl Iterates for IteratorResource {
    fn spec(&self) -> &ElementSpec {
        &self.spec
    }
}

impl Iterates for MultiDeviceIterator {
    fn spec(&self) -> &ElementSpec {
        &self.spec
    }
}

/// What an iterator of this node gives.
pub(in crate::kernels::cpu) fn spec(init: &KernelInit<'_>) -> Result<ElementSpec> {
    ElementSpec::new(
        init.attr::<Vec<DType>>("output_types")?,
        init.attr::<Vec<PartialShape>>("output_shapes")?,
    )
}

/// The iterator of this name, made where there is none.
fn shared<T: Iterates>(
    store: &ResourceStore,
    container: &str,
    name: &str,
    spec: &ElementSpec,
    make: impl FnOnce() -> T,
) -> Result<Arc<T>> {
    let iterator = store.lookup_or_create(container, name, || Ok(make()))?;
    spec.check(iterator.spec())?;
    Ok(iterator)
}

/// The name under which a kernel's iterator is found: one that sessions share, or the kernel's own, whose iterator
/// ends with it.
#[derive(Debug)]
pub(super) struct Name<T: Iterates> {
    container: String,
    name: String,
    /// Where the kernel's own iterator is.
    own: Option<Arc<Device>>,
    iterator: PhantomData<fn() -> T>,
}

impl<T: Iterates> Name<T> {
    /// `kind` is what those that nobody names are called by.
    pub(super) fn of(init: &KernelInit<'_>, kind: &str) -> Result<Name<T>> {
        let (container, name) = shared_name(init)?;
        let is_shared = !init.attr::<Bytes>("shared_name")?.is_empty();
        Ok(Name {
            container,
            name: if is_shared { name } else { format!("{}_{name}", anonymous(kind)) },
            own: if is_shared { None } else { Some(init.device.clone()) },
            iterator: PhantomData,
        })
    }

    /// The iterator, made where there is none, and its handle.
    pub(super) fn iterator(
        &self,
        device: &Arc<Device>,
        spec: &ElementSpec,
        make: impl FnOnce() -> T,
    ) -> Result<(Arc<T>, ResourceHandle)> {
        let iterator = shared(device.resources(), &self.container, &self.name, spec, make)?;
        let mut handle = handle(device, self.name.clone(), T::KIND);
        if !self.container.is_empty() {
            handle.container = self.container.as_str().into();
        }
        Ok((iterator, handle))
    }
}

impl<T: Iterates> Drop for Name<T> {
    fn drop(&mut self) {
        if let Some(device) = &self.own {
            device.resources().remove::<T>(&self.container, &self.name);
        }
    }
}

/// A kernel of an iterator that has a name.
pub(super) fn named<T: Iterates>(
    init: &KernelInit<'_>,
    kind: &str,
    make: impl Fn(&ElementSpec) -> T + Send + Sync + 'static,
) -> Result<Kernel> {
    let (name, spec) = (Name::of(init, kind)?, spec(init)?);
    Kernel::sync(move |ctx| {
        let (_, handle) = name.iterator(ctx.device(), &spec, || make(&spec))?;
        ctx.set_output(0, Tensor::resource(handle));
        Ok(())
    })
}

/// How long an iterator without a name is there.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Lifetime {
    /// Until it is deleted.
    Device,
    Step,
}

/// A kernel of an iterator without a name; its second output, if it has one, is for who deletes it.
pub(super) fn anonymously<T: Iterates>(
    init: &KernelInit<'_>,
    lifetime: Lifetime,
    kind: &'static str,
    make: impl Fn(&ElementSpec) -> T + Send + Sync + 'static,
) -> Result<Kernel> {
    let spec = spec(init)?;
    Kernel::sync(move |ctx| {
        let handle = handle(ctx.device(), anonymous(kind), T::KIND);
        let store = match lifetime {
            Lifetime::Device => ctx.resources(),
            Lifetime::Step => &ctx.step().resources,
        };
        shared(store, &handle.container, &handle.name, &spec, || make(&spec))?;
        ctx.set_output(0, Tensor::resource(handle));
        if ctx.num_outputs() > 1 {
            ctx.set_output(1, Tensor::variants(vec![Variant::EMPTY], Shape::scalar())?);
        }
        Ok(())
    })
}

/// The iterator behind a handle: one of the device, or of the step.
fn find<T: Iterates>(store: &ResourceStore, step: &Step, handle: &ResourceHandle) -> Result<Arc<T>> {
    if let Some(found) = step.resources.find(&handle.container, &handle.name) {
        return Ok(found);
    }
    store.lookup(&handle.container, &handle.name)
}

/// The iterator behind the handle in input `i`.
pub(super) fn iterator_of<T: Iterates>(ctx: &AsyncContext, i: usize) -> Result<Arc<T>> {
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

/// Gives a handle as a string, of an iterator that is there.
pub(super) fn to_string<T: Iterates>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let handle = handle_input(ctx, 0)?;
        find::<T>(ctx.resources(), ctx.step(), handle)?;
        let text = message::write_handle(handle);
        ctx.set_output(0, Tensor::string(text));
        Ok(())
    })
}

/// Reads a handle from a string, and checks that the iterator is there and gives what is expected, where that is
/// said.
pub(super) fn from_string<T: Iterates>(init: &KernelInit<'_>) -> Result<Kernel> {
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
        let iterator = find::<T>(ctx.resources(), ctx.step(), &handle)?;
        if !dtypes.is_empty() {
            let shapes = match shapes.len() == dtypes.len() {
                true => shapes.clone(),
                false => vec![PartialShape::unknown(); dtypes.len()],
            };
            ElementSpec::new(dtypes.clone(), shapes)?.check(iterator.spec())?;
        }
        ctx.set_output(0, Tensor::resource(handle));
        Ok(())
    })
}

/// Ends an iterator.
pub(super) fn delete<T: Iterates>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let handle = handle_input(ctx, 0)?;
        ctx.resources().remove::<T>(&handle.container, &handle.name);
        Ok(())
    })
}
