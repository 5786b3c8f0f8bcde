//! QuantizedResizeBilinear: images resized by linear interpolation between levels. The range stays that of the images.

use super::level::{Level, build, levels};
use super::range::Range;
use crate::plan::resize::{Grid, LinearTaps, Sizes, linear_taps};
use crate::resize::bilinear;
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::DType;

/// The numbers of binary places of weights, for 8-bit and for 32-bit levels.
const BYTE_PLACES: u32 = 7;
const WORD_PLACES: u32 = 30;

pub(super) fn kernel(init: &KernelInit<'_>) -> Result<Kernel> {
    let grid = Grid::of(init)?;
    match init.output_type(0) {
        DType::Float => Kernel::sync(move |ctx| {
            let range = Range::of(ctx, 2, "range")?;
            bilinear::forward(ctx, grid)?;
            range.set_outputs(ctx, 1);
            Ok(())
        }),
        DType::QUInt8 => Kernel::sync(move |ctx| resize::<u8>(ctx, grid, BYTE_PLACES)),
        _ => Kernel::sync(move |ctx| resize::<i32>(ctx, grid, WORD_PLACES)),
    }
}

/// Interpolates between two levels of an upper row and two of a lower row; `weights` holds that of the right column and
/// that of the lower row, with `places` binary places. The difference of both rows is rounded to an integer towards
/// zero, like in TensorFlow.
fn between<T: Level>(corners: [[T; 2]; 2], weights: [i128; 2], places: u32) -> T {
    let one = 1i128 << places;
    let [above, below] = corners.map(|levels| {
        let [left, right] = levels.map(|level| i128::from(level.wide() as f32 as i64));
        left * one + (right - left) * weights[0]
    });
    let level = (above + (below - above) / one * weights[1] + one / 2) / one;
    T::clamped(level as i64)
}

fn resize<T: Level>(ctx: &mut KernelContext<'_>, grid: Grid, places: u32) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let range = Range::of(ctx, 2, "range")?;
    let taps = |axis: usize| -> Vec<LinearTaps> { linear_taps(grid, sizes.input[axis], sizes.output[axis]) };
    if sizes.input == sizes.output {
        let images = ctx.take_input(0)?;
        ctx.set_output(0, images);
        range.set_outputs(ctx, 1);
        return Ok(());
    }
    let shape = sizes.output_shape()?;
    if shape.num_elements() == 0 {
        ctx.set_output(0, build(shape, |_: &mut [T]| Ok(()))?);
        range.set_outputs(ctx, 1);
        return Ok(());
    }
    let (rows, columns) = (taps(0), taps(1));
    let (channels, line) = (sizes.channels, sizes.input[1] * sizes.channels);
    let values = levels::<T>(ctx.input(0)?)?;
    let out = build(shape, |out: &mut [T]| {
        let mut pixels = out.chunks_exact_mut(channels);
        for image in values.chunks_exact(sizes.input[0] * line) {
            for (row, column) in rows.iter().flat_map(|row| columns.iter().map(move |column| (row, column))) {
                let weights = [column.part, row.part].map(|part| (part * (1u32 << places) as f32) as i128);
                let Some(pixel) = pixels.next() else { return Ok(()) };
                for (c, o) in pixel.iter_mut().enumerate() {
                    let at = |row: usize, column: usize| image[row * line + column * channels + c];
                    let corners =
                        [row.lower, row.upper].map(|row| [at(row, column.lower), at(row, column.upper)]);
                    *o = between(corners, weights, places);
                }
            }
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}
