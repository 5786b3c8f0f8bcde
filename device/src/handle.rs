//! Ops that create an object of a device and output a handle to it, and inputs that refer to such an object: by a
//! `resource` tensor, or in older graphs by a reference to the strings `[container, name]`.

use crate::device::Device;
use crate::error::{Error, Result};
use crate::kernel::{AsyncContext, Done, Kernel, KernelContext, KernelInit};
use crate::resource::{Resource, ResourceStore};
use crate::value::Value;
use crate::variable::Variable;
use bytes::Bytes;
use graph::{DType, ResourceHandle, Shape, Tensor};
use parking_lot::Mutex;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// The container and the name of the object that a node creates.
#[derive(Clone, Debug)]
pub struct ObjectName {
    pub container: Arc<str>,
    pub name: Arc<str>,
    /// True if no other node can refer to the object; it is then removed together with its kernel.
    pub is_private: bool,
}

impl ObjectName {
    /// Returns the node's `container` and `shared_name`. An empty `shared_name` stands for the node's own name if
    /// `by_node`, else for a name that is unique in the process.
    pub fn of(init: &KernelInit<'_>, by_node: bool) -> Result<ObjectName> {
        let container = match &*container(init)? {
            "" => init.device.resources().default_container().clone(),
            named => named.into(),
        };
        let shared = init.attr::<String>("shared_name")?;
        if shared.starts_with('_') {
            crate::invalid!("shared_name cannot start with '_':{shared}");
        }
        Ok(match &*shared {
            "" if by_node => ObjectName { container, name: init.node.name.clone(), is_private: false },
            "" => ObjectName { container, name: private_name(&init.node.name), is_private: true },
            shared => ObjectName { container, name: shared.into(), is_private: false },
        })
    }

    /// Returns a name that is unique in the process, in the device's default container.
    pub fn anonymous(init: &KernelInit<'_>) -> ObjectName {
        let container = init.device.resources().default_container().clone();
        ObjectName { container, name: private_name(&init.node.name), is_private: true }
    }
}

/// Returns the node's `container` attribute; empty means the device's default container.
pub fn container(init: &KernelInit<'_>) -> Result<String> {
    let container = init.attr::<String>("container")?;
    let valid = |(i, c): (usize, char)| {
        c.is_ascii_alphanumeric() || c == '.' || (i > 0 && matches!(c, '_' | '-' | '/'))
    };
    if !container.char_indices().all(valid) {
        crate::invalid!("container contains invalid characters: {container}");
    }
    Ok(container)
}

fn private_name(node: &str) -> Arc<str> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("_{}_{node}", NEXT.fetch_add(1, Ordering::Relaxed)).into()
}

/// A node's access to the object that it creates: the first run creates the object in the device's resource store,
/// later runs find it there.
pub struct Owner<T: Resource> {
    device: Arc<Device>,
    name: ObjectName,
    by_reference: bool,
    cached: Mutex<Option<CachedHandle<T>>>,
}

/// The handle that a node output last, and the object behind the handle. `removals` is the value that
/// [`ResourceStore::removals`] of the device's store had then: the node looks the object up again if that value has
/// changed, because the object may have been removed from the store.
struct CachedHandle<T> {
    removals: u64,
    object: Weak<T>,
    handle: Value,
}

impl<T: Resource> Owner<T> {
    /// Creates the access of a node to the object `name`. If the node's first output is a reference, the node outputs
    /// the strings `[container, name]` instead of a `resource` handle.
    pub fn new(init: &KernelInit<'_>, name: ObjectName) -> Owner<T> {
        let by_reference = init.outputs.first().is_some_and(|port| port.is_ref);
        let (device, cached) = (init.device.clone(), Mutex::new(None));
        Owner { device, name, by_reference, cached }
    }

