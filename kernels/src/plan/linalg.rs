//! Checks of batches of matrices and of systems of equations.

use crate::numeric::broadcast::Plan;
use device::{Result, invalid};
use graph::Shape;

/// Returns the batch dimensions, and the rows and columns of the matrices.
pub fn matrices(input: &Shape) -> Result<(&[usize], [usize; 2])> {
    let [sizes @ .., rows, columns] = input.dims() else {
        invalid!("Input tensor 0 must have rank >= 2, got shape {input}");
    };
    Ok((sizes, [*rows, *columns]))
}

/// Returns the batch dimensions, and the number of rows of the matrices, which must be square.
pub fn square(input: &Shape) -> Result<(&[usize], usize)> {
    let (sizes, [rows, columns]) = matrices(input)?;
    if rows != columns {
        invalid!("Input matrix must be square, got {rows} != {columns}");
    }
    Ok((sizes, rows))
}

/// Checks that the systems of equations `a` have a right-hand side in `b` each.
pub fn check_systems(a: &Shape, b: &Shape) -> Result<()> {
    let ((a_batch, rows), (b_batch, [right_rows, _])) = (square(a)?, matrices(b)?);
    if a_batch != b_batch || rows != right_rows {
        invalid!("Input matrix and rhs are incompatible: {a} vs. {b}");
    }
    Ok(())
}

/// Returns how the batches of triangular matrices and of right-hand sides broadcast.
pub fn triangular_plan(a: &Shape, b: &Shape) -> Result<Plan> {
    let ((a_batch, rows), (b_batch, [right_rows, _])) = (square(a)?, matrices(b)?);
    if rows != right_rows {
        invalid!("In[0] and In[1] are incompatible: {a} vs. {b}");
    }
    let Some(plan) = Plan::fit(&Shape::new(a_batch)?, &Shape::new(b_batch)?)? else {
        invalid!("In[0] and In[1] must have compatible batch dimensions: {a} vs. {b}");
    };
    Ok(plan)
}
