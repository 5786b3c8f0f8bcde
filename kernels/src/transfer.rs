//! Kernels of the arguments and results of functions. Send and Recv have no kernels, because the executor runs them
//! itself.

use device::function::Call;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use std::sync::Arc;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("_Arg", &[], |init| {
        let index = index(init)?;
        Kernel::sync(move |ctx| {
            let arg = call(ctx)?.take_arg(index)?;
            ctx.set_output(0, arg);
            Ok(())
        })
    }),
    KernelDef::of("_Retval", &[], |init| {
        let index = index(init)?;
        Kernel::sync(move |ctx| {
            let value = ctx.take_value(0);
            call(ctx)?.set_return(index, value)
        })
    }),
];

fn index(init: &KernelInit<'_>) -> Result<usize> {
    let index = init.attr::<i64>("index")?;
    usize::try_from(index).map_err(|_| Error::invalid(format!("index {index} is negative")))
}

/// Returns the function call in which the node runs.
fn call<'a>(ctx: &KernelContext<'a>) -> Result<&'a Arc<Call>> {
    let outside = || Error::internal(format!("{} is not within a function", ctx.node().op.name()));
    ctx.step().call.as_ref().ok_or_else(outside)
}
