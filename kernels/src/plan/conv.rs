//! Shapes of convolutions that are given by an input of the node.

use device::Result;
use device::kernel::KernelContext;
use graph::Shape;
use graph::ops::conv::Conv;

/// Returns the sizes in input `i`, which must be a vector; `name` is the input's name in messages.
pub fn sizes_input(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<Vec<i64>> {
    let sizes = ctx.input(i)?;
    if sizes.shape().rank() != 1 {
        device::invalid!(
            "{}: {name} input must be 1-dim, not {}",
            ctx.node().op.name(),
            sizes.shape().rank()
        );
    }
    Ok(sizes.to_i64s()?)
}

/// Returns the shape of the convolution's input, given by input 0 as all its sizes or, for images, as rows and columns
/// only.
pub fn input_shape(ctx: &KernelContext<'_>, conv: &Conv) -> Result<Shape> {
    let (filter, dy) = (ctx.shape(1)?, ctx.shape(2)?);
    let input_sizes = sizes_input(ctx, 0, "input_sizes")?;
    Ok(match (input_sizes.as_slice(), dy.dims(), filter.dims()) {
        (&[h, w], &[n, _, _, _], &[_, _, c, _]) => {
            Shape::from_i64(&conv.input_shape([h, w], n as i64, c as i64))?
        }
        _ => Shape::from_i64(&input_sizes)?,
    })
}
