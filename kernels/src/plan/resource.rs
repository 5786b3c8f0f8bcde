//! The lookup of resource variables that an op reads or assigns.

use device::kernel::KernelContext;
use device::variable::{Variable, VariableInput};
use device::{Error, Result};
use graph::{Code, DType};
use std::sync::Arc;

/// Returns the variable whose value is read. Fails with `FailedPrecondition` if the variable does not exist, and with
/// `InvalidArgument` if it has another dtype.
pub fn readable(input: &VariableInput, ctx: &KernelContext<'_>, dtype: DType) -> Result<Arc<Variable>> {
    let variable = existing(input, ctx)?;
    if variable.dtype() != dtype {
        device::invalid!(
            "Trying to read variable with wrong dtype. Expected {dtype} got {}",
            variable.dtype()
        );
    }
    Ok(variable)
}

/// Returns the variable, or a `FailedPrecondition` error in TensorFlow's words, which clients that wait for
/// initialisation match.
pub(crate) fn existing(input: &VariableInput, ctx: &KernelContext<'_>) -> Result<Arc<Variable>> {
    input.get_or(ctx, |store, handle| {
        store.lookup::<Variable>(&handle.container, &handle.name).map_err(|error| {
            Error::new(
                Code::FailedPrecondition,
                format!(
                    "Could not find variable {}. This could mean that the variable has been deleted. In TF1, it \
                     can also mean the variable is uninitialized. Debug info: container={}, status error \
                     message={error}",
                    handle.name, handle.container
                ),
            )
        })
    })
}

/// Returns the variable to which a value of dtype `dtype` is assigned; the first assignment creates the variable.
pub fn target(input: &VariableInput, ctx: &KernelContext<'_>, dtype: DType) -> Result<Arc<Variable>> {
    let variable = input.get_or(ctx, |store, handle| {
        let shape = handle.dtypes_and_shapes.first().map(|(_, shape)| shape.clone()).unwrap_or_default();
        store.lookup_or_create(&handle.container, &handle.name, || {
            Ok(Variable::new(handle.name.clone(), dtype, shape))
        })
    })?;
    if variable.dtype() != dtype {
        device::invalid!(
            "Trying to assign variable with wrong dtype. Expected {} got {dtype}",
            variable.dtype()
        );
    }
    Ok(variable)
}
