//! Checks of the indices and updates of scatter ops, and the output that refers to the updated variable.

use device::Result;
use device::kernel::KernelContext;
use device::value::Value;
use device::variable::VariableInput;
use graph::Shape;
use smallvec::SmallVec;

/// Sets output 0 to a reference to the variable if the op has the variable as a reference in its input.
pub fn pass_reference(
    ctx: &mut KernelContext<'_>,
    input: &VariableInput,
    variable: std::sync::Arc<device::variable::Variable>,
) {
    if input.is_ref() {
        ctx.set_output(0, Value::Ref(variable));
    }
}

/// Returns the shape in which `ScatterNd` reads its indices: a vector has one coordinate per slice, so a last axis of
/// size 1 is added.
pub fn one_for_each(indices: &Shape) -> SmallVec<[usize; 6]> {
    let mut at: SmallVec<[usize; 6]> = indices[..].into();
    at.extend((at.len() == 1).then_some(1));
    at
}

/// Checks that indices and updates are both empty, or that the params, the indices and the updates all have elements.
pub fn check_nothing_for_empty(params: &Shape, indices: &Shape, updates: &Shape) -> Result<()> {
    let counts = [indices.num_elements(), updates.num_elements()];
    if counts != [0, 0] && (params.num_elements() == 0 || counts.contains(&0)) {
        device::invalid!(
            "Indices and updates specified for empty output. indices shape: {indices}, updates shape: {updates}, \
             params shape: {params}"
        );
    }
    Ok(())
}

/// Checks that the updates have one slice for each index, and returns the number of coordinates of an index.
///
/// `read_in` is the shape in which the indices are read; its last axis holds the coordinates of each index.
pub fn check_slices(params: &Shape, at: &Shape, read_in: &[usize], updates: &Shape) -> Result<usize> {
    let Some((&depth, batch)) = read_in.split_last() else {
        device::invalid!("indices must be at least 1-D, got shape []");
    };
    if params.rank() == 0 {
        device::invalid!("Output must be at least 1-D, got shape: {params}");
    }
    if depth > params.rank() {
        device::invalid!("indices of shape {at} have {depth} numbers each, params has shape {params}");
    }
    if updates.rank() < batch.len() || updates[..batch.len()] != *batch {
        device::invalid!(
            "Dimensions [0,{0}) of indices[shape={at}] must match dimensions [0,{0}) of updates[shape={updates}]",
            batch.len()
        );
    }
    if updates[batch.len()..] != params[depth..] {
        device::invalid!(
            "Dimensions [{depth},{}) of input[shape={params}] must match dimensions [{},{}) of \
             updates[shape={updates}]",
            params.rank(),
            batch.len(),
            updates.rank()
        );
    }
    Ok(depth)
}