    /// Creates the kernel of an op that outputs the handle of its object. `make` creates the object if there is no
    /// object of the name; `check` validates an existing object.
    pub fn kernel(
        self,
        make: impl Fn(&KernelContext<'_>, &Arc<str>) -> Result<T> + Send + Sync + 'static,
        check: impl Fn(&KernelContext<'_>, &T) -> Result<()> + Send + Sync + 'static,
    ) -> Result<Kernel> {
        Kernel::sync(move |ctx| {
            let handle = self.handle(|name| make(ctx, name), |object| check(ctx, object))?;
            ctx.set_output(0, handle);
            Ok(())
        })
    }

    fn handle(
        &self,
        make: impl FnOnce(&Arc<str>) -> Result<T>,
        check: impl FnOnce(&T) -> Result<()>,
    ) -> Result<Value> {
        let store = self.device.resources();
        let mut cached = self.cached.lock();
        let removals = store.removals();
        if let Some(cached) = &*cached
            && cached.removals == removals
            && cached.object.strong_count() > 0
        {
            return Ok(cached.handle.clone());
        }
        let object = self.object(make)?;
        check(&object)?;
        let handle = match &*cached {
            Some(cached) => cached.handle.clone(),
            None => self.new_handle()?,
        };
        *cached = Some(CachedHandle { removals, object: Arc::downgrade(&object), handle: handle.clone() });
        Ok(handle)
    }

    /// Returns the node's object, for ops that output no handle. The object is created by `make` if it does not exist.
    pub fn object(&self, make: impl FnOnce(&Arc<str>) -> Result<T>) -> Result<Arc<T>> {
        let ObjectName { container, name, is_private } = &self.name;
        let store = self.device.resources();
        match is_private {
            true => store.lookup_or_create_private(container, name, || make(name)),
            false => store.lookup_or_create(container, name, || make(name)),
        }
    }

    fn new_handle(&self) -> Result<Value> {
        if self.by_reference {
            return string_handle(&self.name.container, &self.name.name);
        }
        Ok(Value::Host(Tensor::resource(ResourceHandle {
            device: self.device.name().to_string().into(),
            container: self.name.container.clone(),
            name: self.name.name.clone(),
            hash_code: hash_of(T::KIND),
            type_name: T::KIND.into(),
            dtypes_and_shapes: Vec::new(),
        })))
    }
}

impl<T: Resource> Drop for Owner<T> {
    fn drop(&mut self) {
        if self.name.is_private {
            self.device.resources().remove::<T>(&self.name.container, &self.name.name);
        }
    }
}

impl<T: Resource> fmt::Debug for Owner<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({} {}/{})", T::KIND, self.name.container, self.name.name)
    }
}

/// Creates a reference to a tensor of the two strings `[container, name]`, by which older graphs refer to an object.
pub fn string_handle(container: &str, name: &str) -> Result<Value> {
    let text = |s: &str| Bytes::copy_from_slice(s.as_bytes());
    let strings = Tensor::strings(vec![text(container), text(name)], Shape::new(&[2])?)?;
    let variable = Variable::new(name, DType::String, strings.shape().into());
    *variable.lock() = Some(strings);
    Ok(Value::Ref(Arc::new(variable)))
}

