//! Rows of tensors of any dtype: splits a batch along its first axis, and stacks rows into a batch.

use bytes::Bytes;
use device::{Error, Result};
use graph::{DType, ResourceHandle, Shape, Tensor, Variant};

/// Returns the rows of a tensor, each in its own buffer.
///
/// # Errors
/// `InvalidArgument` for a scalar, which has no rows.
pub fn split(batch: &Tensor) -> Result<Vec<Tensor>> {
    let Some((&count, dims)) = batch.shape().split_first() else {
        device::invalid!("a scalar has no rows");
    };
    let shape = Shape::new(dims)?;
    let row_size = shape.num_elements();
    (0..count).map(|row| elements(batch, row * row_size, row_size, shape.clone())).collect()
}

/// Returns elements `start..start + count` of a tensor as a tensor of `shape`.
pub(crate) fn elements(of: &Tensor, start: usize, count: usize, shape: Shape) -> Result<Tensor> {
    let range = start..start + count;
    Ok(match of.dtype() {
        DType::String => Tensor::strings(of.as_strings()?[range].to_vec(), shape)?,
        DType::Resource => Tensor::resources(of.as_resources()?[range].to_vec(), shape)?,
        DType::Variant => Tensor::variants(of.as_variants()?[range].to_vec(), shape)?,
        dtype => {
            let size = element_size(dtype)?;
            Tensor::from_bytes(dtype, shape, &of.bytes()?[range.start * size..range.end * size])?
        }
    })
}

/// Concatenates tensors of one dtype and of equal shapes but for the first axis, along that axis.
///
/// # Errors
/// `InvalidArgument` for scalars, and for shapes or dtypes that differ.
pub(crate) fn concatenate(parts: &[&Tensor]) -> Result<Tensor> {
    let Some(first) = parts.first() else { device::invalid!("there is nothing to concatenate") };
    let mut count = 0;
    for part in parts {
        let (shape, wanted) = (part.shape(), first.shape());
        if shape.rank() == 0
            || shape.dims().get(1..) != wanted.dims().get(1..)
            || part.dtype() != first.dtype()
        {
            device::invalid!(
                "rows of {} and shape {shape} cannot be joined to rows of {} and shape {wanted}",
                part.dtype(),
                first.dtype()
            );
        }
        count += shape[0];
    }
    let shape = Shape::new(&[&[count], &first.shape()[1..]].concat())?;
    Ok(match first.dtype() {
        DType::String => {
            let all = parts.iter().map(|t| t.as_strings()).collect::<Result<Vec<_>, _>>()?;
            Tensor::strings(all.concat(), shape)?
        }
        DType::Resource => {
            let all = parts.iter().map(|t| t.as_resources()).collect::<Result<Vec<_>, _>>()?;
            Tensor::resources(all.concat(), shape)?
        }
        DType::Variant => {
            let all = parts.iter().map(|t| t.as_variants()).collect::<Result<Vec<_>, _>>()?;
            Tensor::variants(all.concat(), shape)?
        }
        dtype => {
            let all = parts.iter().map(|t| t.bytes()).collect::<Result<Vec<_>, _>>()?;
            Tensor::from_bytes(dtype, shape, &all.concat())?
        }
    })
}

fn element_size(dtype: DType) -> Result<usize> {
    dtype.size().ok_or_else(|| Error::unimplemented(format!("elements of {dtype} have no size")))
}

/// Stacks `rows` into one tensor of shape `[rows.len()] + shape`; rows smaller than `shape` are padded with zeros or
/// empty strings.
pub fn stack(rows: &[&Tensor], dtype: DType, shape: &Shape) -> Result<Tensor> {
    let out = Shape::new(&[&[rows.len()], shape.dims()].concat())?;
    let mut starts = Vec::with_capacity(rows.len());
    let row_size = shape.num_elements();
    for (i, row) in rows.iter().enumerate() {
        let fits =
            row.shape().rank() == shape.rank() && row.shape().iter().zip(shape.iter()).all(|(a, b)| a <= b);
        if !fits || row.dtype() != dtype {
            device::invalid!(
                "a row of {} and shape {} does not fit {dtype} and {shape}",
                row.dtype(),
                row.shape()
            );
        }
        starts.push(i * row_size);
    }
    let runs = || rows.iter().zip(&starts).flat_map(|(row, &start)| runs(row, shape, start));
    macro_rules! objects {
        ($zero:expr, $view:ident, $make:ident) => {{
            let mut all = vec![$zero; out.num_elements()];
            for (row, from, to, length) in runs() {
                all[to..to + length].clone_from_slice(&row.$view()?[from..from + length]);
            }
            Ok(Tensor::$make(all, out)?)
        }};
    }
    match dtype {
        DType::String => objects!(Bytes::new(), as_strings, strings),
        DType::Variant => objects!(Variant::EMPTY, as_variants, variants),
        DType::Resource => {
            let all: Result<Vec<&[ResourceHandle]>> =
                rows.iter().map(|row| Ok(row.as_resources()?)).collect();
            Ok(Tensor::resources(all?.concat(), out)?)
        }
        _ => {
            let size = element_size(dtype)?;
            let mut tensor = Tensor::zeros(dtype, out)?;
            let bytes = tensor.bytes_mut()?;
            for (row, from, to, length) in runs() {
                bytes[to * size..(to + length) * size]
                    .copy_from_slice(&row.bytes()?[from * size..(from + length) * size]);
            }
            Ok(tensor)
        }
    }
}

