//! Checks of the inputs of `ReverseSequence`, `Roll` and `Cross`.

use device::kernel::KernelContext;
use device::{Error, Result, invalid};
use graph::shape::resolve_axis;
use graph::{Code, Shape};

/// Checks that `lengths` has one length per index of the batch axis, and returns the indices of the batch axis and of
/// the sequence axis.
pub fn sequences(input: &Shape, lengths: &Shape, batch: i64, sequence: i64) -> Result<(usize, usize)> {
    let rank = input.rank();
    if lengths.rank() != 1 {
        invalid!("seq_lens must be 1-dim, not {}-dim", lengths.rank());
    }
    let axis = |axis: i64| usize::try_from(axis).ok().filter(|&axis| axis < rank);
    let (Some(batch), Some(sequence)) = (axis(batch), axis(sequence)) else {
        invalid!("batch_dim {batch} and seq_dim {sequence} must be from 0 to below input rank {rank}");
    };
    if batch == sequence {
        invalid!("batch_dim == seq_dim == {sequence}");
    }
    if lengths.num_elements() != input[batch] {
        invalid!(
            "Length of seq_lens != input.dims({batch}), ({} vs. {})",
            lengths.num_elements(),
            input[batch]
        );
    }
    Ok((batch, sequence))
}

/// Returns the number of positions by which each axis of input 0 is rolled, modulo the size of the axis.
pub fn shifts(ctx: &KernelContext<'_>) -> Result<Vec<usize>> {
    let (shape, shift, axis) = (ctx.shape(0)?, ctx.input(1)?, ctx.input(2)?);
    if shape.rank() == 0 {
        invalid!("input must be 1-D or higher");
    }
    for (name, t) in [("shift", shift), ("axis", axis)] {
        if t.shape().rank() > 1 {
            invalid!("{name} must be a scalar or a 1-D vector. Found: {}", t.shape());
        }
    }
    if shift.shape() != axis.shape() {
        invalid!("shift and axis must have the same size");
    }
    let mut shifts = vec![0usize; shape.rank()];
    for (&by, &axis) in shift.to_i64s()?.iter().zip(&axis.to_i64s()?) {
        let Some(at) = resolve_axis(axis, shape.rank()) else { invalid!("axis {axis} is out of range") };
        let size = shape[at].max(1);
        shifts[at] = (shifts[at] + by.rem_euclid(size as i64) as usize) % size;
    }
    Ok(shifts)
}

/// Checks that both inputs have the same shape, and that the last axis has size 3.
pub fn check_cross(ctx: &KernelContext<'_>) -> Result<()> {
    let (a, b) = (ctx.shape(0)?, ctx.shape(1)?);
    if a != b {
        invalid!("Both inputs must be of same shape: {a} vs. {b}");
    }
    if a.last() != Some(&3) {
        let message = "Cross-products are only defined for 3-element vectors.";
        return Err(Error::new(Code::FailedPrecondition, message));
    }
    Ok(())
}
