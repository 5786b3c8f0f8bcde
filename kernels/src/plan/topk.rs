//! Shapes of the inputs and outputs of `TopK` and of `InTopK`.

use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Shape;
use smallvec::SmallVec;

/// Returns the number of columns of the input, and the output's shape, which has `k` columns instead.
pub fn top_shape(input: &Shape, k: i64) -> Result<(usize, Shape)> {
    let Ok(wanted) = usize::try_from(k) else { invalid!("Need k >= 0, got {k}") };
    let Some(&columns) = input.last() else {
        invalid!("input must be >= 1-D, got shape {input}");
    };
    if columns < wanted {
        invalid!("input must have at least k columns. Had {columns}, needed {wanted}");
    }
    let mut dims: SmallVec<[usize; 6]> = input.dims().into();
    let last = dims.len() - 1;
    dims[last] = wanted;
    Ok((columns, Shape::new(&dims)?))
}

/// Returns the numbers of rows and classes of the predictions in input 0, after checking that input 1 has one target
/// per row.
pub fn prediction_sizes(ctx: &KernelContext<'_>) -> Result<[usize; 2]> {
    let (predictions, targets) = (ctx.shape(0)?, ctx.shape(1)?);
    let &[rows, classes] = predictions.dims() else {
        invalid!("predictions must be 2-dimensional");
    };
    if targets.rank() != 1 {
        invalid!("targets must be 1-dimensional");
    }
    if targets.num_elements() != rows {
        invalid!(
            "First dimension of predictions {rows} must match length of targets {}",
            targets.num_elements()
        );
    }
    Ok([rows, classes])
}