/// Returns the contiguous runs of elements of `row` when it is stored in a block of `shape`. Each run is the row, the
/// index of its first element in the row and in the batch, and its length; `start` is the index of the block's first
/// element in the batch.
fn runs<'a>(
    row: &'a Tensor,
    shape: &Shape,
    start: usize,
) -> impl Iterator<Item = (&'a Tensor, usize, usize, usize)> + use<'a> {
    let rank = shape.rank();
    // The run extends over the trailing axes that have equal sizes in the row and in the block, and over the axis
    // before them.
    let same = (0..rank).rev().take_while(|&axis| row.shape()[axis] == shape[axis]).count();
    let outer = rank - same;
    let split = outer.saturating_sub(1);
    let length: usize = row.shape()[split..].iter().product();
    let strides = shape.strides();
    let dims: Vec<usize> = row.shape()[..split].to_vec();
    let count: usize = dims.iter().product();
    let count = if length == 0 { 0 } else { count };
    let strides: Vec<usize> = strides[..split].to_vec();
    (0..count).map(move |run| {
        let (mut rest, mut to) = (run, start);
        for (size, stride) in dims.iter().zip(&strides).rev() {
            to += rest % size * stride;
            rest /= size;
        }
        (row, run * length, to, length)
    })
}

/// Returns the smallest shape into which every row fits.
pub fn bounds(rows: &[&Tensor]) -> Result<Shape> {
    let mut dims: Vec<usize> = rows.first().map(|row| row.shape().dims().to_vec()).unwrap_or_default();
    for row in rows {
        for (dim, size) in dims.iter_mut().zip(row.shape().iter()) {
            *dim = (*dim).max(*size);
        }
    }
    Ok(Shape::new(&dims)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacking_the_rows_of_a_batch_gives_the_batch() -> Result<()> {
        let batch = Tensor::try_from([[1i32, 2], [3, 4], [5, 6]])?;
        let rows = split(&batch)?;
        assert_eq!(rows[1], Tensor::try_from([3i32, 4])?);
        let shape = Shape::new(&[2])?;
        assert_eq!(stack(&rows.iter().collect::<Vec<_>>(), DType::Int32, &shape)?, batch);
        let words = Tensor::strings(vec!["a".into(), "b".into()], Shape::new(&[2])?)?;
        let rows = split(&words)?;
        assert_eq!(stack(&rows.iter().collect::<Vec<_>>(), DType::String, &Shape::scalar())?, words);
        assert!(split(&Tensor::from(1i32)).is_err());
        let none = stack(&[], DType::Float, &Shape::new(&[0, 2])?)?;
        assert_eq!(none.shape().dims(), [0, 0, 2]);
        Ok(())
    }

    #[test]
    fn smaller_rows_are_padded() -> Result<()> {
        let a = Tensor::from_slice(&[1i32, 2, 3, 4], Shape::new(&[2, 2, 1])?)?;
        let b = Tensor::from_slice(&[5i32, 6, 7], Shape::new(&[1, 1, 3])?)?;
        let empty = Tensor::zeros(DType::Int32, Shape::new(&[0, 2, 1])?)?;
        let shape = bounds(&[&a, &b, &empty])?;
        assert_eq!(shape.dims(), [2, 2, 3]);
        let out = stack(&[&a, &b, &empty], DType::Int32, &shape)?;
        let expected = [
            [1, 0, 0, 2, 0, 0, 3, 0, 0, 4, 0, 0],
            [5, 6, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        ];
        assert_eq!(out.values::<i32>()?, expected.concat());
        assert!(stack(&[&b], DType::Int32, &Shape::new(&[1, 1, 2])?).is_err());
        assert!(stack(&[&b], DType::Float, &shape).is_err());
        Ok(())
    }
}
