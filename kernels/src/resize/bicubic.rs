//! ResizeBicubic: a cubic through the four nearest pixels on each axis. The weights come from a table of 1024 steps
//! like TensorFlow's, because the steps are visible in the results.

use super::as_single;
use crate::numeric::threads::for_rows;
use crate::plan::resize::{Grid, Sizes, cubic_taps};
use device::Result;
use device::kernel::KernelContext;
use graph::{DType, Element, Tensor};
use num_traits::{AsPrimitive, Float};

pub(super) fn forward(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let input = as_single(ctx.input(0)?)?;
    let mut out = ctx.allocate(DType::Float, sizes.output_shape()?)?;
    if out.num_elements() > 0 {
        let rows = cubic_taps(grid, sizes.input[0], sizes.output[0]);
        let columns = cubic_taps(grid, sizes.input[1], sizes.output[1]);
        let (values, channels, line_in) = (input.values::<f32>()?, sizes.channels, sizes.input_line());
        for_rows(out.values_mut::<f32>()?, sizes.output_line(), |first, lines| {
            let mut between = vec![0.0; line_in];
            for (i, out) in lines.chunks_exact_mut(sizes.output_line()).enumerate() {
                let (image, row) = ((first + i) / sizes.output[0], rows[(first + i) % sizes.output[0]]);
                let lines = row.at.map(|y| &values[(image * sizes.input[0] + y) * line_in..][..line_in]);
                for (x, b) in between.iter_mut().enumerate() {
                    *b = (0..4).map(|k| lines[k][x] * row.weights[k]).sum();
                }
                for (out, column) in out.chunks_exact_mut(channels).zip(&columns) {
                    for (c, o) in out.iter_mut().enumerate() {
                        *o = (0..4).map(|k| between[column.at[k] * channels + c] * column.weights[k]).sum();
                    }
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}

pub(super) fn backward<T>(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()>
where
    T: Element + Float + std::ops::AddAssign,
    f32: AsPrimitive<T>,
{
    let sizes = Sizes::backward(ctx)?;
    let mut out = Tensor::zeros(T::DTYPE, sizes.input_shape()?)?;
    let (channels, image_in) = (sizes.channels, sizes.input[0] * sizes.input_line());
    if out.num_elements() > 0 {
        let rows = cubic_taps(grid, sizes.input[0], sizes.output[0]);
        let columns = cubic_taps(grid, sizes.input[1], sizes.output[1]);
        let grads = ctx.input(0)?.values::<f32>()?;
        let image_out = sizes.output[0] * sizes.output_line();
        for_rows(out.values_mut::<T>()?, image_in, |first, images| {
            for (i, out) in images.chunks_exact_mut(image_in).enumerate() {
                let grads = &grads[(first + i) * image_out..][..image_out];
                for (row, grads) in rows.iter().zip(grads.chunks_exact(sizes.output_line())) {
                    for (column, grad) in columns.iter().zip(grads.chunks_exact(channels)) {
                        for (y, by_row) in row.at.into_iter().zip(row.weights) {
                            for (x, by_column) in column.at.into_iter().zip(column.weights) {
                                let out = &mut out[y * sizes.input_line() + x * channels..][..channels];
                                let weight = by_row * by_column;
                                out.iter_mut().zip(grad).for_each(|(o, g)| *o += (g * weight).as_());
                            }
                        }
                    }
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}
