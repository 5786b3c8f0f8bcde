//! ResizeBilinear: linear interpolation between the two nearest pixels on each axis.

use super::as_single;
use crate::numeric::scalar::Real;
use crate::numeric::threads::{for_parts, for_rows};
use crate::numeric::widen::Float;
use crate::plan::resize::{Grid, LinearTaps, Sizes, linear_taps};
use device::Result;
use device::kernel::KernelContext;
use graph::{DType, Tensor};
use num_traits::Zero as _;

pub(crate) fn forward(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let input = as_single(ctx.input(0)?)?;
    let mut out = ctx.allocate(DType::Float, sizes.output_shape()?)?;
    if sizes.input == sizes.output {
        out = input;
    } else if out.num_elements() > 0 {
        let rows = linear_taps(grid, sizes.input[0], sizes.output[0]);
        let columns = linear_taps(grid, sizes.input[1], sizes.output[1]);
        let (values, channels) = (input.values::<f32>()?, sizes.channels);
        let line = |image: usize, row: usize| {
            &values[(image * sizes.input[0] + row) * sizes.input_line()..][..sizes.input_line()]
        };
        for_rows(out.values_mut::<f32>()?, sizes.output_line(), |first, lines| {
            for (i, out) in lines.chunks_exact_mut(sizes.output_line()).enumerate() {
                let (image, row) = ((first + i) / sizes.output[0], rows[(first + i) % sizes.output[0]]);
                let (top, bottom) = (line(image, row.lower), line(image, row.upper));
                for (out, column) in out.chunks_exact_mut(channels).zip(&columns) {
                    let (left, right) = (column.lower * channels, column.upper * channels);
                    for (c, o) in out.iter_mut().enumerate() {
                        let above = top[left + c] + (top[right + c] - top[left + c]) * column.part;
                        let below = bottom[left + c] + (bottom[right + c] - bottom[left + c]) * column.part;
                        *o = above + (below - above) * row.part;
                    }
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}

/// A function `(sizes, [row taps, column taps], incoming gradient, out)` that sets `out` to the gradient of the images.
type WriteGradient = fn(&Sizes, [&[LinearTaps]; 2], &[f32], &mut Tensor) -> Result<()>;

pub(super) fn backward(
    ctx: &mut KernelContext<'_>,
    grid: Grid,
    dtype: DType,
    write_gradient: WriteGradient,
) -> Result<()> {
    let sizes = Sizes::backward(ctx)?;
    let mut out = ctx.allocate(dtype, sizes.input_shape()?)?;
    let grads = ctx.input(0)?.values::<f32>()?;
    if out.num_elements() > 0 {
        let rows = linear_taps(grid, sizes.input[0], sizes.output[0]);
        let columns = linear_taps(grid, sizes.input[1], sizes.output[1]);
        write_gradient(&sizes, [&rows, &columns], grads, &mut out)?;
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Sets `out` to the gradient of images with elements of type `T`.
pub(super) fn write_gradient<T: Float>(
    sizes: &Sizes,
    taps: [&[LinearTaps]; 2],
    grads: &[f32],
    out: &mut Tensor,
) -> Result<()> {
    let image_in = sizes.input[0] * sizes.input_line();
    let image_out = sizes.output[0] * sizes.output_line();
    for_parts(out.values_mut::<T>()?, image_in, true, |image, out| {
        let mut sums = vec![T::Wide::zero(); image_in];
        add_to_image(sizes, taps, &grads[image * image_out..][..image_out], &mut sums);
        out.iter_mut().zip(&sums).for_each(|(o, &s)| *o = T::of_wide(s));
    });
    Ok(())
}

/// Adds the gradient of one resized image to `sums`, the gradient of the original image.
fn add_to_image<W: Real>(sizes: &Sizes, [rows, columns]: [&[LinearTaps]; 2], grads: &[f32], sums: &mut [W]) {
    let channels = sizes.channels;
    for (row, grads) in rows.iter().zip(grads.chunks_exact(sizes.output_line())) {
        for (column, grad) in columns.iter().zip(grads.chunks_exact(channels)) {
            for (y, by_row) in [(row.lower, 1.0 - row.part), (row.upper, row.part)] {
                for (x, by_column) in [(column.lower, 1.0 - column.part), (column.upper, column.part)] {
                    let at = y * sizes.input_line() + x * channels;
                    for (s, &g) in sums[at..at + channels].iter_mut().zip(grad) {
                        *s += W::of(f64::from(g * by_row * by_column));
                    }
                }
            }
        }
    }
}
