//! Requantization of 32-bit values whose channels, the last axis, have a range each.

use super::level::{Level, build, levels};
use super::range::Range;
use device::kernel::KernelContext;
use device::{Result, invalid};

/// The least and the greatest number of each channel's range, and the number of channels.
fn magnitudes(ctx: &KernelContext<'_>) -> Result<Vec<f32>> {
    let &[_, _, _, channels] = ctx.shape(0)?.dims() else {
        invalid!("input must be 4-dimensional in NHWC format, got {}", ctx.shape(0)?);
    };
    for (i, name) in [(1, "input_min"), (2, "input_max")] {
        if ctx.shape(i)?.num_elements() != channels {
            invalid!("{name} has incorrect size, expected {channels} was {}", ctx.shape(i)?);
        }
    }
    let (mins, maxs) = (ctx.input(1)?.values::<f32>()?, ctx.input(2)?.values::<f32>()?);
    Ok(mins.iter().zip(maxs).map(|(&min, &max)| Range { min, max }.magnitude()).collect())
}

const STEPS: f32 = 2_147_483_648.0;

/// Outputs the range of the numbers that occur, symmetric unless no number is negative; it reaches to `limit` at most.
pub(super) fn used_range(ctx: &mut KernelContext<'_>, limit: f32) -> Result<()> {
    let magnitudes = magnitudes(ctx)?;
    let channels = magnitudes.len();
    if ctx.shape(0)?.num_elements() == 0 {
        invalid!("input must not be empty");
    }
    let values = levels::<i32>(ctx.input(0)?)?;
    let (mut least, mut greatest) = (vec![i32::MAX; channels], vec![i32::MIN; channels]);
    for row in values.chunks_exact(channels.max(1)) {
        for (c, &v) in row.iter().enumerate() {
            least[c] = least[c].min(v);
            greatest[c] = greatest[c].max(v);
        }
    }
    let (mut max, mut has_negative) = (f32::MIN, false);
    for (c, magnitude) in magnitudes.iter().enumerate() {
        let number = |level: i32| level as f32 * magnitude / STEPS;
        has_negative |= least[c] < 0;
        max = max.max(number(least[c]).abs()).max(number(greatest[c]).abs());
    }
    let max = max.min(limit);
    let range = if has_negative { Range::symmetric(max) } else { Range { min: 0.0, max } };
    range.set_outputs(ctx, 0);
    Ok(())
}

/// Converts values to levels of one range, in inputs 3 and 4.
pub(super) fn requantize<T: Level>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let range = Range::of_elements(ctx, 3, "requested_output")?;
    if T::IS_SIGNED && range.min >= 0.0 {
        invalid!("If out_type is QINT8, requested_output_min must be negative, got {}", range.min);
    }
    let magnitudes = magnitudes(ctx)?;
    let of_levels = T::HIGHEST as f32;
    let scale = |magnitude: &f32| of_levels * (magnitude / range.magnitude() / STEPS);
    let scales: Vec<f32> = magnitudes.iter().map(scale).collect();
    let x = ctx.input(0)?;
    let values = levels::<i32>(x)?;
    let out = build(x.shape().clone(), |out: &mut [T]| {
        for (i, (o, &v)) in out.iter_mut().zip(values).enumerate() {
            *o = T::clamped((v as f32 * scales[i % scales.len()]).round_ties_even() as i64);
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}
