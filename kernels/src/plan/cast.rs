//! The shape of the result of `Bitcast`.

use device::{Error, Result};
use graph::{DType, Shape};

/// Returns the shape of the result of `Bitcast`. If the element type `to` is smaller than `from`, an axis is added at
/// the end; if it is larger, the last axis of the input must make up exactly one element of the output.
pub fn bitcast_shape(shape: &Shape, from: DType, to: DType) -> Result<Shape> {
    let mut dims = shape.dims().to_vec();
    let (Some(from_size), Some(to_size)) = (from.size(), to.size()) else {
        return Err(Error::unimplemented(format!("Bitcast {from} to {to} is not supported")));
    };
    if from_size > to_size {
        dims.push(from_size / to_size);
    } else if from_size < to_size && dims.pop() != Some(to_size / from_size) {
        device::invalid!("Cannot bitcast from {} to {}", from.number(), to.number());
    }
    Ok(Shape::new(&dims)?)
}
