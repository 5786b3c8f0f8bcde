//! Sums, products and rectified values, element by element.

use super::level::{Level, build, levels, map};
use super::range::{Quantized, Range, product_range, sum_range};
use crate::numeric::broadcast::Plan;
use device::kernel::KernelContext;
use device::{Error, Result, invalid};

/// Output values of QuantizedAdd and QuantizedBiasAdd are numbers of this many times the operands' greater magnitude.
const SUM_HEADROOM: f32 = (1 << 14) as f32;
const BIAS_HEADROOM: f32 = (1 << 17) as f32;

/// The values of an operand as levels of another range: a linear function of the operand's levels.
struct Steps {
    zero: i64,
    step: i64,
}

impl Steps {
    /// Returns the function for levels of type `u8`. If the operand is a lone value, `exact` makes the function exact at
    /// that value.
    fn new(x: &Quantized<'_, u8>, range: Range, exact: bool) -> Steps {
        let level = |v: u8| range.unclamped::<i32>(x.range.dequantize(v));
        match *x.levels {
            [value] if exact => {
                Steps { zero: range.quantize::<i32>(x.range.dequantize(value)).into(), step: 0 }
            }
            _ => Steps { zero: level(0), step: level(1).wrapping_sub(level(0)) },
        }
    }

    fn at(&self, level: u8) -> i64 {
        self.zero.wrapping_add(self.step.wrapping_mul(level.into()))
    }
}

fn operands<'a>(ctx: &'a KernelContext<'_>) -> Result<[Quantized<'a, u8>; 2]> {
    let operands = [Quantized::input(ctx, 0, 2, "x")?, Quantized::input(ctx, 1, 4, "y")?];
    for operand in &operands {
        if !operand.range.is_ascending() {
            invalid!("min must be less than max, got {} and {}", operand.range.min, operand.range.max);
        }
    }
    Ok(operands)
}

/// Sets output 0 to a function of the pairs of levels of both operands, which broadcast, and its range.
fn zip(ctx: &mut KernelContext<'_>, range: Range, function: impl Fn(u8, u8) -> i64) -> Result<()> {
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    let plan = Plan::new(x.shape(), y.shape())?;
    let (xs, ys) = (levels::<u8>(x)?, levels::<u8>(y)?);
    let [x_repeats, y_repeats] = plan.repeats();
    let out = build(plan.shape().clone(), |out: &mut [i32]| {
        plan.walk(0, out.len(), |at, len, [x, y]| {
            for (i, o) in out[at..at + len].iter_mut().enumerate() {
                let x = xs[if x_repeats { x } else { x + i }];
                let y = ys[if y_repeats { y } else { y + i }];
                *o = i32::wrapped(function(x, y));
            }
        });
        Ok(())
    })?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}

pub(super) fn add(ctx: &mut KernelContext<'_>) -> Result<()> {
    let [x, y] = operands(ctx)?;
    let range = sum_range(x.range, y.range, SUM_HEADROOM);
    let of_x = Steps::new(&x, range, true);
    // Only the first of two lone values is converted exactly, like in TensorFlow.
    let of_y = Steps::new(&y, range, x.levels.len() > 1);
    zip(ctx, range, |x, y| of_x.at(x).wrapping_add(of_y.at(y)))
}

pub(super) fn multiply(ctx: &mut KernelContext<'_>) -> Result<()> {
    let [x, y] = operands(ctx)?;
    let range = product_range::<u8, u8>(x.range, y.range);
    let zeros = [x.range, y.range].map(|r| r.unclamped::<u8>(0.0));
    zip(ctx, range, |x, y| (x.wide().wrapping_sub(zeros[0])).wrapping_mul(y.wide().wrapping_sub(zeros[1])))
}

pub(super) fn add_bias<T: Level>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let x = Quantized::<T>::input(ctx, 0, 2, "input")?;
    let bias = Quantized::<T>::input(ctx, 1, 4, "bias")?;
    let Some(&channels) = x.tensor.shape().last() else {
        return Err(Error::invalid("Input tensor must be at least 2D"));
    };
    if x.tensor.shape().rank() < 2 {
        invalid!("Input tensor must be at least 2D: {}", x.tensor.shape());
    }
    if channels == 0 {
        invalid!("Must provide at least 1 bias");
    }
    if bias.tensor.shape().dims() != [channels] {
        invalid!(
            "Must provide as many biases as the last dimension of the input tensor: {} vs. {}",
            bias.tensor.shape(),
            x.tensor.shape()
        );
    }
    let range = sum_range(x.range, bias.range, BIAS_HEADROOM);
    let level = |from: Range, v: T| i64::from(range.quantize::<i32>(from.dequantize(v)));
    let biases: Vec<i64> = bias.levels.iter().map(|&b| level(bias.range, b)).collect();
    let out = build(x.tensor.shape().clone(), |out: &mut [i32]| {
        for (i, (o, &v)) in out.iter_mut().zip(x.levels).enumerate() {
            *o = i32::wrapped(level(x.range, v) + biases[i % channels]);
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}

/// Replaces negative numbers by zero, and numbers above `most` by `most`.
pub(super) fn rectify<T: Level>(ctx: &mut KernelContext<'_>, most: Option<f32>) -> Result<()> {
    let x = Quantized::<T>::input(ctx, 0, 1, "features")?;
    let least = x.range.quantize::<T>(0.0);
    let most = most.map_or(T::wrapped(T::HIGHEST), |most| x.range.quantize::<T>(most));
    let out = map(x.tensor.shape().clone(), x.levels, |v| v.max(least).min(most))?;
    let range = x.range;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}
