//! ResizeBicubic: a cubic through the four nearest pixels on each axis. The weights come from a table of 1024 steps
//! like TensorFlow's, because the steps are visible in the results.

use super::{Grid, Sample, Sizes, as_single};
use crate::numeric::threads::for_rows;
use device::Result;
use device::kernel::KernelContext;
use graph::{DType, Element, Tensor};
use num_traits::{AsPrimitive, Float};

/// Steps between two pixels for which the table has weights.
const STEPS: usize = 1024;

/// The four input positions of an output position, and their weights.
#[derive(Clone, Copy, Debug)]
pub struct Taps {
    pub at: [usize; 4],
    pub weights: [f32; 4],
}

/// Returns the weights of pixels at distance `i / STEPS` and `1 + i / STEPS`.
fn table(a: f32) -> Vec<[f32; 2]> {
    let weights = |i| {
        let x = i as f32 / STEPS as f32;
        let near = ((a + 2.0) * x - (a + 3.0)) * x * x + 1.0;
        let x = x + 1.0;
        [near, ((a * x - 5.0 * a) * x + 8.0 * a) * x - 4.0 * a]
    };
    (0..=STEPS).map(weights).collect()
}

pub fn taps(grid: Grid, input: usize, output: usize) -> Vec<Taps> {
    // With half-pixel centres, Keys' kernel with parameter -0.5; otherwise -0.75, which TensorFlow's first version
    // used.
    let table = table(if grid.centers { -0.5 } else { -0.75 });
    let scale = grid.scale(input, output);
    let place = |i| {
        let at = grid.at(i, scale);
        let first = at.floor();
        let step = (((at - first) * STEPS as f32).round_ties_even() as usize).min(STEPS);
        let mut weights = [table[step][1], table[step][0], table[STEPS - step][0], table[STEPS - step][1]];
        let unbounded = [-1, 0, 1, 2].map(|d| first as i64 + d);
        let bounded = unbounded.map(|p| p.clamp(0, input as i64 - 1));
        if grid.centers {
            // Pixels outside the image get weight 0, and the other weights are normalised.
            for ((w, p), b) in weights.iter_mut().zip(unbounded).zip(bounded) {
                *w = if p == b { *w } else { 0.0 };
            }
            let sum: f32 = weights.iter().sum();
            if sum.abs() >= 1000.0 * f32::MIN_POSITIVE {
                weights = weights.map(|w| w * (1.0 / sum));
            }
        }
        Taps { at: bounded.map(|p| p as usize), weights }
    };
    (0..output).map(place).collect()
}

pub(super) fn forward<T: Sample>(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let input = as_single::<T>(ctx.input(0)?)?;
    let mut out = ctx.allocate(DType::Float, sizes.output_shape()?)?;
    if out.num_elements() > 0 {
        let rows = taps(grid, sizes.input[0], sizes.output[0]);
        let columns = taps(grid, sizes.input[1], sizes.output[1]);
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
        let rows = taps(grid, sizes.input[0], sizes.output[0]);
        let columns = taps(grid, sizes.input[1], sizes.output[1]);
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
