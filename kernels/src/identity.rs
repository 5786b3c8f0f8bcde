//! Kernels that pass their inputs through.

use crate::numeric::dispatch::{FLOATS, dispatch};
use crate::plan::identity::NonFiniteKinds;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::Element;
use num_traits::Float;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Identity", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("IdentityN", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("StopGradient", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("PreventGradient", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("RefIdentity", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("GuaranteeConst", &[], |_| Kernel::sync(pass)).brief(),
    // Kernels change a tensor only if nothing else holds it, so a copy needs no memory of its own.
    KernelDef::of("DeepCopy", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("Snapshot", &[], |_| Kernel::sync(pass)).brief(),
    KernelDef::of("NoOp", &[], |_| Kernel::sync(|_| Ok(()))).brief(),
    // Kernels on a CPU have finished when they return.
    KernelDef::of("SyncDevice", &[], |_| Kernel::sync(|_| Ok(()))).brief(),
    KernelDef::of("Fact", &[], |_| {
        Kernel::sync(|ctx| {
            ctx.set_output(0, graph::Tensor::string("0! == 1"));
            Ok(())
        })
    }),
    KernelDef::of("CheckNumerics", &[("T", FLOATS)], |init| {
        let message = init.attr::<String>("message")?;
        dispatch!(float, init.input_type(0), T => Kernel::sync(move |ctx| {
            check::<T>(ctx, &message, false)
        }))
    }),
    KernelDef::of("CheckNumericsV2", &[("T", FLOATS)], |init| {
        let message = init.attr::<String>("message")?;
        dispatch!(float, init.input_type(0), T => Kernel::sync(move |ctx| {
            check::<T>(ctx, &message, true)
        }))
    }),
];

fn pass(ctx: &mut KernelContext<'_>) -> Result<()> {
    for i in 0..ctx.num_inputs() {
        let value = ctx.take_value(i);
        ctx.set_output(i, value);
    }
    Ok(())
}

/// `CheckNumerics`: passes input 0 on if all its values are finite.
fn check<T: Element + Float>(ctx: &mut KernelContext<'_>, message: &str, signed: bool) -> Result<()> {
    let values = ctx.input(0)?.values::<T>()?;
    // Each chunk is checked by a loop without branches; the first chunk with a bad value ends the search.
    if values.chunks(1024).any(|chunk| chunk.iter().fold(false, |bad, v| bad | !v.is_finite())) {
        let mut found = NonFiniteKinds::default();
        for v in values.iter().filter(|v| !v.is_finite()) {
            found.nan |= v.is_nan();
            found.infinite |= v.is_infinite();
            found.negative |= *v == T::neg_infinity();
            found.positive |= *v == T::infinity();
        }
        return Err(found.error(message, signed));
    }
    let value = ctx.take_value(0);
    ctx.set_output(0, value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::testing::run_op;
    use device::Result;
    use graph::{DType, ResourceHandle, Tensor};

    #[test]
    fn identities_pass_every_type_without_a_copy() -> Result<()> {
        let handle = ResourceHandle {
            device: "d".into(),
            container: "c".into(),
            name: "n".into(),
            hash_code: 1,
            type_name: "t".into(),
            dtypes_and_shapes: Vec::new(),
        };
        let float = Tensor::try_from([1.0f32, 2.0, 3.0])?;
        for op in ["Identity", "StopGradient", "PreventGradient", "Snapshot"] {
            for x in [float.clone(), Tensor::from("text"), Tensor::resource(handle.clone()), true.into()] {
                assert_eq!(run_op(op, std::slice::from_ref(&x), &[("T", x.dtype().into())])?, [x]);
            }
            let out = run_op(op, std::slice::from_ref(&float), &[("T", DType::Float.into())])?;
            assert_eq!(out[0].bytes()?.as_ptr(), float.bytes()?.as_ptr());
        }
        let both = [float, Tensor::from("text")];
        let types = vec![DType::Float, DType::String];
        assert_eq!(run_op("IdentityN", &both, &[("T", types.into())])?, both);
        assert_eq!(run_op("NoOp", &[], &[])?, []);
        Ok(())
    }

    fn refused(op: &str, x: &[f32]) -> Result<String> {
        let attrs = [("T", DType::Float.into()), ("message", "msg".into())];
        Ok(run_op(op, &[Tensor::vector(x)?], &attrs).err().map(|e| e.to_string()).unwrap_or_default())
    }

    #[test]
    fn check_numerics_names_the_kinds_of_bad_values() -> Result<()> {
        let (inf, nan) = (f32::INFINITY, f32::NAN);
        assert_eq!(refused("CheckNumerics", &[1.0, 2.0])?, "");
        assert_eq!(refused("CheckNumerics", &[1.0, nan])?, "msg : Tensor had NaN values");
        assert_eq!(refused("CheckNumerics", &[-inf])?, "msg : Tensor had Inf values");
        assert_eq!(refused("CheckNumerics", &[inf, nan])?, "msg : Tensor had Inf and NaN values");
        assert_eq!(refused("CheckNumericsV2", &[inf])?, "msg : Tensor had +Inf values");
        assert_eq!(refused("CheckNumericsV2", &[-inf, nan])?, "msg : Tensor had -Inf and NaN values");
        assert_eq!(
            refused("CheckNumericsV2", &[inf, nan, -inf])?,
            "msg : Tensor had -Inf, +Inf, and NaN values"
        );
        Ok(())
    }
}