/// Returns the hash of the name of a resource type ([`Resource::KIND`]), by which a handle identifies the type.
pub fn hash_of(kind: &str) -> u64 {
    // FNV-1a, because the hash must be the same in every process.
    kind.bytes()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A kernel's input that refers to an object of the device's resource store. The input caches the object, and looks it
/// up again after any object was removed from the store.
pub struct HandleInput<T: Resource> {
    cached: Mutex<Option<CachedObject<T>>>,
}

struct CachedObject<T> {
    removals: u64,
    container: Arc<str>,
    name: Arc<str>,
    object: Weak<T>,
}

impl<T: Resource> Default for HandleInput<T> {
    fn default() -> Self {
        HandleInput { cached: Mutex::new(None) }
    }
}

impl<T: Resource> HandleInput<T> {
    /// Returns the object behind a handle, or the result of `otherwise` if the handle refers to none.
    pub fn get_or(
        &self,
        device: &Arc<Device>,
        handle: &ResourceHandle,
        otherwise: impl FnOnce(&ResourceStore, &ResourceHandle) -> Result<Arc<T>>,
    ) -> Result<Arc<T>> {
        let store = device.resources();
        // The removal count is read before the lookup, so that a removal in between is noticed at the next call.
        let removals = store.removals();
        if let Some(object) = self.cached(removals, &handle.container, &handle.name) {
            return Ok(object);
        }
        let here = device.name().to_string();
        if *handle.device != *here {
            crate::invalid!(
                "Trying to access resource {} located in device {} from device {here}",
                handle.name,
                handle.device
            );
        }
        let object = match store.find::<T>(&handle.container, &handle.name) {
            Some(object) => object,
            None => otherwise(store, handle)?,
        };
        self.cache(removals, &handle.container, &handle.name, &object);
        Ok(object)
    }

    /// Returns the object that an input refers to, by a `resource` handle or by the strings `[container, name]`.
    ///
    /// # Errors
    /// `NotFound` if there is no such object.
    pub fn get(&self, device: &Arc<Device>, input: &Value) -> Result<Arc<T>> {
        match input {
            Value::Host(tensor) if tensor.dtype() == DType::Resource => {
                self.get_or(device, single_handle(tensor)?, |store, handle| {
                    store.lookup(&handle.container, &handle.name)
                })
            }
            Value::Host(tensor) => self.named(device, tensor),
            Value::Ref(variable) => self.named(device, &variable.value()?),
            other => Err(Error::internal(format!("a handle was expected, got {other:?}"))),
        }
    }

    fn named(&self, device: &Arc<Device>, strings: &Tensor) -> Result<Arc<T>> {
        let [container, name] = strings.as_strings()? else {
            crate::invalid!("Handle must have two elements, but had shape: {}", strings.shape());
        };
        let text = |bytes: &Bytes| -> Result<Arc<str>> {
            let text = std::str::from_utf8(bytes);
            Ok(text.map_err(|_| Error::invalid("a handle that is no text"))?.into())
        };
        let (container, name) = (text(container)?, text(name)?);
        let store = device.resources();
        let removals = store.removals();
        if let Some(object) = self.cached(removals, &container, &name) {
            return Ok(object);
        }
        let object = store.lookup(&container, &name)?;
        self.cache(removals, &container, &name, &object);
        Ok(object)
    }

    fn cached(&self, removals: u64, container: &str, name: &str) -> Option<Arc<T>> {
        let cached = self.cached.lock();
        let cached = cached.as_ref()?;
        let is_same = cached.removals == removals && *cached.name == *name && *cached.container == *container;
        if is_same { cached.object.upgrade() } else { None }
    }

    fn cache(&self, removals: u64, container: &Arc<str>, name: &Arc<str>, object: &Arc<T>) {
        let (container, name, object) = (container.clone(), name.clone(), Arc::downgrade(object));
        *self.cached.lock() = Some(CachedObject { removals, container, name, object });
    }
}

impl<T: Resource> fmt::Debug for HandleInput<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HandleInput({})", T::KIND)
    }
}

/// Creates the asynchronous kernel of an operation on the object that input 0 refers to. `start` must call `done`
/// eventually, or return it together with an error.
pub fn operation<T: Resource>(
    start: impl Fn(&Arc<T>, AsyncContext) -> Result<(), (Done, Error)> + Send + Sync + 'static,
) -> Result<Kernel> {
    let handle = HandleInput::<T>::default();
    Kernel::asynchronous(move |ctx| {
        let value = ctx.inputs.first().cloned().unwrap_or_default();
        let failed = match handle.get(&ctx.device, &value) {
            Ok(object) => start(&object, ctx).err(),
            Err(error) => Some((ctx.done, error)),
        };
        if let Some((done, error)) = failed {
            done(Err(error));
        }
    })
}

/// Returns the handle of a `resource` tensor with one element.
pub fn single_handle(tensor: &Tensor) -> Result<&ResourceHandle> {
    match tensor.as_resources()? {
        [handle] => Ok(handle),
        many => Err(Error::invalid(format!("expected one resource handle, got {}", many.len()))),
    }
}
