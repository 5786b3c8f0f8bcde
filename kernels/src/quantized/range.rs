//! Ranges of numbers that quantized values stand for, and the conversions between numbers and values.
//!
//! TensorFlow converts single values in double precision and whole tensors in single precision; both have forms here,
//! because their results differ in the last bits.

use super::level::{Level, levels, to_i32, to_i64};
use device::kernel::KernelContext;
use device::{Result, invalid};
use graph::Tensor;
use std::marker::PhantomData;

/// The numbers for which the lowest and the highest level stand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Range {
    pub(super) min: f32,
    pub(super) max: f32,
}

impl Range {
    /// Returns the range in the inputs `i` and `i + 1`, which must be scalars; `name` stands for both in errors.
    pub(super) fn of(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<Range> {
        let end = |i: usize, which: &str| -> Result<f32> {
            let end = ctx.input(i)?;
            if end.shape().rank() != 0 {
                invalid!("{which}_{name} must be rank 0 but is rank {}", end.shape().rank());
            }
            Ok(end.item()?)
        };
        Ok(Range { min: end(i, "min")?, max: end(i + 1, "max")? })
    }

    /// Returns the range in the inputs `i` and `i + 1`, which must have one element each.
    pub(super) fn of_elements(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<Range> {
        let end = |i: usize, which: &str| -> Result<f32> {
            match *ctx.input(i)?.values::<f32>()? {
                [end] => Ok(end),
                _ => invalid!(
                    "{name}_{which} must be a scalar or a vector of 1 element, got {}",
                    ctx.shape(i)?
                ),
            }
        };
        Ok(Range { min: end(i, "min")?, max: end(i + 1, "max")? })
    }

    /// Returns the range whose ends are the first elements of the inputs `i` and `i + 1`.
    pub(super) fn of_first(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<Range> {
        let end = |i: usize, which: &str| -> Result<f32> {
            match *ctx.input(i)?.values::<f32>()? {
                [end, ..] => Ok(end),
                [] => invalid!("{which}_{name} must not be empty"),
            }
        };
        Ok(Range { min: end(i, "min")?, max: end(i + 1, "max")? })
    }

    /// Sets the outputs `i` and `i + 1` to the ends of the range.
    pub(super) fn set_outputs(self, ctx: &mut KernelContext<'_>, i: usize) {
        ctx.set_scalar(i, self.min);
        ctx.set_scalar(i + 1, self.max);
    }

    /// Returns whether the ends are numbers in ascending order.
    pub(super) fn is_ascending(self) -> bool {
        self.min < self.max
    }

    /// Returns the range that is symmetric around zero.
    pub(super) fn symmetric(max: f32) -> Range {
        Range { min: -max, max }
    }

    /// Returns the greatest magnitude of both ends.
    pub(super) fn magnitude(self) -> f32 {
        self.min.abs().max(self.max.abs())
    }

    fn width<T: Level>(self) -> f64 {
        f64::from(self.max - self.min) * (T::COUNT / (T::COUNT - 1.0))
    }

    /// Returns the level nearest to a number, which may lie beyond the lowest and the highest level.
    pub(super) fn unclamped<T: Level>(self, number: f32) -> i64 {
        if self.min == self.max {
            return T::LOWEST;
        }
        let scale = T::COUNT / self.width::<T>();
        let steps = (f64::from(number) * scale).round() - (f64::from(self.min) * scale).round();
        to_i64(steps).wrapping_add(T::LOWEST)
    }

    /// Returns the level nearest to a number.
    pub(super) fn quantize<T: Level>(self, number: f32) -> T {
        T::clamped(self.unclamped::<T>(number))
    }

    /// Returns the number for which a level stands.
    pub(super) fn dequantize<T: Level>(self, level: T) -> f32 {
        if self.min == self.max {
            return self.min;
        }
        let scale = self.width::<T>() / T::COUNT;
        let lowest = (self.min / scale as f32).round() * scale as f32;
        let steps = f64::from(level.wide() as f32) - T::LOWEST as f64;
        (f64::from(lowest) + steps * scale) as f32
    }

    /// Returns the difference of the numbers for which two neighbouring levels stand.
    pub(super) fn step<T: Level>(self) -> f32 {
        (f64::from(self.max - self.min) / (T::HIGHEST - T::LOWEST) as f64) as f32
    }
}

/// Returns the range of 32-bit products of values of two ranges.
pub(super) fn product_range<A: Level, B: Level>(a: Range, b: Range) -> Range {
    let step = a.step::<A>() * b.step::<B>();
    Range { min: step * i32::MIN as f32, max: step * i32::MAX as f32 }
}

/// Returns the range of 32-bit sums of values of two ranges. The range is symmetric, and its magnitude is the greater
/// one of both ranges times `headroom`.
pub(super) fn sum_range(a: Range, b: Range, headroom: f32) -> Range {
    Range::symmetric(a.magnitude().max(b.magnitude()) * headroom)
}

/// The conversion of many numbers to levels of one range, in single precision.
pub(super) struct Quantizer<T> {
    scale: f32,
    offset: f32,
    bounds: [f32; 2],
    level: PhantomData<T>,
}

impl<T: Level> Quantizer<T> {
    pub(super) fn new(range: Range) -> Quantizer<T> {
        let width = f64::from(range.max - range.min);
        let scale = if width == 0.0 { 0.0 } else { ((T::COUNT - 1.0) / width) as f32 };
        let highest = T::HIGHEST as f32;
        // The greatest float that is not above the highest level.
        let highest = if f64::from(highest) > T::HIGHEST as f64 { highest.next_down() } else { highest };
        Quantizer {
            scale,
            offset: (range.min * scale).round() - T::LOWEST as f32,
            bounds: [T::LOWEST as f32, highest],
            level: PhantomData,
        }
    }

    pub(super) fn apply(&self, number: f32) -> T {
        let level = (number * self.scale).round() - self.offset;
        T::wrapped(to_i32(bounded(level, self.bounds)).into())
    }
}

/// Returns `value`, or the bound that it exceeds; NaN is returned unchanged.
pub(super) fn bounded(value: f32, [least, greatest]: [f32; 2]) -> f32 {
    if value < least {
        least
    } else if value > greatest {
        greatest
    } else {
        value
    }
}

/// The conversion of many levels of one range to numbers, in single precision.
pub(super) struct Dequantizer<T> {
    scale: f32,
    /// The number for which the level 0 would stand.
    origin: f32,
    level: PhantomData<T>,
}

impl<T: Level> Dequantizer<T> {
    pub(super) fn new(range: Range) -> Dequantizer<T> {
        let scale = (f64::from(range.max - range.min) / (T::COUNT - 1.0)) as f32;
        let lowest = if range.min == range.max { range.min } else { (range.min / scale).round() * scale };
        Dequantizer { scale, origin: lowest - T::LOWEST as f32 * scale, level: PhantomData }
    }

    pub(super) fn apply(&self, level: T) -> f32 {
        self.origin + level.wide() as f32 * self.scale
    }
}

/// A tensor of quantized values with its range.
pub(super) struct Quantized<'a, T> {
    pub(super) tensor: &'a Tensor,
    pub(super) levels: &'a [T],
    pub(super) range: Range,
}

impl<'a, T: Level> Quantized<'a, T> {
    /// Returns the values in input `i` like [`Quantized::input`], with a range like [`Range::of_elements`].
    pub(super) fn with_element(
        ctx: &'a KernelContext<'_>,
        i: usize,
        ends: usize,
        name: &str,
    ) -> Result<Self> {
        let tensor = ctx.input(i)?;
        Ok(Quantized { tensor, levels: levels(tensor)?, range: Range::of_elements(ctx, ends, name)? })
    }

    /// Returns the values in input `i` like [`Quantized::input`], with a range like [`Range::of_first`].
    pub(super) fn with_first(ctx: &'a KernelContext<'_>, i: usize, ends: usize, name: &str) -> Result<Self> {
        let tensor = ctx.input(i)?;
        Ok(Quantized { tensor, levels: levels(tensor)?, range: Range::of_first(ctx, ends, name)? })
    }

    /// Returns the values in input `i`, whose range is in the inputs `ends` and `ends + 1`.
    pub(super) fn input(ctx: &'a KernelContext<'_>, i: usize, ends: usize, name: &str) -> Result<Self> {
        let tensor = ctx.input(i)?;
        Ok(Quantized { tensor, levels: levels(tensor)?, range: Range::of(ctx, ends, name)? })
    }
}
