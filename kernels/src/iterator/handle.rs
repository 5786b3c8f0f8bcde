//! Iterators as resources with handles and names, for one device or several.

use super::super::dataset_memory::{anonymous, handle, handle_input};
use super::super::variable::shared_name;
use crate::objects::dataset::iterator::IteratorResource;
use crate::objects::dataset::multi_device::MultiDeviceIterator;
use crate::objects::dataset::{ElementSpec, message};
use bytes::Bytes;
use device::Device;
use device::Result;
use device::kernel::{AsyncContext, Kernel, KernelInit, Step};
use device::resource::{Resource, ResourceStore};
use graph::{DType, PartialShape, ResourceHandle, Shape, Tensor, Variant};
use std::marker::PhantomData;
use std::sync::Arc;

/// A resource that yields elements.
pub(crate) trait ElementIterator: Resource {
    /// Returns the dtypes and shapes that the iterator's elements must have.
    fn spec(&self) -> &ElementSpec;
}

impl ElementIterator for IteratorResource {
    fn spec(&self) -> &ElementSpec {
        &self.spec
    }
}

impl ElementIterator for MultiDeviceIterator {
    fn spec(&self) -> &ElementSpec {
        &self.spec
    }
}

/// Returns the dtypes and shapes of the elements, from the node's attributes.
pub(crate) fn spec(init: &KernelInit<'_>) -> Result<ElementSpec> {
    ElementSpec::new(
        init.attr::<Vec<DType>>("output_types")?,
        init.attr::<Vec<PartialShape>>("output_shapes")?,
    )
}

/// Returns the iterator named `name` in `container`, created by `make` if it does not exist.
fn find_or_make<T: ElementIterator>(
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

/// The name of a kernel's iterator, either shared between sessions or private to the kernel. A private iterator is
/// removed when the kernel is dropped.
#[derive(Debug)]
pub(super) struct IteratorName<T: ElementIterator> {
    container: String,
    name: String,
    /// The device that holds a private iterator; `None` if the iterator is shared.
    owner: Option<Arc<Device>>,
    iterator: PhantomData<fn() -> T>,
}

impl<T: ElementIterator> IteratorName<T> {
    /// Reads the name of a node; `kind` is the prefix of a generated name.
    pub(super) fn of(init: &KernelInit<'_>, kind: &str) -> Result<IteratorName<T>> {
        let (container, name) = shared_name(init)?;
        let is_shared = !init.attr::<Bytes>("shared_name")?.is_empty();
        Ok(IteratorName {
            container,
            name: if is_shared { name } else { format!("{}_{name}", anonymous(kind)) },
            owner: if is_shared { None } else { Some(init.device.clone()) },
            iterator: PhantomData,
        })
    }

    /// Returns the iterator, created by `make` if it does not exist, and its handle.
    pub(super) fn iterator(
        &self,
        device: &Arc<Device>,
        spec: &ElementSpec,
        make: impl FnOnce() -> T,
    ) -> Result<(Arc<T>, ResourceHandle)> {
        let iterator = find_or_make(device.resources(), &self.container, &self.name, spec, make)?;
        let mut handle = handle(device, self.name.clone(), T::KIND);
        if !self.container.is_empty() {
            handle.container = self.container.as_str().into();
        }
        Ok((iterator, handle))
    }
}

impl<T: ElementIterator> Drop for IteratorName<T> {
    fn drop(&mut self) {
        if let Some(device) = &self.owner {
            device.resources().remove::<T>(&self.container, &self.name);
        }
    }
}

/// Makes the kernel that outputs the handle of a named iterator, which `make` creates if it does not exist.
pub(super) fn named<T: ElementIterator>(
    init: &KernelInit<'_>,
    kind: &str,
    make: impl Fn(&ElementSpec) -> T + Send + Sync + 'static,
) -> Result<Kernel> {
    let (name, spec) = (IteratorName::of(init, kind)?, spec(init)?);
    Kernel::sync(move |ctx| {
        let (_, handle) = name.iterator(ctx.device(), &spec, || make(&spec))?;
        ctx.set_output(0, Tensor::resource(handle));
        Ok(())
    })
}

/// The lifetime of an iterator without a name.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Lifetime {
    /// The iterator exists until it is deleted.
    Device,
    /// The iterator exists until the step ends.
    Step,
}

/// Makes the kernel that creates a new iterator without a name and outputs its handle; output 1, if there is one, is
/// the iterator's deleter.
pub(super) fn anonymously<T: ElementIterator>(
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
        find_or_make(store, &handle.container, &handle.name, &spec, || make(&spec))?;
        ctx.set_output(0, Tensor::resource(handle));
        if ctx.num_outputs() > 1 {
            ctx.set_output(1, Tensor::variants(vec![Variant::EMPTY], Shape::scalar())?);
        }
        Ok(())
    })
}

/// Returns the iterator that a handle refers to, from the resources of the step or of the device.
fn find<T: ElementIterator>(store: &ResourceStore, step: &Step, handle: &ResourceHandle) -> Result<Arc<T>> {
    if let Some(iterator) = step.resources.find(&handle.container, &handle.name) {
        return Ok(iterator);
    }
    store.lookup(&handle.container, &handle.name)
}

/// Returns the iterator that the handle in input `i` refers to.
pub(super) fn iterator_of<T: ElementIterator>(ctx: &AsyncContext, i: usize) -> Result<Arc<T>> {
    let [handle] = ctx.input(i)?.as_resources()? else {
        device::invalid!("expected one resource handle");
    };
    let here = ctx.device.name().to_string();
    if *handle.device != *here {
        device::invalid!(
            "Trying to access resource {} located in device {} from device {here}",
            handle.name,
            handle.device
        );
    }
    find(ctx.device.resources(), &ctx.step, handle)
}

/// Makes the kernel that outputs an iterator's handle as a string, after checking that the iterator exists.
pub(super) fn to_string<T: ElementIterator>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let handle = handle_input(ctx, 0)?;
        find::<T>(ctx.resources(), ctx.step(), handle)?;
        let text = message::write_handle(handle);
        ctx.set_output(0, Tensor::string(text));
        Ok(())
    })
}

/// Makes the kernel that reads an iterator's handle from a string, and checks that the iterator exists and has the
/// elements that the node's attributes declare, if any.
pub(super) fn from_string<T: ElementIterator>(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtypes = init.attr::<Vec<DType>>("output_types")?;
    let shapes = init.attr::<Vec<PartialShape>>("output_shapes")?;
    Kernel::sync(move |ctx| {
        let handle = match ctx.input(0)?.as_strings()? {
            [text] => message::read_handle(text),
            _ => device::invalid!("string_handle must be a scalar"),
        };
        let Some(handle) = handle else {
            device::invalid!("Could not parse string_handle as a valid ResourceHandle");
        };
        let here = ctx.device().name().to_string();
        if *handle.device != *here {
            device::invalid!(
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

/// Makes the kernel that removes the iterator that a handle refers to.
pub(super) fn delete<T: ElementIterator>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let handle = handle_input(ctx, 0)?;
        ctx.resources().remove::<T>(&handle.container, &handle.name);
        Ok(())
    })
}
