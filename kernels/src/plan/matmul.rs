//! Pairs the batches of the inputs of a matrix product.

use crate::numeric::broadcast::Plan;
use device::{Error, Result};
use graph::Shape;

/// A function that checks the ranks of both inputs and returns the plan that pairs the matrices of both batches.
pub type Batches = fn(&Shape, &Shape) -> Result<Plan>;

/// Checks that both inputs are matrices, and returns the plan of their single product.
pub fn single(x: &Shape, y: &Shape) -> Result<Plan> {
    for (i, s) in [x, y].into_iter().enumerate() {
        if s.rank() != 2 {
            device::invalid!("In[{i}] is not a matrix. Instead it has shape {s}");
        }
    }
    Plan::new(&Shape::scalar(), &Shape::scalar())
}

/// Returns the plan of the products of batches of matrices whose batch dimensions must be equal.
pub fn same_batches(x: &Shape, y: &Shape) -> Result<Plan> {
    if x.rank() != y.rank() {
        device::invalid!("In[0] and In[1] has different ndims: {x} vs. {y}");
    }
    at_least_matrices(x, y)?;
    for i in 0..x.rank() - 2 {
        if x[i] != y[i] {
            device::invalid!("In[0].dim({i}) and In[1].dim({i}) must be the same: {x} vs {y}");
        }
    }
    broadcast_batches(x, y)
}

/// Returns the plan of the products of batches of matrices whose batch dimensions broadcast.
pub fn broadcast_batches(x: &Shape, y: &Shape) -> Result<Plan> {
    at_least_matrices(x, y)?;
    let batch = |s: &Shape| Shape::new(&s[..s.rank() - 2]);
    Plan::fit(&batch(x)?, &batch(y)?)?.ok_or_else(|| {
        Error::invalid(format!("In[0] and In[1] must have compatible batch dimensions: {x} vs. {y}"))
    })
}

fn at_least_matrices(x: &Shape, y: &Shape) -> Result<()> {
    for (i, s) in [x, y].into_iter().enumerate() {
        if s.rank() < 2 {
            device::invalid!("In[{i}] ndims must be >= 2: {}", s.rank());
        }
    }
    Ok(())
}
