//! QuantizeAndDequantize ops: numbers quantised and dequantised, with one scale or one scale per slice of an axis.

use crate::numeric::scalar::Real;
use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Element, Shape, Tensor};
use std::cmp::Ordering;

/// The attributes of the op.
#[derive(Debug)]
pub struct RoundTrip {
    signed: bool,
    /// The number of bits; `None` if input 3 gives it.
    bits: Option<i64>,
    pub range_given: bool,
    pub half_up: bool,
    narrow: bool,
    axis: i64,
}

impl RoundTrip {
    pub fn of(init: &KernelInit<'_>) -> Result<RoundTrip> {
        let has = |name| init.node.op.attr_spec(name).is_some();
        let signed = init.attr("signed_input")?;
        let bits = if has("num_bits") { Some(init.attr("num_bits")?) } else { None };
        if let Some(bits) = bits {
            check_bits(bits, signed)?;
        }
        let axis = init.attr("axis")?;
        if axis < -1 {
            device::invalid!("Axis must be at least -1. Found {axis}");
        }
        Ok(RoundTrip {
            signed,
            bits,
            range_given: init.attr("range_given")?,
            half_up: has("round_mode") && init.attr::<String>("round_mode")? == "HALF_UP",
            narrow: init.attr("narrow_range")?,
            axis,
        })
    }

    /// Returns the lowest and the highest level.
    pub fn levels(&self, ctx: &KernelContext<'_>) -> Result<[f64; 2]> {
        let bits = match self.bits {
            Some(bits) => bits,
            None => {
                let bits = i64::from(ctx.scalar(3, "num_bits")?.item::<i32>()?);
                check_bits(bits, self.signed)?;
                bits
            }
        };
        let (lowest, highest) = match (self.signed, self.narrow) {
            (true, narrow) => (-(1i64 << (bits - 1)) + i64::from(narrow), (1i64 << (bits - 1)) - 1),
            (false, _) => (0, (1i64 << bits) - 1),
        };
        Ok([lowest as f64, highest as f64])
    }

    /// Returns how many elements lie before the axis, along it, and after it, and checks the bounds if they are
    /// given.
    pub fn slices(&self, ctx: &KernelContext<'_>) -> Result<[usize; 3]> {
        let slices = slices(ctx.shape(0)?, self.axis)?;
        if self.range_given {
            // The op whose number of bits is an input does not check the rank of a single bound.
            check_bounds([ctx.shape(1)?, ctx.shape(2)?], self.axis, slices[1], self.bits.is_none())?;
        }
        Ok(slices)
    }
}

/// Returns the slices of a gradient's input, like [`RoundTrip::slices`], and checks the bounds.
pub fn gradient_slices(ctx: &KernelContext<'_>, axis: i64) -> Result<[usize; 3]> {
    let (dy, x) = (ctx.shape(0)?, ctx.shape(1)?);
    if dy != x {
        device::invalid!("gradient and input must have the same shape, got {dy} and {x}");
    }
    let slices = slices(x, axis)?;
    check_bounds([ctx.shape(2)?, ctx.shape(3)?], axis, slices[1], true)?;
    Ok(slices)
}

/// Checks the order of a slice's given bounds.
pub fn check_range<T: PartialOrd>(low: T, high: T) -> Result<()> {
    if !matches!(low.partial_cmp(&high), Some(Ordering::Less | Ordering::Equal)) {
        device::invalid!("Invalid range: input_min must not be greater than input_max");
    }
    Ok(())
}

fn check_bits(bits: i64, signed: bool) -> Result<()> {
    let most = if signed { 61 } else { 62 };
    if !(1..=most).contains(&bits) {
        device::invalid!("num_bits is out of range: {bits} with signed_input {signed}");
    }
    Ok(())
}

fn slices(x: &Shape, axis: i64) -> Result<[usize; 3]> {
    let dims = x.dims();
    if axis == -1 {
        return Ok([1, 1, x.num_elements()]);
    }
    let axis = usize::try_from(axis).ok().filter(|&a| a < dims.len());
    let axis = axis.ok_or_else(|| {
        Error::invalid(format!("Axis should be -1 or 0 or a positive value less than {}", dims.len()))
    })?;
    Ok([dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()])
}

