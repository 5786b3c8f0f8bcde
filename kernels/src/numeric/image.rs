//! Conversion of images and volumes between channels first and channels last, and to the type that kernels compute in.
//! Kernels compute with channels last.

use super::threads::{PARALLEL, for_parts};
use super::widen::{from_wide, to_wide};
use bytemuck::Pod;
use device::{Error, Result};
use graph::ops::window::DataFormat;
use graph::{DType, Shape, Tensor};

/// Returns images or volumes with channels last, in the element type that kernels compute in.
pub(crate) fn load(images: &Tensor, format: DataFormat) -> Result<Tensor> {
    to_wide(&to_nhwc(images, format)?)
}

/// Converts a result to `dtype` and `format`: the inverse of [`load`].
pub(crate) fn store(wide: Tensor, dtype: DType, format: DataFormat) -> Result<Tensor> {
    from_nhwc(from_wide(wide, dtype)?, format)
}

/// Returns the images or volumes with channels last: `[batch, …, rows, columns, channels]`; without a copy if `format`
/// has channels last.
pub(crate) fn to_nhwc(images: &Tensor, format: DataFormat) -> Result<Tensor> {
    match (format, images.shape().dims()) {
        (DataFormat::Nchw, &[n, c, h, w]) => swap_inner(images, [n, c, h * w], &[n, h, w, c]),
        (DataFormat::Nchw, &[n, c, d, h, w]) => swap_inner(images, [n, c, d * h * w], &[n, d, h, w, c]),
        _ => Ok(images.clone()),
    }
}

/// Converts images or volumes from channels last to `format`; without a copy if `format` has channels last.
pub(crate) fn from_nhwc(images: Tensor, format: DataFormat) -> Result<Tensor> {
    match (format, images.shape().dims()) {
        (DataFormat::Nchw, &[n, h, w, c]) => swap_inner(&images, [n, h * w, c], &[n, c, h, w]),
        (DataFormat::Nchw, &[n, d, h, w, c]) => swap_inner(&images, [n, d * h * w, c], &[n, c, d, h, w]),
        _ => Ok(images),
    }
}

/// Transposes each of `n` matrices of `rows` rows and `columns` columns, and returns them as a tensor of `shape`.
fn swap_inner(images: &Tensor, [n, rows, columns]: [usize; 3], shape: &[usize]) -> Result<Tensor> {
    if images.num_elements() == 0 || rows == 1 || columns == 1 {
        return Ok(images.reshaped(Shape::new(shape)?)?);
    }
    let mut out = Tensor::unspecified(images.dtype(), Shape::new(shape)?)?;
    let size = images.dtype().size().unwrap_or(1);
    let (from, to) = (images.bytes()?, out.bytes_mut()?);
    match size {
        1 => transpose::<u8>(from, to, n, rows, columns),
        2 => transpose::<u16>(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to), n, rows, columns),
        4 => transpose::<u32>(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to), n, rows, columns),
        8 => transpose::<u64>(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to), n, rows, columns),
        _ => {
            return Err(Error::unimplemented(format!("no CPU kernel for images of type {}", images.dtype())));
        }
    }
    Ok(out)
}

fn transpose<T: Pod + Send + Sync>(from: &[T], to: &mut [T], n: usize, rows: usize, columns: usize) {
    /// The side of the square blocks that are transposed at a time, so that source and destination stay in the
    /// first-level cache.
    const BLOCK: usize = 16;
    let size = rows * columns;
    for_parts(to, size, n * size >= PARALLEL, |i, to| {
        let from = &from[i * size..][..size];
        for i in (0..rows).step_by(BLOCK) {
            for j in (0..columns).step_by(BLOCK) {
                for column in j..columns.min(j + BLOCK) {
                    for row in i..rows.min(i + BLOCK) {
                        to[column * rows + row] = from[row * columns + column];
                    }
                }
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nchw_and_nhwc_conversions_are_inverse() -> Result<()> {
        let values: Vec<i16> = (0..2 * 3 * 20 * 17).collect();
        let images = Tensor::from_slice(&values, Shape::new(&[2, 3, 20, 17])?)?;
        let last = to_nhwc(&images, DataFormat::Nchw)?;
        assert_eq!(last.shape().dims(), [2, 20, 17, 3]);
        assert_eq!(last.values::<i16>()?[..4], [0, 340, 680, 1]);
        assert_eq!(from_nhwc(last, DataFormat::Nchw)?, images);
        assert_eq!(to_nhwc(&images, DataFormat::Nhwc)?, images);
        Ok(())
    }
}
