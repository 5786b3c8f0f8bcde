//! Functions that split tensors along the first dimension, and that join tensors along it.

use bytes::Bytes;
use device::{Error, Result};
use graph::{Code, DType, ResourceHandle, Shape, Tensor, Variant};
use std::ops::Range;

/// Returns elements `start..start + shape.num_elements()` of `tensor` in row-major order, as a tensor of `shape`.
pub(crate) fn part(tensor: &Tensor, start: usize, shape: Shape) -> Result<Tensor> {
    let range = start..start + shape.num_elements();
    Ok(match tensor.dtype() {
        DType::String => Tensor::strings(tensor.as_strings()?[range].to_vec(), shape)?,
        DType::Resource => Tensor::resources(tensor.as_resources()?[range].to_vec(), shape)?,
        DType::Variant => Tensor::variants(tensor.as_variants()?[range].to_vec(), shape)?,
        dtype => {
            let size = size_of_element(dtype)?;
            Tensor::from_bytes(dtype, shape, &tensor.bytes()?[range.start * size..range.end * size])?
        }
    })
}

/// Returns `tensor[i]`; `i` must be within the first dimension.
pub(crate) fn row(tensor: &Tensor, i: usize) -> Result<Tensor> {
    let shape = Shape::new(&tensor.shape()[1..])?;
    let start = i * shape.num_elements();
    part(tensor, start, shape)
}

/// Returns the rows `tensor[range]`; the range must be within the first dimension.
pub(crate) fn rows(tensor: &Tensor, range: Range<usize>) -> Result<Tensor> {
    let row = Shape::new(&tensor.shape()[1..])?;
    part(tensor, range.start * row.num_elements(), stacked(range.len(), &row)?)
}

/// Concatenates the tensors along their first dimension.
///
/// # Errors
/// `InvalidArgument` if the tensors differ in dtype or in the shape of their rows.
pub(crate) fn concat(tensors: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = tensors.first() else { device::invalid!("a batch of no parts") };
    let is_like_first = |tensor: &&Tensor| {
        tensor.dtype() == first.dtype() && tensor.shape().get(1..) == first.shape().get(1..)
    };
    if !tensors.iter().all(is_like_first) {
        device::invalid!("Cannot join batches of rows of different types or shapes.");
    }
    let count = tensors.iter().map(|tensor| tensor.shape().first().copied().unwrap_or(0)).sum();
    join(tensors, first.dtype(), stacked(count, first.shape().get(1..).unwrap_or_default())?)
}

fn size_of_element(dtype: DType) -> Result<usize> {
    dtype.size().ok_or_else(|| Error::unimplemented(format!("elements of {dtype} in datasets")))
}

/// Returns the shape of `count` stacked tensors of shape `of`.
fn stacked(count: usize, of: &[usize]) -> Result<Shape> {
    Ok(Shape::new(&[&[count], of].concat())?)
}

/// Stacks the tensors along a new first dimension. `component` is the index of the component in its element, for
/// messages.
///
/// # Errors
/// `InvalidArgument` if the tensors differ in dtype or shape.
pub(crate) fn stack(tensors: &[&Tensor], component: usize) -> Result<Tensor> {
    let Some(first) = tensors.first() else { device::invalid!("a batch of no elements") };
    for (i, tensor) in tensors.iter().enumerate() {
        if tensor.dtype() != first.dtype() {
            device::invalid!(
                "Cannot batch tensors with different types in component {component}. First element had type {} \
                 and element {i} had type {}.",
                first.dtype(),
                tensor.dtype()
            );
        }
        if tensor.shape() != first.shape() {
            device::invalid!(
                "Cannot batch tensors with different shapes in component {component}. First element had shape {} \
                 and element {i} had shape {}.",
                first.shape(),
                tensor.shape()
            );
        }
    }
    join(tensors, first.dtype(), stacked(tensors.len(), first.shape())?)
}

