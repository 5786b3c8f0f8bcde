//! ResizeArea: an output pixel is the mean of the area of the input that it covers.

use super::{Grid, Sample, Sizes, as_single};
use crate::numeric::threads::for_rows;
use device::Result;
use device::kernel::KernelContext;
use graph::DType;

/// Returns, for each output position, the input positions that it covers and their shares; at an edge the first
/// position may occur twice.
pub fn shares(grid: Grid, input: usize, output: usize) -> Vec<Vec<(usize, f32)>> {
    let scale = grid.scale(input, output);
    let place = |i: usize| {
        // With aligned corners, an input of one position has scale 0, and every output position is that position.
        if scale == 0.0 {
            return vec![(0, 1.0)];
        }
        let (start, end) = (i as f32 * scale, (i + 1) as f32 * scale);
        let share = |v: i64| {
            let at = v as f32;
            let covered = match (at < start, at + 1.0 > end) {
                (true, true) => scale,
                (true, false) => at + 1.0 - start,
                (false, true) => end - at,
                (false, false) => 1.0,
            };
            (v.clamp(0, input as i64 - 1) as usize, covered)
        };
        (start.floor() as i64..end.ceil() as i64).map(share).collect()
    };
    (0..output).map(place).collect()
}

/// Returns the sum of the shares of an output position.
pub fn covered(grid: Grid, input: usize, output: usize) -> f32 {
    match grid.scale(input, output) {
        0.0 => 1.0,
        scale => scale,
    }
}

pub(super) fn forward<T: Sample>(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let input = as_single::<T>(ctx.input(0)?)?;
    let mut out = ctx.allocate(DType::Float, sizes.output_shape()?)?;
    if out.num_elements() > 0 {
        let rows = shares(grid, sizes.input[0], sizes.output[0]);
        let columns = shares(grid, sizes.input[1], sizes.output[1]);
        let covered = |axis: usize| covered(grid, sizes.input[axis], sizes.output[axis]);
        let area = covered(0) * covered(1);
        let (values, channels, line_in) = (input.values::<f32>()?, sizes.channels, sizes.input_line());
        for_rows(out.values_mut::<f32>()?, sizes.output_line(), |first, lines| {
            let mut sums = vec![0.0; line_in];
            for (i, out) in lines.chunks_exact_mut(sizes.output_line()).enumerate() {
                let (image, row) = ((first + i) / sizes.output[0], &rows[(first + i) % sizes.output[0]]);
                sums.fill(0.0);
                for &(y, share) in row {
                    let line = &values[(image * sizes.input[0] + y) * line_in..][..line_in];
                    sums.iter_mut().zip(line).for_each(|(s, v)| *s += v * share);
                }
                for (out, column) in out.chunks_exact_mut(channels).zip(&columns) {
                    out.fill(0.0);
                    for &(x, share) in column {
                        let sums = &sums[x * channels..][..channels];
                        out.iter_mut().zip(sums).for_each(|(o, s)| *o += s * share);
                    }
                    out.iter_mut().for_each(|o| *o /= area);
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}
