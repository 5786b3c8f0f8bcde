//! Kernels of tensors that stay on a device between the steps of a session. The tensors are dropped with the session,
//! because its kernel object owns them.

use device::Device;
use device::handle::hash_of;
use device::journal::Replica;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::resource::Resource;
use device::value::{AnyTensor, ListElement, Value};
use device::{Error, Result};
use graph::{Code, DType, ResourceHandle, Tensor};
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("GetSessionHandle", &[], store_tensor),
    KernelDef::of("GetSessionHandleV2", &[], store_tensor),
    KernelDef::of("GetSessionTensor", &[], |init| {
        let dtype = init.attr::<DType>("dtype")?;
        Kernel::sync(move |ctx| {
            let name = name(ctx)?;
            let Some(kept) = ctx.resources().find::<SessionTensor>(CONTAINER, &name) else {
                return Err(missing(&name));
            };
            if kept.0.dtype() != dtype {
                device::invalid!("The tensor with handle '{name}' is of {}, not of {dtype}", kept.0.dtype());
            }
            ctx.set_output(0, Value::from(kept.0.clone()));
            Ok(())
        })
    }),
    KernelDef::of("DeleteSessionTensor", &[], |_| {
        Kernel::sync(|ctx| {
            let name = name(ctx)?;
            if ctx.resources().remove::<SessionTensor>(CONTAINER, &name) {
                Ok(())
            } else {
                Err(missing(&name))
            }
        })
    }),
];

/// A container name that clients cannot use.
const CONTAINER: &str = "_session_tensors";

/// A tensor that stays on a device until the session ends or the client deletes the tensor.
#[derive(Debug)]
struct SessionTensor(AnyTensor);

impl Resource for SessionTensor {
    const KIND: &'static str = "SessionTensor";

    // No replica is needed, because the session ends with the process.
    fn replica(_: &Arc<SessionTensor>) -> Replica {
        Replica::NotNeeded
    }
}

fn name(ctx: &KernelContext<'_>) -> Result<String> {
    match ctx.input(0)?.as_strings()? {
        [name] => Ok(String::from_utf8_lossy(name).into_owned()),
        many => Err(Error::invalid(format!("expected one handle, got {}", many.len()))),
    }
}

fn missing(name: &str) -> Error {
    let message = format!("The tensor with handle '{name}' is not in the session store.");
    Error::new(Code::InvalidArgument, message)
}

/// The names of the tensors that one node has stored; dropping the list removes the tensors.
struct StoredByNode {
    device: Arc<Device>,
    names: Mutex<Vec<Arc<str>>>,
}

impl Drop for StoredByNode {
    fn drop(&mut self) {
        for name in self.names.lock().iter() {
            self.device.resources().remove::<SessionTensor>(CONTAINER, name);
        }
    }
}

fn store_tensor(init: &KernelInit<'_>) -> Result<Kernel> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let kept = StoredByNode { device: init.device.clone(), names: Mutex::default() };
    let (node, device) = (init.node.name.clone(), init.device.name().to_string());
    let by_resource = init.output_type(0) == DType::Resource;
    Kernel::sync(move |ctx| {
        let value = AnyTensor::persisted(ctx.take_value(0), ctx.device())?;
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let name: Arc<str> = format!("{node};{id};{device}").into();
        let dtype = value.dtype();
        let shape = value.shape().into();
        kept.device.resources().lookup_or_create(CONTAINER, &name, || Ok(SessionTensor(value)))?;
        {
            let store = kept.device.resources();
            let mut names = kept.names.lock();
            // Removes the names of tensors that were deleted, whenever the number of names reaches a power of two.
            if names.len().is_power_of_two() {
                names.retain(|name| store.find::<SessionTensor>(CONTAINER, name).is_some());
            }
            names.push(name.clone());
        }
        let handle = if by_resource {
            Tensor::resource(ResourceHandle {
                device: device.as_str().into(),
                container: CONTAINER.into(),
                name,
                hash_code: hash_of(SessionTensor::KIND),
                type_name: SessionTensor::KIND.into(),
                dtypes_and_shapes: vec![(dtype, shape)],
            })
        } else {
            Tensor::from(&*name)
        };
        ctx.set_output(0, handle);
        Ok(())
    })
}
