//! Checks of the inputs of the optimizer ops.

use device::kernel::KernelInit;
use device::{Error, Result};
use graph::Shape;

/// The only scalar argument of the optimizers whose rank TensorFlow does not check.
const UNCHECKED_RANK: &str = "sign_decay";

/// Checks that the argument `name` is a scalar.
pub fn check_scalar(name: &str, shape: &Shape) -> Result<()> {
    if shape.rank() > 0 && !(name == UNCHECKED_RANK && shape.num_elements() == 1) {
        device::invalid!("{name} is not a scalar: {shape}");
    }
    Ok(())
}

/// The indices and names of the inputs of an optimizer's op.
#[derive(Debug)]
pub struct Arguments {
    /// The names of the inputs that hold the variable and its slots, in the order of the inputs.
    pub variables: Vec<&'static str>,
    /// The index and the name of the input that holds the gradient.
    pub grad: (usize, &'static str),
    pub indices: Option<usize>,
    pub scalars: Vec<(usize, &'static str)>,
}

impl Arguments {
    /// Returns the indices and names of the inputs of an optimizer's node.
    pub fn new(init: &KernelInit<'_>) -> Result<Arguments> {
        let mut variables = Vec::new();
        let (mut grad, mut indices, mut scalars) = (None, None, Vec::new());
        for (i, (arg, port)) in init.node.op.inputs.iter().zip(init.inputs).enumerate() {
            match arg.name {
                name if port.is_ref_or_resource() => variables.push(name),
                name @ ("grad" | "delta") => grad = Some((i, name)),
                "indices" => indices = Some(i),
                name => scalars.push((i, name)),
            }
        }
        let grad = grad.ok_or_else(|| Error::internal("an optimizer's op takes no gradient"))?;
        Ok(Arguments { variables, grad, indices, scalars })
    }
}

/// Checks that the argument `name` has the shape of the variable.
pub fn same_shape(var: &Shape, name: &str, shape: &Shape) -> Result<()> {
    if var != shape {
        device::invalid!("var and {name} do not have the same shape{var} {shape}");
    }
    Ok(())
}

/// Checks that a sparse gradient has one row per index, of the shape of the variable's rows, and returns the variable's
/// number of rows.
pub fn check_rows(var: &Shape, grad: &Shape, indices: &Shape) -> Result<usize> {
    let Some((&count, row)) = var.split_first() else {
        device::invalid!("var must be at least 1 dimensional");
    };
    if indices.rank() != 1 {
        device::invalid!("indices must be one-dimensional");
    }
    if grad.rank() != var.rank() {
        device::invalid!("var and grad must have the same rank, got shapes {var} and {grad}");
    }
    if let Some(axis) = (1..var.rank()).find(|&axis| row[axis - 1] != grad[axis]) {
        device::invalid!("var and grad must match in dimension {axis}");
    }
    if grad[0] != indices[0] {
        device::invalid!("grad must be the same size as indices in the first dimension.");
    }
    Ok(count)
}
