//! The kernel of `RefSelect`. The executor implements all other control-flow ops itself.

use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};

pub(super) const KERNELS: &[KernelDef] = &[KernelDef {
    op: "RefSelect",
    host_memory: &["index"],
    make: |_| Kernel::sync(select),
    ..KernelDef::NEW
}];

fn select(ctx: &mut KernelContext<'_>) -> Result<()> {
    let index = ctx.input(0)?;
    if index.shape().rank() != 0 {
        device::invalid!("Index must be a scalar, but it has shape {}", index.shape());
    }
    let (index, count) = (index.item::<i32>()?, ctx.num_inputs() - 1);
    let Some(chosen) = usize::try_from(index).ok().filter(|i| *i < count) else {
        device::invalid!("Index must be in the range [0, {count}) but got {index}");
    };
    let value = ctx.take_value(chosen + 1);
    ctx.set_output(0, value);
    Ok(())
}
