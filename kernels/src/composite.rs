//! Kernels of composite tensors, which variants hold.

use device::kernel::{Kernel, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::{DType, Optional, Tensor, VariantObject};

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("CompositeTensorVariantFromComponents", &[], |_| {
        Kernel::sync(|ctx| {
            let components = ctx.inputs_from(0)?.into_iter().cloned().collect();
            let composite = CompositeTensor(Optional::of(components)?);
            ctx.set_output(0, Tensor::variant(composite));
            Ok(())
        })
    }),
    KernelDef::of("CompositeTensorVariantToComponents", &[], to_components),
];

/// The components of a composite tensor. The client alone reads the metadata, which describe the type.
#[derive(Debug)]
struct CompositeTensor(Optional);

impl VariantObject for CompositeTensor {
    fn type_name(&self) -> &'static str {
        "CompositeTensorVariant"
    }

    fn nesting(&self) -> usize {
        self.0.nesting()
    }

    fn tensors(&self) -> u64 {
        self.0.tensors()
    }
}

fn to_components(init: &KernelInit<'_>) -> Result<Kernel> {
    let types = init.attr::<Vec<DType>>("Tcomponents")?;
    Kernel::sync(move |ctx| {
        let encoded = ctx.input(0)?;
        let [variant] = encoded.as_variants()? else {
            invalid!("Expected `encoded` to be a scalar, got shape {}", encoded.shape());
        };
        let composite = variant.expect::<CompositeTensor>("a composite tensor")?;
        let components = composite.0.components().unwrap_or_default();
        if components.len() != types.len() {
            invalid!(
                "Encoded value has {} tensor components; expected {} components based on type_spec",
                components.len(),
                types.len()
            );
        }
        for (i, (component, &dtype)) in components.iter().zip(&types).enumerate() {
            if component.dtype() != dtype {
                invalid!("Tensor component {i} had dtype {}; expected dtype {dtype}", component.dtype());
            }
            ctx.set_output(i, component.clone());
        }
        Ok(())
    })
}
