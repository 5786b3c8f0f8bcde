//! Kernels of optionals, which hold a list of tensors or nothing; generic over the type of the tensors.

use device::kernel::{Kernel, KernelContext, KernelInit};
use device::value::ListElement;
use device::{Error, Result};
use graph::{DType, Optional, PartialShape, Tensor};
use std::sync::Arc;

/// Returns the optional in input 0.
fn optional<T: ListElement>(ctx: &KernelContext<'_>) -> Result<Arc<Optional<T>>> {
    match ctx.input(0)?.as_variants()? {
        [variant] => Ok(variant.expect("an optional")?),
        all => Err(Error::invalid(format!("an optional is a scalar, not {} variants", all.len()))),
    }
}

/// `OptionalFromValue`: makes the kernel that outputs an optional of all inputs.
pub fn from_value<T: ListElement>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let components = (0..ctx.num_inputs()).map(|i| T::of(ctx.take_value(i))).collect::<Result<_>>()?;
        ctx.set_output(0, Tensor::variant(Optional::of(components)?));
        Ok(())
    })
}

/// `OptionalNone`: makes the kernel that outputs an empty optional.
pub fn none<T: ListElement>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        ctx.set_output(0, Tensor::variant(Optional::<T>::NONE));
        Ok(())
    })
}

/// `OptionalHasValue`: makes the kernel that outputs whether the optional in input 0 has tensors.
pub fn has_value<T: ListElement>(_: &KernelInit<'_>) -> Result<Kernel> {
    Kernel::sync(|ctx| {
        let has_value = optional::<T>(ctx)?.components().is_some();
        ctx.set_output(0, Tensor::from(has_value));
        Ok(())
    })
}

/// `OptionalGetValue`: makes the kernel that outputs the tensors of the optional in input 0, which must have the
/// dtypes and shapes of the node's attributes.
pub fn get_value<T: ListElement>(init: &KernelInit<'_>) -> Result<Kernel> {
    let shapes = init.attr::<Vec<PartialShape>>("output_shapes")?;
    if shapes.len() != init.outputs.len() {
        device::invalid!(
            "output_types and output_shapes must be same length, got {} and {}",
            init.outputs.len(),
            shapes.len()
        );
    }
    let types: Vec<DType> = init.outputs.iter().map(|port| port.dtype).collect();
    Kernel::sync(move |ctx| {
        let optional = optional::<T>(ctx)?;
        let missing = || Error::invalid("The given optional does not have a value.");
        let components = optional.components().ok_or_else(missing)?;
        if components.len() != types.len() {
            device::invalid!(
                "The given optional has {} components, expected {}.",
                components.len(),
                types.len()
            );
        }
        for (i, (component, (dtype, shape))) in components.iter().zip(types.iter().zip(&shapes)).enumerate() {
            if component.dtype() != *dtype {
                device::invalid!(
                    "The given optional does not match the expected type for component {i}. Expected: {dtype}. \
                     Actual: {}.",
                    component.dtype()
                );
            }
            if !shape.accepts(component.shape()) {
                device::invalid!(
                    "The given optional does not match the expected shape for component {i}. Expected: {shape}. \
                     Actual: {}.",
                    component.shape()
                );
            }
            ctx.set_output(i, component.clone());
        }
        Ok(())
    })
}