/// Checks that there is one bound per slice; a single bound is a scalar or, if `may_be_vector`, a vector of one
/// element.
fn check_bounds([min, max]: [&Shape; 2], axis: i64, count: usize, may_be_vector: bool) -> Result<()> {
    for (name, bound) in [("input_min", min), ("input_max", max)] {
        let fits = match axis {
            -1 if may_be_vector => bound.num_elements() == 1,
            -1 => bound.rank() == 0,
            _ => bound.dims() == [count],
        };
        if !fits {
            device::invalid!("{name} must have {count} elements, got shape {bound}");
        }
    }
    Ok(())
}

pub(super) fn forward<T: Element + Real>(ctx: &mut KernelContext<'_>, attrs: &RoundTrip) -> Result<()> {
    let [outer, count, inner] = attrs.slices(ctx)?;
    let [lowest, highest] = attrs.levels(ctx)?.map(T::of);
    let (x, min, max) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let values = x.values::<T>()?;
    let place = |o: usize, slice: usize| (o * count + slice) * inner..(o * count + slice + 1) * inner;
    let mut out = ctx.allocate(T::DTYPE, x.shape().clone())?;
    let results = out.values_mut::<T>()?;
    for slice in 0..count {
        let (mut low, mut high) = if attrs.range_given {
            (min.values::<T>()?[slice], max.values::<T>()?[slice])
        } else {
            let all = (0..outer).flat_map(|o| &values[place(o, slice)]);
            let found = all.fold(None, |range, &v| match range {
                None => Some((v, v)),
                Some((low, high)) => Some((v.min(low), v.max(high))),
            });
            found.unwrap_or((T::zero(), T::zero()))
        };
        if attrs.range_given {
            check_range(low, high)?;
        }
        // The larger of the two scales would push values beyond the levels at the other end.
        let scale_of = |level: T, end: T| if level * end > T::zero() { level / end } else { T::max_value() };
        let (by_low, by_high) = (scale_of(lowest, low), scale_of(highest, high));
        let (scale, inverse);
        if by_low < by_high {
            (scale, inverse) = (by_low, low / lowest);
            high = highest * inverse;
        } else {
            (scale, inverse) = (by_high, high / highest);
            low = lowest * inverse;
        }
        for o in 0..outer {
            for (out, &v) in results[place(o, slice)].iter_mut().zip(&values[place(o, slice)]) {
                let v = if attrs.range_given && !v.is_nan() { v.min(high).max(low) } else { v };
                let scaled = v * scale;
                let level = if attrs.half_up { (scaled + T::of(0.5)).floor() } else { half_to_even(scaled) };
                *out = level * inverse;
            }
        }
    }
    ctx.set_output(0, out);
    Ok(())
}

fn half_to_even<T: Real>(x: T) -> T {
    let rounded = x.round();
    let is_half = (x - x.trunc()).abs() == T::of(0.5);
    let two = T::of(2.0);
    if is_half { two * (x / two).round() } else { rounded }
}

/// The gradient passes where the input lies within its bounds; the bounds get a gradient of zero.
pub(super) fn backward<T: Element + Real>(ctx: &mut KernelContext<'_>, axis: i64) -> Result<()> {
    let [_, count, inner] = gradient_slices(ctx, axis)?;
    let (dy, x, min, max) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    let mut dx = ctx.allocate(T::DTYPE, x.shape().clone())?;
    let (low, high) = (min.values::<T>()?, max.values::<T>()?);
    let pairs = dy.values::<T>()?.iter().zip(x.values::<T>()?);
    for (i, (dx, (&dy, &x))) in dx.values_mut::<T>()?.iter_mut().zip(pairs).enumerate() {
        let slice = i / inner % count;
        // Zero times a gradient is zero only if the gradient is finite.
        *dx = dy * if x >= low[slice] && x <= high[slice] { T::one() } else { T::zero() };
    }
    let (of_min, of_max) = (min.shape().clone(), max.shape().clone());
    ctx.set_output(0, dx);
    ctx.set_output(1, Tensor::zeros(T::DTYPE, of_min)?);
    ctx.set_output(2, Tensor::zeros(T::DTYPE, of_max)?);
    Ok(())
}
