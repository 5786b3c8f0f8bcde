//! Checks of the bounds of `ClipByValue`.

use device::kernel::KernelContext;
use device::{Result, invalid};

/// Checks that each bound is a scalar, or has the shape of the input.
pub fn check_bounds(ctx: &KernelContext<'_>) -> Result<()> {
    let (shape, low, high) = (ctx.shape(0)?, ctx.shape(1)?, ctx.shape(2)?);
    if [low, high].iter().any(|bound| bound.rank() != 0 && *bound != shape) {
        invalid!(
            "clip_value_min and clip_value_max must be either of the same shape as input, or a scalar. input shape: {shape}clip_value_min shape: {low}clip_value_max shape: {high}"
        );
    }
    Ok(())
}
