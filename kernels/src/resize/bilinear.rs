//! ResizeBilinear: linear interpolation between the two nearest pixels on each axis.

use super::{Sample, as_single};
use crate::numeric::scalar::Real as _;
use crate::numeric::threads::for_rows;
use crate::numeric::widen::Float;
use crate::plan::resize::{Grid, Sizes, linear_taps};
use device::Result;
use device::kernel::KernelContext;
use graph::DType;
use num_traits::Zero as _;
use rayon::prelude::*;

pub(super) fn forward<T: Sample>(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let input = as_single::<T>(ctx.input(0)?)?;
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

pub(super) fn backward<T: Float>(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let sizes = Sizes::backward(ctx)?;
    let mut out = ctx.allocate(T::DTYPE, sizes.input_shape()?)?;
    let (grads, channels) = (ctx.input(0)?.values::<f32>()?, sizes.channels);
    let image_in = sizes.input[0] * sizes.input_line();
    let image_out = sizes.output[0] * sizes.output_line();
    if out.num_elements() > 0 {
        let rows = linear_taps(grid, sizes.input[0], sizes.output[0]);
        let columns = linear_taps(grid, sizes.input[1], sizes.output[1]);
        let images = out.values_mut::<T>()?.par_chunks_exact_mut(image_in);
        images.zip(grads.par_chunks_exact(image_out)).for_each(|(out, grads)| {
            let mut sums = vec![T::Wide::zero(); image_in];
            for (row, grads) in rows.iter().zip(grads.chunks_exact(sizes.output_line())) {
                for (column, grad) in columns.iter().zip(grads.chunks_exact(channels)) {
                    for (y, by_row) in [(row.lower, 1.0 - row.part), (row.upper, row.part)] {
                        for (x, by_column) in [(column.lower, 1.0 - column.part), (column.upper, column.part)]
                        {
                            let at = y * sizes.input_line() + x * channels;
                            for (s, &g) in sums[at..at + channels].iter_mut().zip(grad) {
                                *s += T::Wide::of(f64::from(g * by_row * by_column));
                            }
                        }
                    }
                }
            }
            out.iter_mut().zip(&sums).for_each(|(o, &s)| *o = T::of_wide(s));
        });
    }
    ctx.set_output(0, out);
    Ok(())
}
