//! Batches of dense elements as sparse tensors: the elements of a batch may differ in shape.

use super::batch::{batch_size, batches, collect};
use super::state::InputState;
use super::transform::{dataset, from_state};
use super::{Dataset, Element, ElementSpec};
use crate::numeric::scratch::check_scratch;
use crate::sparse::carried::serialized_parts;
use device::{Error, Result};
use graph::{Code, DType, PartialShape, Shape, Tensor};
use std::sync::Arc;

/// Returns the dataset of batches of `size` elements, each a vector of three variants: indices, values and shape of a
/// sparse tensor that holds every number of the elements. The shape of the batch is `row` after its first dimension;
/// a dimension that `row` leaves unknown gets the largest size in the batch.
///
/// # Errors
/// `InvalidArgument` if the size is not positive or the input has several components.
pub(crate) fn dense_to_sparse_batch(
    input: Arc<Dataset>,
    size: i64,
    row: PartialShape,
) -> Result<Arc<Dataset>> {
    let count = batch_size(size)?;
    if input.spec.dtypes.len() != 1 {
        device::invalid!("DenseToSparseBatchDataset only supports inputs with a single component.");
    }
    let dims: Arc<[Option<usize>]> = row.dims().unwrap_or_default().into();
    let shape = PartialShape::of_dims(std::iter::once(None).chain(dims.iter().copied()));
    let spec = ElementSpec { dtypes: vec![DType::Variant], shapes: vec![shape] };
    let cardinality = batches(input.cardinality, size, false);
    let inner = input.clone();
    dataset("DenseToSparseBatch", spec, cardinality, &[&input], move |ctx| {
        let dims = dims.clone();
        from_state("DenseToSparseBatch", InputState::new(inner.iterator(ctx)?, ()), move |state, pull| {
            let elements = collect(count, pull, |pull| {
                let element = state.next_input(pull)?;
                element.iter().try_for_each(|element| check_row(element, &dims))?;
                Ok(element)
            })?;
            if elements.is_empty() {
                return Ok(None);
            }
            sparse_batch(&elements, &dims).map(|batch| Some(vec![batch]))
        })
    })
}

/// Checks that an element fits into a row of the batch.
///
/// # Errors
/// `InvalidArgument` if its rank differs from the row's; `DataLoss` if it is larger.
fn check_row(element: &Element, row: &[Option<usize>]) -> Result<()> {
    let [tensor] = &element[..] else { device::invalid!("an element with several components") };
    let (shape, wanted) = (tensor.shape(), PartialShape::of_dims(row.iter().copied()));
    if shape.rank() != row.len() {
        device::invalid!(
            "Input element had shape ({shape}) that is incompatible with the row shape ({wanted})."
        );
    }
    if shape.iter().zip(row).any(|(is, most)| most.is_some_and(|most| *is > most)) {
        let message =
            format!("Input element had shape ({shape}) that is larger than the row shape ({wanted}).");
        return Err(Error::new(Code::DataLoss, message));
    }
    Ok(())
}

/// Returns the elements, which fit into `row`, as the serialized parts of one sparse tensor.
fn sparse_batch(elements: &[Element], row: &[Option<usize>]) -> Result<Tensor> {
    let tensors: Vec<&Tensor> = elements.iter().flatten().collect();
    let rank = row.len();
    let largest = |dim: usize| tensors.iter().map(|tensor| tensor.shape()[dim]).max().unwrap_or(0);
    let dims = (0..rank).map(|dim| row[dim].unwrap_or_else(|| largest(dim)));
    let shape: Vec<i64> = std::iter::once(tensors.len()).chain(dims).map(|dim| dim as i64).collect();
    let total: usize = tensors.iter().map(|tensor| tensor.num_elements()).sum();
    check_scratch::<i64>(total.saturating_mul(rank + 1))?;
    let mut indices = Vec::with_capacity(total * (rank + 1));
    for (i, tensor) in tensors.iter().enumerate() {
        let mut at = vec![0i64; rank];
        for _ in 0..tensor.num_elements() {
            indices.push(i as i64);
            indices.extend_from_slice(&at);
            for (index, size) in at.iter_mut().zip(tensor.shape().iter()).rev() {
                *index += 1;
                if *index < *size as i64 {
                    break;
                }
                *index = 0;
            }
        }
    }
    let flat = |tensor: &&Tensor| Ok(tensor.reshaped(Shape::new(&[tensor.num_elements()])?)?);
    let flat: Vec<Tensor> = tensors.iter().map(flat).collect::<Result<_>>()?;
    serialized_parts(
        Tensor::from_slice(&indices, Shape::new(&[total, rank + 1])?)?,
        super::element::concat(&flat.iter().collect::<Vec<_>>())?,
        Tensor::vector(&shape)?,
    )
}
