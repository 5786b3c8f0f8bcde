//! UniformQuantize, UniformDequantize and UniformRequantize.

use super::scales::{Multiplier, Scaling};
use crate::quantized::level::{Level, build, levels, to_i32};
use device::Result;
use device::kernel::KernelContext;
use graph::Tensor;

pub(super) fn quantize<T: Level>(ctx: &mut KernelContext<'_>, scaling: Scaling) -> Result<()> {
    let x = ctx.input(0)?;
    let scales = scaling.any_inputs(ctx, 1, x.shape())?;
    let slice_of = scaling.slice_of(x.shape());
    let values = x.values::<f32>()?;
    let out = build(x.shape().clone(), |out: &mut [T]| {
        for (i, (o, &v)) in out.iter_mut().zip(values).enumerate() {
            let slice = slice_of(i);
            *o = T::wrapped(scaling.clamp(level(v, 1.0 / scales.scale(slice), scales.zero(slice))));
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the level nearest to a number, which may be out of bounds; `inverse` is one over the scale.
pub(super) fn level(number: f32, inverse: f32, zero: i32) -> i64 {
    to_i32((number * inverse + 0.5).floor()).wrapping_add(zero).into()
}

pub(super) fn dequantize<T: Level>(ctx: &mut KernelContext<'_>, scaling: Scaling) -> Result<()> {
    let x = ctx.input(0)?;
    let scales = scaling.inputs(ctx, 1, x.shape())?;
    let slice_of = scaling.slice_of(x.shape());
    let number = |(i, v): (usize, &T)| {
        let slice = slice_of(i);
        centred(v.wide(), scales.zero(slice)) as f32 * scales.scale(slice)
    };
    let numbers: Vec<f32> = levels::<T>(x)?.iter().enumerate().map(number).collect();
    let out = Tensor::from_slice(&numbers, x.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}

/// Returns a value relative to a zero point. The value becomes a float on the way, and the difference has 32 bits.
fn centred(value: i64, zero: i32) -> i32 {
    to_i32(value as f32).wrapping_sub(zero)
}

/// Returns a value with another scale; the result becomes a float on the way.
pub(super) fn rescaled(value: i64, zero: i32, multiplier: Multiplier) -> i32 {
    to_i32(multiplier.times(centred(value, zero).into()) as f32)
}

pub(super) fn requantize<T: Level>(ctx: &mut KernelContext<'_>, [from, to]: [Scaling; 2]) -> Result<()> {
    let x = ctx.input(0)?;
    let (old, new) = (from.inputs(ctx, 1, x.shape())?, to.inputs(ctx, 3, x.shape())?);
    let count = old.scales.len().max(new.scales.len());
    let multipliers = (0..count)
        .map(|i| Multiplier::new(f64::from(old.scale(i)) / f64::from(new.scale(i))))
        .collect::<Result<Vec<_>>>()?;
    let slice_of = if from.axis.is_some() { from } else { to }.slice_of(x.shape());
    let values = levels::<T>(x)?;
    let out = build(x.shape().clone(), |out: &mut [i8]| {
        for (i, (o, &v)) in out.iter_mut().zip(values).enumerate() {
            let slice = slice_of(i);
            let level = rescaled(v.wide(), old.zero(slice), multipliers[if count == 1 { 0 } else { slice }]);
            *o = i8::wrapped(to.clamp(level.wrapping_add(new.zero(slice)).into()));
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}
