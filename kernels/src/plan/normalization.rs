//! Attributes and inputs of local response normalisation (LRN).

use device::kernel::KernelInit;
use device::{Error, Result};
use graph::Shape;

/// The attributes of the ops `LRN` and `LRNGrad`.
#[derive(Clone, Copy, Debug)]
pub struct LocalNorm {
    pub radius: usize,
    pub bias: f32,
    pub alpha: f32,
    pub beta: f32,
}

impl LocalNorm {
    /// Reads the attributes of the node.
    ///
    /// # Errors
    /// `InvalidArgument` if the radius is negative or too large.
    pub fn of(init: &KernelInit<'_>) -> Result<LocalNorm> {
        let radius = usize::try_from(init.attr::<i64>("depth_radius")?).ok();
        let radius = radius.filter(|&r| r < i32::MAX as usize);
        Ok(LocalNorm {
            radius: radius
                .ok_or_else(|| Error::invalid("depth_radius must be from 0 to below the largest int"))?,
            bias: init.attr("bias")?,
            alpha: init.attr("alpha")?,
            beta: init.attr("beta")?,
        })
    }
}

/// Returns the number of channels of images in NHWC layout.
pub fn channels(x: &Shape) -> Result<usize> {
    match *x.dims() {
        [_, _, _, channels] => Ok(channels),
        _ => device::invalid!("in must be 4-dimensional, got shape {x}"),
    }
}

/// Checks that the three inputs of a gradient have the same shape, and returns their number of channels.
pub fn common_channels(dy: &Shape, x: &Shape, y: &Shape) -> Result<usize> {
    let channels = channels(dy)?;
    if x != dy || y != dy {
        device::invalid!(
            "input_grads, input_image, and out_image should have the same shape, got {dy}, {x} and {y}"
        );
    }
    Ok(channels)
}
