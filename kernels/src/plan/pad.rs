//! Paddings, and the shapes of padded tensors.

use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::Shape;
use smallvec::SmallVec;

/// The maximum number of axes that the padding kernels support, the same as in TensorFlow.
pub const MOST_AXES: usize = 8;

pub const MOST_MIRRORED: usize = 5;

/// Returns the number of elements to add before and after each axis, from input 1. Inputs with more than `most` axes
/// are refused.
pub fn paddings(ctx: &KernelContext<'_>, most: usize) -> Result<SmallVec<[(usize, usize); 6]>> {
    let (input, given) = (ctx.shape(0)?, ctx.input(1)?);
    if input.rank() > most {
        return Err(Error::unimplemented(format!("inputs rank not in [0,{most}]: {}", input.rank())));
    }
    let &[rows, 2] = given.shape().dims() else {
        invalid!("paddings must be a matrix with 2 columns: {}", given.shape());
    };
    if rows != input.rank() {
        invalid!("The first dimension of paddings must be the rank of inputs{} {input}", given.shape());
    }
    let pairs = given.to_i64s()?;
    pairs
        .chunks_exact(2)
        .map(|p| match (usize::try_from(p[0]), usize::try_from(p[1])) {
            (Ok(before), Ok(after)) => Ok((before, after)),
            _ => Err(Error::invalid(format!("Paddings must be non-negative: {} {}", p[0], p[1]))),
        })
        .collect()
}

/// Returns the shape of a tensor after padding; `shape` is its shape before padding.
pub fn padded(shape: &Shape, paddings: &[(usize, usize)]) -> Result<Shape> {
    let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
    for (&d, &(before, after)) in shape.iter().zip(paddings) {
        let size = d.checked_add(before).and_then(|d| d.checked_add(after));
        dims.push(size.ok_or_else(|| Error::invalid("the padded shape is too large"))?);
    }
    Ok(Shape::new(&dims)?)
}

/// Returns 1 for mode REFLECT, which does not repeat the element at the edge, and 0 for SYMMETRIC, which does.
pub fn mirror_offset(init: &KernelInit<'_>) -> Result<usize> {
    match init.attr::<String>("mode")?.as_str() {
        "REFLECT" => Ok(1),
        "SYMMETRIC" => Ok(0),
        other => invalid!("mode must be either REFLECT or SYMMETRIC, not {other}"),
    }
}

/// Checks that each axis of `inner` has enough elements to fill its paddings by mirroring; `offset` is
/// [`mirror_offset`].
pub fn check_mirrored(inner: &Shape, paddings: &[(usize, usize)], offset: usize) -> Result<()> {
    for (&size, &(before, after)) in inner.iter().zip(paddings) {
        let most = size.saturating_sub(offset);
        if before > most || after > most {
            match offset {
                0 => invalid!(
                    "paddings must be no greater than the dimension size: {before}, {after} greater than {size}"
                ),
                _ => invalid!(
                    "paddings must be less than the dimension size: {before}, {after} not less than {size}"
                ),
            }
        }
    }
    Ok(())
}

/// Returns the shape of a tensor before padding; `shape` is its shape after padding.
pub fn unpadded(shape: &Shape, paddings: &[(usize, usize)]) -> Result<Shape> {
    let mut dims: SmallVec<[usize; 6]> = SmallVec::new();
    for (&d, &(before, after)) in shape.iter().zip(paddings) {
        let size = d.checked_sub(before).and_then(|d| d.checked_sub(after));
        dims.push(size.ok_or_else(|| {
            Error::invalid(format!("paddings {before}, {after} do not fit the dimension {d}"))
        })?);
    }
    Ok(Shape::new(&dims)?)
}
