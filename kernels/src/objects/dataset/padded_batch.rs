//! Batching of elements of different shapes: each component is padded to one shape.

use super::batch::{batch_size, batches, collect};
use super::element::stack_padded;
use super::state::InputState;
use super::transform::{dataset, from_state};
use super::{Dataset, Element, ElementSpec, INFINITE};
use device::Result;
use graph::{PartialShape, Tensor};
use std::sync::Arc;

/// Returns the dataset of padded batches of `size` elements. Each dimension that `shapes` leaves unknown gets the
/// largest size of the dimension in the batch.
pub(crate) fn padded_batch(
    input: Arc<Dataset>,
    size: i64,
    shapes: Vec<PartialShape>,
    padding: Vec<Tensor>,
    drop_remainder: bool,
) -> Result<Arc<Dataset>> {
    let count = batch_size(size)?;
    let components = input.spec.dtypes.len();
    if shapes.len() != components {
        device::invalid!(
            "Number of padded shapes ({}) must match the number of components in the input dataset's elements \
             ({components})",
            shapes.len()
        );
    }
    if padding.len() != components {
        device::invalid!(
            "Number of padding values ({}) must match the number of components in the input dataset's elements \
             ({components})",
            padding.len()
        );
    }
    for (i, value) in padding.iter().enumerate() {
        if value.shape().rank() != 0 {
            device::invalid!("All padding values must be scalars");
        }
        if value.dtype() != input.spec.dtypes[i] {
            device::invalid!(
                "Mismatched type between padding value {i} and input dataset's component {i}: {} vs. {}",
                value.dtype(),
                input.spec.dtypes[i]
            );
        }
    }
    let is_exact = drop_remainder || input.cardinality == INFINITE;
    let with_batch = |shape: &PartialShape| {
        let dims = shape.dims().unwrap_or_default().iter().copied();
        PartialShape::of_dims(std::iter::once(is_exact.then_some(count)).chain(dims))
    };
    let spec =
        ElementSpec { dtypes: input.spec.dtypes.clone(), shapes: shapes.iter().map(with_batch).collect() };
    let cardinality = batches(input.cardinality, size, drop_remainder);
    let (inner, plan) = (input.clone(), Arc::new((shapes, padding)));
    dataset("PaddedBatchV2", spec, cardinality, &[&input], move |ctx| {
        let plan = plan.clone();
        // The value of the state is true after the last batch.
        let state = InputState::new(inner.iterator(ctx)?, false);
        from_state("PaddedBatchV2", state, move |state, pull| {
            if state.value {
                return Ok(None);
            }
            let elements = collect(count, pull, |pull| state.next_input(pull))?;
            let has_ended = elements.len() < count;
            state.value = has_ended;
            if elements.is_empty() || has_ended && drop_remainder {
                return Ok(None);
            }
            pad(&elements, &plan.0, &plan.1).map(Some)
        })
    })
    .map(|batches| batches.with_batch_size(Some(size)))
}

/// Pads each component of the elements to its shape in `shapes`, with its scalar in `padding`, and stacks the elements.
fn pad(elements: &[Element], shapes: &[PartialShape], padding: &[Tensor]) -> Result<Element> {
    let mut out = Element::new();
    for (i, (shape, padding)) in shapes.iter().zip(padding).enumerate() {
        if elements.iter().any(|e| e.len() <= i) {
            device::invalid!("an element has no component {i}");
        }
        let tensors: Vec<&Tensor> = elements.iter().map(|e| &e[i]).collect();
        let dims = shape.dims().unwrap_or_default();
        let mut row: Vec<usize> = dims.iter().map(|d| d.unwrap_or(0)).collect();
        for tensor in &tensors {
            if tensor.shape().rank() != row.len() {
                device::invalid!(
                    "All elements in a batch must have the same rank as the padded shape for component{i}: \
                     expected rank {} but got element with rank {}",
                    row.len(),
                    tensor.shape().rank()
                );
            }
            for (to, (is, asked)) in row.iter_mut().zip(tensor.shape().iter().zip(dims)) {
                if asked.is_none() {
                    *to = (*to).max(*is);
                }
            }
        }
        out.push(stack_padded(&tensors, &row, padding)?);
    }
    Ok(out)
}