/// Returns a tensor of shape `shape` with the elements of all `tensors`, one tensor after the other.
fn join(tensors: &[&Tensor], dtype: DType, shape: Shape) -> Result<Tensor> {
    Ok(match dtype {
        DType::String => {
            let mut all = Vec::with_capacity(shape.num_elements());
            for tensor in tensors {
                all.extend_from_slice(tensor.as_strings()?);
            }
            Tensor::strings(all, shape)?
        }
        DType::Resource => {
            let mut all: Vec<ResourceHandle> = Vec::with_capacity(shape.num_elements());
            for tensor in tensors {
                all.extend_from_slice(tensor.as_resources()?);
            }
            Tensor::resources(all, shape)?
        }
        DType::Variant => {
            let mut all: Vec<Variant> = Vec::with_capacity(shape.num_elements());
            for tensor in tensors {
                all.extend_from_slice(tensor.as_variants()?);
            }
            Tensor::variants(all, shape)?
        }
        dtype => {
            let mut out = Tensor::unspecified(dtype, shape)?;
            let mut rest = out.bytes_mut()?;
            for tensor in tensors {
                let bytes = tensor.bytes()?;
                let (to, after) = rest.split_at_mut(bytes.len());
                to.copy_from_slice(bytes);
                rest = after;
            }
            out
        }
    })
}

/// Pads each tensor at the end of each dimension to shape `row` with the scalar `padding`, and stacks the tensors along
/// a new first dimension.
///
/// # Errors
/// `DataLoss` if a tensor is larger than `row`.
pub(crate) fn stack_padded(tensors: &[&Tensor], row: &[usize], padding: &Tensor) -> Result<Tensor> {
    for tensor in tensors {
        if tensor.shape().rank() != row.len() || tensor.shape().iter().zip(row).any(|(is, most)| is > most) {
            return Err(Error::new(
                Code::DataLoss,
                "Attempted to pad to a smaller size than the input element.",
            ));
        }
    }
    let shape = stacked(tensors.len(), row)?;
    let dtype = padding.dtype();
    if let Some(other) = tensors.iter().find(|t| t.dtype() != dtype) {
        device::invalid!("a padding of {dtype} for elements of {}", other.dtype());
    }
    if tensors.iter().all(|t| t.shape().dims() == row) {
        return join(tensors, dtype, shape);
    }
    let size_of_row = row.iter().product::<usize>();
    match dtype {
        DType::String => {
            let [value] = padding.as_strings()? else { device::invalid!("padding_values must be scalars") };
            let zeros = Tensor::zeros(dtype, shape.clone())?;
            let mut out: Vec<Bytes> = zeros.as_strings()?.to_vec();
            out.fill(value.clone());
            for (i, tensor) in tensors.iter().enumerate() {
                copy_corner(tensor.as_strings()?, tensor.shape(), &mut out[i * size_of_row..], row, 1);
            }
            Ok(Tensor::strings(out, shape)?)
        }
        DType::Variant => {
            let [value] = padding.as_variants()? else { device::invalid!("padding_values must be scalars") };
            let zeros = Tensor::zeros(dtype, shape.clone())?;
            let mut out = zeros.as_variants()?.to_vec();
            out.fill(value.clone());
            for (i, tensor) in tensors.iter().enumerate() {
                copy_corner(tensor.as_variants()?, tensor.shape(), &mut out[i * size_of_row..], row, 1);
            }
            Ok(Tensor::variants(out, shape)?)
        }
        dtype => {
            let size = size_of_element(dtype)?;
            let value = padding.bytes()?.to_vec();
            let mut out = Tensor::unspecified(dtype, shape)?;
            let bytes = out.bytes_mut()?;
            if value.iter().all(|b| *b == value[0]) {
                bytes.fill(value[0]);
            } else {
                bytes.chunks_exact_mut(size).for_each(|to| to.copy_from_slice(&value));
            }
            for (i, tensor) in tensors.iter().enumerate() {
                let to = &mut bytes[i * size_of_row * size..];
                copy_corner(tensor.bytes()?, tensor.shape(), to, row, size);
            }
            Ok(out)
        }
    }
}

/// Copies a block of shape `from_shape` into the leading corner of a block of shape `to_shape`, one innermost line at
/// a time. Each element is `size` items of `T`.
fn copy_corner<T: Clone>(from: &[T], from_shape: &[usize], to: &mut [T], to_shape: &[usize], size: usize) {
    let Some((line, outer)) = from_shape.split_last() else {
        to[..size].clone_from_slice(&from[..size]);
        return;
    };
    let line = line * size;
    if line == 0 {
        return;
    }
    let mut at = vec![0usize; outer.len()];
    for from in from.chunks_exact(line) {
        let offset = at.iter().zip(to_shape).fold(0, |sum, (i, dim)| sum * dim + i);
        let start = offset * to_shape[outer.len()] * size;
        to[start..start + line].clone_from_slice(from);
        for (i, most) in at.iter_mut().zip(outer).rev() {
            *i += 1;
            if *i < *most {
                break;
            }
            *i = 0;
        }
    }
}
