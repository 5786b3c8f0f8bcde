//! Conversions of 32-bit quantized values to 8 bits: into a given range, and into the range of the values that occur.

use super::level::{Level, map};
use super::range::{Quantized, Range};
use device::kernel::KernelContext;
use device::{Result, invalid};

/// Returns the range between the numbers of the least and of the greatest value. The range's least number is at most 0.
fn occupied(values: &[i32], range: Range) -> Range {
    let least = values.iter().min().copied().unwrap_or(i32::MAX);
    let greatest = values.iter().max().copied().unwrap_or(i32::MIN);
    Range { min: range.dequantize(least).min(0.0), max: range.dequantize(greatest) }
}

/// `RequantizationRange`: outputs the range of the values that occur.
pub(super) fn used_range(ctx: &mut KernelContext<'_>) -> Result<()> {
    let x = Quantized::<i32>::with_first(ctx, 0, 1, "input")?;
    occupied(x.levels, x.range).set_outputs(ctx, 0);
    Ok(())
}

/// `Requantize`: converts values to levels of the range in inputs 3 and 4. Unsigned levels are computed in integers, like
/// in TensorFlow.
pub(super) fn to_range<T: Level>(ctx: &mut KernelContext<'_>) -> Result<()> {
    let x = Quantized::<i32>::input(ctx, 0, 1, "input")?;
    let range = Range::of(ctx, 3, "requested_output")?;
    if range.min > 0.0 || range.min.is_nan() {
        invalid!("requested_output_min must be <= 0, but got {}", range.min);
    }
    if range.max < range.min || range.max.is_nan() {
        invalid!(
            "requested_output_max must be >= requested_output_min, but got {} and {}",
            range.max,
            range.min
        );
    }
    let shape = x.tensor.shape().clone();
    let out = if T::IS_SIGNED {
        map(shape, x.levels, |v| range.quantize::<T>(x.range.dequantize(v)))?
    } else {
        let conversion = FixedPoint::new(x.range, range);
        map(shape, x.levels, |v| T::wrapped(conversion.apply(v).into()))?
    };
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}

/// `QuantizeDownAndShrinkRange`: converts values to levels of the range of the values that occur.
pub(super) fn shrink(ctx: &mut KernelContext<'_>) -> Result<()> {
    let x = Quantized::<i32>::input(ctx, 0, 1, "input")?;
    let range = occupied(x.levels, x.range);
    let conversion = FixedPoint::new(x.range, range);
    let out = map(x.tensor.shape().clone(), x.levels, |v| conversion.apply(v))?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}

/// The conversion of 32-bit values of one range to 8-bit values of another range, in integers with 16 binary places.
struct FixedPoint {
    scale: i64,
    offset: i64,
}

impl FixedPoint {
    fn new(from: Range, to: Range) -> FixedPoint {
        let (width, new_width) = (from.max - from.min, to.max - to.min);
        if new_width == 0.0 {
            return FixedPoint { scale: 0, offset: 0 };
        }
        let one = f64::from(1 << 16);
        let centre = (from.min + from.max) / 2.0;
        let per_number = (255.0 / f64::from(new_width)) as f32;
        let least = f64::from(to.min) * 255.0 * one / f64::from(new_width);
        FixedPoint {
            scale: (255.0 * one * f64::from(width) / f64::from(new_width)) as i64,
            offset: ((centre * per_number * one as f32) as i64).wrapping_sub(least as i64),
        }
    }

    fn apply(&self, level: i32) -> u8 {
        let steps = (i64::from(level).wrapping_mul(self.scale) >> 32).wrapping_add(self.offset);
        (steps.wrapping_add(1 << 15) >> 16).clamp(0, 255) as u8
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shrunk_values_keep_their_numbers() {
        let (from, to) = (Range { min: -2.0, max: 3.0 }, Range { min: -1.0, max: 2.0 });
        let conversion = FixedPoint::new(from, to);
        for level in [-1_000_000_000, -5, 0, 77, 500_000_000] {
            let shrunk = to.dequantize(conversion.apply(level));
            assert!((shrunk - from.dequantize(level).clamp(-1.0, 2.0)).abs() < 0.01, "{level}");
        }
    }
}
