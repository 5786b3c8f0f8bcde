//! The axes of a bias addition: a bias per index of the channel axis.

use device::Result;
use graph::Shape;
use graph::ops::bias::channel_axis;
use graph::ops::window::DataFormat;

/// Returns the product of the dimensions before the channel axis, the number of channels, and the product of the
/// dimensions after it.
pub fn axes(shape: &Shape, format: DataFormat) -> Result<[usize; 3]> {
    if shape.rank() < 2 {
        device::invalid!("Input tensor must be at least 2D: {shape}");
    }
    let axis = channel_axis(shape.rank(), format)?;
    let product = |dims: &[usize]| dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d));
    match (product(&shape[..axis]), product(&shape[axis + 1..])) {
        (Some(outer), Some(inner)) => Ok([outer, shape[axis], inner]),
        _ => device::invalid!("the dimensions of {shape} overflow"),
    }
}
