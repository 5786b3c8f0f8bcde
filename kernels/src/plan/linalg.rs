//! Checks of batches of matrices and of systems of equations.

use crate::numeric::broadcast::Plan;
use device::{Result, invalid};
use graph::Shape;

/// Returns the batch dimensions of a batch of matrices, and the rows and columns of a matrix.
pub fn matrices(input: &Shape) -> Result<(&[usize], [usize; 2])> {
    let [sizes @ .., rows, columns] = input.dims() else {
        invalid!("Input tensor 0 must have rank >= 2, got shape {input}");
    };
    Ok((sizes, [*rows, *columns]))
}

/// Returns the batch dimensions of a batch of square matrices, and the number of rows of a matrix.
pub fn square(input: &Shape) -> Result<(&[usize], usize)> {
    let (sizes, [rows, columns]) = matrices(input)?;
    if rows != columns {
        invalid!("Input matrix must be square, got {rows} != {columns}");
    }
    Ok((sizes, rows))
}

/// Checks that each system of equations in `a` has right-hand sides in `b`.
pub fn check_systems(a: &Shape, b: &Shape) -> Result<()> {
    let ((a_batch, rows), (b_batch, [right_rows, _])) = (square(a)?, matrices(b)?);
    if a_batch != b_batch || rows != right_rows {
        invalid!("Input matrix and rhs are incompatible: {a} vs. {b}");
    }
    Ok(())
}

/// Returns the plan that broadcasts the batch dimensions of the triangular matrices `a` and of the right-hand sides
/// `b`.
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
