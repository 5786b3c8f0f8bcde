//! The kernel of the op `TemporaryVariable`.

use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::value::Value;
use device::variable::Variable;
use graph::{DType, PartialShape, Shape};
use std::sync::Arc;

/// `TemporaryVariable`: makes the kernel that creates a new variable in each run. `clear` sets the variable to zeros of
/// its shape. The variable is dropped with the last reference to it.
pub fn temporary(
    init: &KernelInit<'_>,
    clear: fn(&KernelContext<'_>, &Variable, Shape) -> Result<()>,
) -> Result<Kernel> {
    let (dtype, shape) = (init.attr::<DType>("dtype")?, init.attr::<PartialShape>("shape")?);
    let Some(full) = shape.as_shape() else {
        device::invalid!("the shape of a temporary variable must be known, got {shape}");
    };
    let name = init.node.name.clone();
    Kernel::sync(move |ctx| {
        let variable = Variable::new(name.clone(), dtype, shape.clone());
        clear(ctx, &variable, full.clone())?;
        ctx.set_output(0, Value::Ref(Arc::new(variable)));
        Ok(())
    })
}
