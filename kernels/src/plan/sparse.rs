//! Shapes of sparse tensors and of their products with dense matrices.

use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Shape;

/// Returns the number of values of a sparse tensor, and the shape of the corresponding dense tensor.
pub fn dense_shape(ctx: &KernelContext<'_>) -> Result<(usize, Shape)> {
    let (indices, shape) = (ctx.shape(0)?, ctx.input(1)?);
    let (values, default) = (ctx.shape(2)?, ctx.shape(3)?);
    if indices.rank() > 2 {
        invalid!("sparse_indices should be a scalar, vector, or matrix, got shape {indices}");
    }
    let count = indices.first().copied().unwrap_or(1);
    let rank = indices.get(1).copied().unwrap_or(1);
    if shape.shape().rank() != 1 {
        invalid!("output_shape must be rank 1, got shape {}", shape.shape());
    }
    if shape.num_elements() != rank {
        invalid!("output_shape has incorrect number of elements: {} should be: {rank}", shape.num_elements());
    }
    if values.rank() > 1 || (values.rank() == 1 && values.num_elements() != count) {
        invalid!("sparse_values has incorrect shape {values}, should be [] or [{count}]");
    }
    if default.rank() != 0 {
        invalid!("default_value should be a scalar.");
    }
    Ok((count, Shape::from_i64(&shape.to_i64s()?)?))
}

/// Returns the numbers of rows, summed elements and columns of the product of a sparse and a dense matrix, and the
/// shape of the product.
pub fn product_sizes(
    ctx: &KernelContext<'_>,
    [adjoint_a, adjoint_b]: [bool; 2],
) -> Result<([usize; 3], Shape)> {
    let (a_shape, b) = (ctx.input(2)?, ctx.shape(3)?);
    let [b_rows, b_columns] = *b.dims() else {
        invalid!("Tensor 'b' is not a matrix");
    };
    if a_shape.shape().rank() != 1 || a_shape.num_elements() != 2 {
        invalid!("Tensor 'a_shape' must have 2 elements");
    }
    check_parts(ctx.shape(0)?, ctx.shape(1)?, a_shape.shape())?;
    let a_shape = Shape::from_i64(&a_shape.to_i64s()?)?;
    let [mut rows, mut inner] = [a_shape[0], a_shape[1]];
    if adjoint_a {
        std::mem::swap(&mut rows, &mut inner);
    }
    let (inner_b, columns) = if adjoint_b { (b_columns, b_rows) } else { (b_rows, b_columns) };
    if inner != inner_b {
        invalid!(
            "Cannot multiply A and B because inner dimension does not match: {inner} vs. {inner_b}.  Did you forget \
             a transpose?  Dimensions of A: [{}, {}).  Dimensions of B: {b}",
            a_shape[0],
            a_shape[1]
        );
    }
    Ok(([rows, inner, columns], Shape::new(&[rows, columns])?))
}

/// Checks that the shapes of a sparse tensor's indices, values and dense shape match, and returns the number of values.
pub(crate) fn check_parts(indices: &Shape, values: &Shape, sizes: &Shape) -> Result<usize> {
    let [count, rank] = *indices.dims() else {
        invalid!("Input indices should be a matrix but received shape {indices}");
    };
    if values.rank() != 1 {
        invalid!("Input values should be a vector but received shape {values}");
    }
    if sizes.rank() != 1 {
        invalid!("Input shape should be a vector but received shape {sizes}");
    }
    if values.num_elements() != count {
        invalid!(
            "Number of values must match first dimension of indices. Got {} values, indices shape: {indices}",
            values.num_elements()
        );
    }
    if sizes[0] != rank {
        invalid!(
            "Number of dimensions must match second dimension of indices. Got {} dimensions, indices \
            shape: {indices}",
            sizes[0]
        );
    }
    Ok(count)
}
