//! ResizeArea: an output pixel is the mean of the area of the input that it covers.

use super::as_single;
use crate::numeric::threads::for_rows;
use crate::plan::resize::{Grid, Sizes, area_covered, area_shares};
use device::Result;
use device::kernel::KernelContext;
use graph::DType;

pub(super) fn forward(ctx: &mut KernelContext<'_>, grid: Grid) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let input = as_single(ctx.input(0)?)?;
    let mut out = ctx.allocate(DType::Float, sizes.output_shape()?)?;
    if out.num_elements() > 0 {
        let rows = area_shares(grid, sizes.input[0], sizes.output[0]);
        let columns = area_shares(grid, sizes.input[1], sizes.output[1]);
        let area_covered = |axis: usize| area_covered(grid, sizes.input[axis], sizes.output[axis]);
        let area = area_covered(0) * area_covered(1);
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
