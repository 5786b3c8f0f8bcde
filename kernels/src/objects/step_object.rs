//! Resources that are dropped at the end of their step, and the handles that refer to them. The form of a handle
//! depends on the op's version: a resource, a pair of strings, or a reference to a pair of strings.

use bytes::Bytes;
use device::Device;
use device::kernel::{KernelContext, KernelInit};
use device::resource::Resource;
use device::value::Value;
use device::variable::Variable;
use device::{Error, Result};
use graph::{DType, PartialShape, ResourceHandle, Shape, Tensor};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Returns `<name>_<number>` with a number that no earlier call has returned, because each run of a node creates a new
/// object.
pub(crate) fn unique_name(name: &str) -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{name}_{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the base name of a node's objects: the attribute, or the node's name if the attribute is empty.
pub(crate) fn base_name(init: &KernelInit<'_>, attr: &str) -> Result<Arc<str>> {
    let name = init.attr::<String>(attr)?;
    Ok(if name.is_empty() { init.node.name.clone() } else { name.into() })
}

/// An arbitrary hash code in the handles of step objects, by which they differ from the handles of other resources.
const HASH_CODE: u64 = 0x5374_6570_4f62_6a65;

/// Sets output 0 to the handle of an object, in the form that the kernel's op has.
pub(crate) fn set_handle<T: Resource>(
    ctx: &mut KernelContext<'_>,
    kind: HandleKind,
    container: &str,
    name: &str,
) -> Result<()> {
    let pair = || {
        let texts = [container, name].map(|text| Bytes::copy_from_slice(text.as_bytes()));
        Tensor::strings(texts.to_vec(), Shape::new(&[2])?)
    };
    let value = match kind {
        HandleKind::Resource => resource_handle::<T>(ctx.device(), container, name),
        HandleKind::Strings => Value::Host(pair()?),
        HandleKind::Ref => {
            let variable = Variable::new(name, DType::String, PartialShape::vector(Some(2)));
            *variable.lock() = Some(pair()?);
            Value::Ref(Arc::new(variable))
        }
    };
    ctx.set_output(0, value);
    Ok(())
}

/// Returns a resource handle of an object of a step on `device`.
pub(crate) fn resource_handle<T: Resource>(device: &Device, container: &str, name: &str) -> Value {
    Value::Host(Tensor::resource(ResourceHandle {
        device: device.name().to_string().into(),
        container: container.into(),
        name: name.into(),
        hash_code: HASH_CODE,
        type_name: T::KIND.into(),
        dtypes_and_shapes: Vec::new(),
    }))
}

/// The type of tensor by which an op names its object: a resource handle, two strings, or a reference to two strings.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HandleKind {
    Resource,
    Strings,
    Ref,
}

impl HandleKind {
    /// Returns the kind of handle that the node has as its first output.
    pub(crate) fn of_output(init: &KernelInit<'_>) -> HandleKind {
        match init.outputs.first() {
            Some(port) if port.is_ref => HandleKind::Ref,
            Some(port) if port.dtype == DType::String => HandleKind::Strings,
            _ => HandleKind::Resource,
        }
    }
}

/// Returns the container and the name of the object that input 0 refers to.
pub(crate) fn address(ctx: &KernelContext<'_>) -> Result<(Arc<str>, Arc<str>)> {
    let referenced;
    let tensor = match ctx.inputs.first() {
        Some(Value::Ref(variable)) => {
            referenced = variable.value()?;
            &referenced
        }
        _ => ctx.input(0)?,
    };
    if tensor.dtype() == DType::Resource {
        let [handle] = tensor.as_resources()? else {
            device::invalid!("a handle must be one resource, got shape {}", tensor.shape());
        };
        return Ok((handle.container.clone(), handle.name.clone()));
    }
    let [container, name] = tensor.as_strings()? else {
        device::invalid!("a handle must be two strings, got shape {}", tensor.shape());
    };
    let text = |bytes: &Bytes| -> Result<Arc<str>> {
        Ok(std::str::from_utf8(bytes).map_err(|_| Error::invalid("a handle must be text"))?.into())
    };
    Ok((text(container)?, text(name)?))
}

/// Returns the object that input 0 refers to.
pub(crate) fn object<T: Resource>(ctx: &KernelContext<'_>) -> Result<Arc<T>> {
    let (container, name) = address(ctx)?;
    ctx.step().resources.lookup(&container, &name)
}
