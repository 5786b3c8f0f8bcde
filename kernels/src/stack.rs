//! Kernels of stacks, which live as long as their step.

use crate::objects::step_object::{HandleKind, base_name, object, set_handle, unique_name};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::resource::Resource;
use device::value::Value;
use device::{Error, Result};
use graph::DType;
use parking_lot::Mutex;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef { op: "StackV2", host_memory: &["max_size", "handle"], make: create, ..KernelDef::NEW },
    KernelDef { op: "Stack", host_memory: &["handle"], make: create, ..KernelDef::NEW },
    KernelDef { op: "StackPushV2", host_memory: &["handle"], make: push, ..KernelDef::NEW },
    KernelDef { op: "StackPush", host_memory: &["handle"], make: push, ..KernelDef::NEW },
    KernelDef { op: "StackPopV2", host_memory: &["handle"], make: pop, ..KernelDef::NEW },
    KernelDef { op: "StackPop", host_memory: &["handle"], make: pop, ..KernelDef::NEW },
    KernelDef { op: "StackCloseV2", host_memory: &["handle"], make: close, ..KernelDef::NEW },
    KernelDef { op: "StackClose", host_memory: &["handle"], make: close, ..KernelDef::NEW },
];

const CONTAINER: &str = "_stacks";

/// A stack of tensors, shared by the ops of a step.
#[derive(Debug)]
struct Stack {
    name: String,
    dtype: DType,
    max_size: usize,
    /// The values; `None` once the stack is closed.
    values: Mutex<Option<Vec<Value>>>,
}

impl Resource for Stack {
    const KIND: &'static str = "Stack";
}

impl Stack {
    fn change<R>(&self, change: impl FnOnce(&mut Vec<Value>) -> Result<R>) -> Result<R> {
        match &mut *self.values.lock() {
            Some(values) => change(values),
            None => Err(Error::invalid(format!("Stack[{}] has already been closed.", self.name))),
        }
    }
}

fn create(init: &KernelInit<'_>) -> Result<Kernel> {
    let (base, dtype) = (base_name(init, "stack_name")?, init.attr::<DType>("elem_type")?);
    let (kind, has_size) = (HandleKind::of_output(init), !init.inputs.is_empty());
    Kernel::sync(move |ctx| {
        let mut max_size = usize::MAX;
        if has_size {
            let size = ctx.input(0)?;
            if size.shape().rank() != 0 {
                device::invalid!("Stack size must be a scalar, but had shape: {}", size.shape());
            }
            // A negative size means unlimited.
            max_size = usize::try_from(size.item::<i32>()?).unwrap_or(usize::MAX);
        }
        let name = unique_name(&base);
        let values = Mutex::new(Some(Vec::new()));
        let stack = Stack { name: name.clone(), dtype, max_size, values };
        ctx.step().resources.lookup_or_create(CONTAINER, &name, || Ok(stack))?;
        set_handle::<Stack>(ctx, kind, CONTAINER, &name)
    })
}

/// Makes the kernel of a push. The value stays in its memory, even with `swap_memory`: a host value is already in the
/// memory to swap to, and GPU memory is not freed for swapping.
fn push(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.input_type(1);
    Kernel::sync(move |ctx| {
        let stack = object::<Stack>(ctx)?;
        if dtype != stack.dtype {
            device::invalid!("Must have type {} but got {}", stack.dtype.number(), dtype.number());
        }
        let value = ctx.take_value(1);
        stack.change(|values| {
            if values.len() >= stack.max_size {
                device::invalid!("Stack[{}] overflowed its max_size ({})", stack.name, stack.max_size);
            }
            values.push(value.clone());
            Ok(())
        })?;
        ctx.set_output(0, value);
        Ok(())
    })
}

fn pop(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let stack = object::<Stack>(ctx)?;
        let popped = stack.change(|values| Ok(values.pop()))?;
        let value = popped
            .ok_or_else(|| Error::invalid(format!("Stack[{}] is empty when calling Pop().", stack.name)))?;
        if stack.dtype != dtype {
            return Err(Error::internal(format!(
                "Output 0 of type {} does not match declared output type {dtype} for node {{{{node {}}}}}",
                stack.dtype,
                ctx.node().name
            )));
        }
        ctx.set_output(0, value);
        Ok(())
    })
}

fn close(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx: &mut KernelContext<'_>| {
        let values = object::<Stack>(ctx)?.values.lock().take();
        drop(values);
        Ok(())
    })
}
