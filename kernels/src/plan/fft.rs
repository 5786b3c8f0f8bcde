//! Checks of the inputs of Fourier transforms.

use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Shape;

/// Checks that a tensor has at least `axes` axes.
pub fn check_rank(input: &Shape, axes: usize) -> Result<()> {
    if input.rank() < axes {
        invalid!("Input must have rank of at least {axes} but got: {input}");
    }
    Ok(())
}

/// Returns the lengths of the transform along its `axes` axes, given by input 1.
pub fn lengths(ctx: &KernelContext<'_>, axes: usize) -> Result<Vec<usize>> {
    let lengths = ctx.input(1)?;
    if lengths.shape().dims() != [axes] {
        invalid!("fft_length must have shape [{axes}]");
    }
    let lengths = lengths.to_i64s()?;
    let length = |&len: &i64| match usize::try_from(len) {
        Ok(len) => Ok(len),
        Err(_) => Err(device::Error::invalid(format!("fft_length must be >= 0, but got: {len}"))),
    };
    lengths.iter().map(length).collect()
}

/// Checks that each of the innermost axes of `shape` has at least its length in `lengths`, unless the axis is empty.
pub fn check_lengths(shape: &[usize], lengths: &[usize]) -> Result<()> {
    let first = shape.len() - lengths.len();
    for (axis, &len) in (first..).zip(lengths) {
        if shape[axis] < len && shape[axis] > 0 {
            invalid!("Input dimension {axis} must have length of at least {len} but got: {}", shape[axis]);
        }
    }
    Ok(())
}
