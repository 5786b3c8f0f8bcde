//! Values that may not be there, held by variants.

use crate::error::{Error, Result};
use crate::kernel::{Kernel, KernelContext, KernelDef};
use graph::{Optional, PartialShape, Tensor};
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("OptionalFromValue", &[], |_| {
        Kernel::sync(|ctx| {
            let components = (0..ctx.num_inputs()).map(|i| ctx.take_input(i)).collect::<Result<_>>()?;
            ctx.set_output(0, Tensor::variant(Optional::of(components)?));
            Ok(())
        })
    }),
    KernelDef::of("OptionalNone", &[], |_| {
        Kernel::sync(|ctx| {
            ctx.set_output(0, Tensor::variant(Optional::NONE));
            Ok(())
        })
    }),
    KernelDef::of("OptionalHasValue", &[], |_| {
        Kernel::sync(|ctx| {
            let has_value = optional(ctx)?.components().is_some();
            ctx.set_output(0, Tensor::from(has_value));
            Ok(())
        })
    }),
    KernelDef::of("OptionalGetValue", &[], |init| {
        let shapes = init.attr::<Vec<PartialShape>>("output_shapes")?;
        if shapes.len() != init.outputs.len() {
            crate::invalid!(
                "output_types and output_shapes must be same length, got {} and {}",
                init.outputs.len(),
                shapes.len()
            );
        }
        let types: Vec<graph::DType> = init.outputs.iter().map(|port| port.dtype).collect();
        Kernel::sync(move |ctx| get_value(ctx, &types, &shapes))
    }),
];

fn optional(ctx: &KernelContext<'_>) -> Result<Arc<Optional>> {
    match ctx.input(0)?.as_variants()? {
        [variant] => Ok(variant.expect::<Optional>("an optional")?),
        all => Err(Error::invalid(format!("an optional is a scalar, not {} variants", all.len()))),
    }
}

fn get_value(ctx: &mut KernelContext<'_>, types: &[graph::DType], shapes: &[PartialShape]) -> Result<()> {
    let optional = optional(ctx)?;
    let missing = || Error::invalid("The given optional does not have a value.");
    let components = optional.components().ok_or_else(missing)?;
    if components.len() != types.len() {
        crate::invalid!("The given optional has {} components, expected {}.", components.len(), types.len());
    }
    for (i, (component, (dtype, shape))) in components.iter().zip(types.iter().zip(shapes)).enumerate() {
        if component.dtype() != *dtype {
            crate::invalid!(
                "The given optional does not match the expected type for component {i}. Expected: {dtype}. \
                 Actual: {}.",
                component.dtype()
            );
        }
        if !shape.accepts(component.shape()) {
            crate::invalid!(
                "The given optional does not match the expected shape for component {i}. Expected: {shape}. \
                 Actual: {}.",
                component.shape()
            );
        }
        ctx.set_output(i, component.clone());
    }
    Ok(())
}
