//! Arithmetic of two operands, element by element, with broadcasting.

use super::dispatch::{REALS, dispatch};
use crate::error::Result;
use crate::kernel::{Kernel, KernelContext, KernelDef};
use graph::Element;

pub(super) const KERNELS: &[KernelDef] = &[KernelDef::of(
    "AddV2",
    &[("T", REALS)],
    |init| dispatch!(real, init.input_type(0), T => Kernel::sync(|ctx| binary::<T>(ctx, |x, y| x + y))),
)];

/// Applies `op` to each pair of elements. (Example only: shapes must be equal.)
fn binary<T: Element>(ctx: &mut KernelContext<'_>, op: impl Fn(T, T) -> T) -> Result<()> {
    let shape = ctx.input(0)?.shape().clone();
    let mut out = ctx.allocate(T::DTYPE, shape)?;
    let (x, y) = (ctx.input(0)?.values::<T>()?, ctx.input(1)?.values::<T>()?);
    for ((o, &x), &y) in out.values_mut::<T>()?.iter_mut().zip(x).zip(y) {
        *o = op(x, y);
    }
    ctx.set_output(0, out);
    Ok(())
}
