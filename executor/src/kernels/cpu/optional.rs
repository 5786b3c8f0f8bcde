//! Kernels of optional values.

use super::dataset_argument::tensors;
use crate::dataset::optional::OptionalVariant;
use crate::kernel::{Kernel, KernelDef};
use graph::Tensor;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("OptionalFromValue", &[], |_| {
        Kernel::sync(|ctx| {
            let element = tensors(ctx, 0..ctx.num_inputs())?;
            ctx.set_output(0, Tensor::variant(OptionalVariant(Some(element))));
            Ok(())
        })
    }),
    KernelDef::of("OptionalNone", &[], |_| {
        Kernel::sync(|ctx| {
            ctx.set_output(0, Tensor::variant(OptionalVariant(None)));
            Ok(())
        })
    }),
    KernelDef::of("OptionalHasValue", &[], |_| {
        Kernel::sync(|ctx| {
            let has_value = OptionalVariant::of(ctx.input(0)?)?.0.is_some();
            ctx.set_output(0, Tensor::from(has_value));
            Ok(())
        })
    }),
    KernelDef::of("OptionalGetValue", &[], |_| {
        Kernel::sync(|ctx| {
            let optional = OptionalVariant::of(ctx.input(0)?)?;
            let Some(element) = &optional.0 else {
                crate::invalid!("The given optional does not have a value.");
            };
            if element.len() != ctx.num_outputs() {
                crate::invalid!(
                    "The given optional has {} components, expected {}.",
                    element.len(),
                    ctx.num_outputs()
                );
            }
            for (i, tensor) in element.iter().enumerate() {
                ctx.set_output(i, tensor.clone());
            }
            Ok(())
        })
    }),
];
