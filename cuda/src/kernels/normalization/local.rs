//! Local response normalisation: each channel of a pixel is scaled by a power of the sum of squares over its
//! neighbouring channels.

use super::super::support::{allocate, function, launch, read, type_name, write};
use super::SOURCE;
use crate::engine::Arguments;
use device::Result;
use device::kernel::{Kernel, KernelInit};
use kernels::plan::normalization::{LocalNorm, channels, common_channels};

/// Returns the fields of the `LocalNorm` structure of `normalization.cu`, in the order of declaration.
fn words(near: &LocalNorm, channels: usize) -> [i64; 5] {
    let real = |value: f32| f64::from(value).to_bits() as i64;
    // The radius is limited to the number of channels, which has the same effect and cannot overflow.
    let radius = near.radius.min(channels);
    [channels as i64, radius as i64, real(near.bias), real(near.alpha), real(near.beta)]
}

/// Makes the kernel of `LRN`.
pub(super) fn forward(init: &KernelInit<'_>) -> Result<Kernel> {
    let (near, dtype) = (LocalNorm::of(init)?, init.output_type(0));
    let kernel = function(init, &SOURCE, format!("local_response<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let x = ctx.device_input(0)?;
        let channels = channels(&x.shape)?;
        let (y, n) = (allocate(ctx, dtype, x.shape.clone())?, x.shape.num_elements());
        let arguments = Arguments::new().address(read(x)?).address(write(&y)?).count(n);
        launch(ctx, &kernel, n, arguments.structure(words(&near, channels)))?;
        ctx.set_output(0, y);
        Ok(())
    })
}

/// Makes the kernel of `LRNGrad`.
pub(super) fn backward(init: &KernelInit<'_>) -> Result<Kernel> {
    let (near, dtype) = (LocalNorm::of(init)?, init.output_type(0));
    let kernel = function(init, &SOURCE, format!("local_response_gradient<{}>", type_name(dtype)?))?;
    Kernel::sync(move |ctx| {
        let (dy, x, y) = (ctx.device_input(0)?, ctx.device_input(1)?, ctx.device_input(2)?);
        let channels = common_channels(&dy.shape, &x.shape, &y.shape)?;
        let (dx, n) = (allocate(ctx, dtype, x.shape.clone())?, x.shape.num_elements());
        let arguments = Arguments::new()
            .address(read(dy)?)
            .address(read(x)?)
            .address(read(y)?)
            .address(write(&dx)?)
            .count(n);
        launch(ctx, &kernel, n, arguments.structure(words(&near, channels)))?;
        ctx.set_output(0, dx);
        Ok(())
    })
}
