//! UniformQuantizedAdd and UniformQuantizedClipByValue.

use super::convert::rescaled;
use super::scales::{Multiplier, Scales, Scaling};
use crate::numeric::broadcast::Plan;
use crate::quantized::level::{Level, build, levels};
use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::{Shape, Tensor};

/// Returns the values of an operand with the scales of the result, as 32-bit integers relative to zero.
fn operand(x: &Tensor, scaling: Scaling, from: Scales<'_>, to: Scales<'_>) -> Result<Vec<i32>> {
    if scaling.axis.is_some() && from.scales.len() != to.scales.len() {
        invalid!("an operand with scales along an axis must not be repeated along it");
    }
    let multipliers = (0..from.scales.len().max(to.scales.len()))
        .map(|i| Multiplier::new(f64::from(from.scale(i)) / f64::from(to.scale(i))))
        .collect::<Result<Vec<_>>>()?;
    let slice_of = scaling.slice_of(x.shape());
    let rescale = |(i, &v): (usize, &i32)| {
        let slice = slice_of(i);
        let multiplier = multipliers[if multipliers.len() == 1 { 0 } else { slice }];
        rescaled(v.into(), from.zero(slice), multiplier)
    };
    Ok(levels::<i32>(x)?.iter().enumerate().map(rescale).collect())
}

/// Checks that the axis of an operand, if it has one, is the axis of the result, where shapes are aligned at their end.
fn check_axis(name: &str, operand: Scaling, shape: &Shape, out: Scaling, out_shape: &Shape) -> Result<()> {
    match (operand.axis, out.axis) {
        (None, None) => Ok(()),
        (Some(a), Some(b)) if a + out_shape.rank() == b + shape.rank() => Ok(()),
        _ => invalid!("{name}_quantization_axis must match output_quantization_axis"),
    }
}

pub(super) fn add(ctx: &mut KernelContext<'_>, [left, right, out]: [Scaling; 3]) -> Result<()> {
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    let plan = Plan::new(x.shape(), y.shape())?;
    check_axis("lhs", left, x.shape(), out, plan.shape())?;
    check_axis("rhs", right, y.shape(), out, plan.shape())?;
    let of_x = left.inputs(ctx, 2, x.shape())?;
    let of_y = right.inputs(ctx, 4, y.shape())?;
    let of_out = out.inputs(ctx, 6, plan.shape())?;
    let (xs, ys) = (operand(x, left, of_x, of_out)?, operand(y, right, of_y, of_out)?);
    let slice_of = out.slice_of(plan.shape());
    let [x_repeats, y_repeats] = plan.repeats();
    let sum = build(plan.shape().clone(), |sum: &mut [i32]| {
        plan.walk(0, sum.len(), |at, len, [x, y]| {
            for (i, o) in sum[at..at + len].iter_mut().enumerate() {
                let x = xs[if x_repeats { x } else { x + i }];
                let y = ys[if y_repeats { y } else { y + i }];
                let level = x.wrapping_add(y).wrapping_add(of_out.zero(slice_of(at + i)));
                *o = i32::wrapped(out.clamp(level.into()));
            }
        });
        Ok(())
    })?;
    ctx.set_output(0, sum);
    Ok(())
}

/// Clips values between the bounds in inputs 1 and 2, which have the shapes of the scales.
pub(super) fn clip(ctx: &mut KernelContext<'_>, scaling: Scaling) -> Result<()> {
    let (x, least, greatest) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    scaling.check_shape(ctx.shape(3)?, x.shape())?;
    if ctx.shape(3)? != ctx.shape(4)? {
        invalid!(
            "scales and zero_points must have the same shape, got {} and {}",
            ctx.shape(3)?,
            ctx.shape(4)?
        );
    }
    for bound in [least, greatest] {
        if bound.shape() != ctx.shape(3)? {
            invalid!("min and max must have the shape of scales, got {}", bound.shape());
        }
    }
    let (least, greatest) = (levels::<i32>(least)?, levels::<i32>(greatest)?);
    let slice_of = scaling.slice_of(x.shape());
    let values = levels::<i32>(x)?;
    let out = build(x.shape().clone(), |out: &mut [i32]| {
        for (i, (o, &v)) in out.iter_mut().zip(values).enumerate() {
            let slice = slice_of(i);
            *o = v.max(least[slice]).min(greatest[slice]);
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    Ok(())
}
