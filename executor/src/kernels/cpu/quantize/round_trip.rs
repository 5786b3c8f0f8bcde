//! Numbers quantised and brought back, by one scale or by one for each slice of an axis.

use crate::error::{Error, Result};
use crate::kernel::{KernelContext, KernelInit};
use crate::kernels::cpu::scalar::Real;
use graph::{Element, Tensor};

/// The attributes.
pub(super) struct RoundTrip {
    signed: bool,
    /// `None` where the number of bits is input 3.
    bits: Option<i64>,
    range_given: bool,
    half_up: bool,
    narrow: bool,
    axis: i64,
}

impl RoundTrip {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<RoundTrip> {
        let has = |name| init.node.op.attr_spec(name).is_some();
        let signed = init.attr("signed_input")?;
        let bits = if has("num_bits") { Some(init.attr("num_bits")?) } else { None };
        if let Some(bits) = bits {
            check_bits(bits, signed)?;
        }
        let axis = init.attr("axis")?;
        if axis < -1 {
            crate::invalid!("Axis must be at least -1. Found {axis}");
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
}

fn check_bits(bits: i64, signed: bool) -> Result<()> {
    let most = if signed { 61 } else { 62 };
    if !(1..=most).contains(&bits) {
        crate::invalid!("num_bits is out of range: {bits} with signed_input {signed}");
    }
    Ok(())
}

/// How elements fall to slices: before the axis, along it, and after it.
fn slices(x: &Tensor, axis: i64) -> Result<[usize; 3]> {
    let dims = x.shape().dims();
    if axis == -1 {
        return Ok([1, 1, x.num_elements()]);
    }
    let axis = usize::try_from(axis).ok().filter(|&a| a < dims.len());
    let axis = axis.ok_or_else(|| {
        Error::invalid(format!("Axis should be -1 or 0 or a positive value less than {}", dims.len()))
    })?;
    Ok([dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product()])
}

/// Checks that there is a bound for each slice; a single one is a scalar, or, if so said, a vector of one.
fn check_bounds(min: &Tensor, max: &Tensor, axis: i64, count: usize, may_be_vector: bool) -> Result<()> {
    for (name, bound) in [("input_min", min), ("input_max", max)] {
        let fits = match axis {
            -1 if may_be_vector => bound.num_elements() == 1,
            -1 => bound.shape().rank() == 0,
            _ => bound.shape().dims() == [count],
        };
        if !fits {
            crate::invalid!("{name} must have {count} elements, got shape {}", bound.shape());
        }
    }
    Ok(())
}

pub(super) fn forward<T: Element + Real>(ctx: &mut KernelContext<'_>, attrs: &RoundTrip) -> Result<()> {
    let (x, min, max) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let [outer, count, inner] = slices(x, attrs.axis)?;
    let bits = match attrs.bits {
        Some(bits) => bits,
        None => {
            let bits = i64::from(ctx.scalar(3, "num_bits")?.item::<i32>()?);
            check_bits(bits, attrs.signed)?;
            bits
        }
    };
    if attrs.range_given {
        // The form whose bits are an input is the one that looks at no rank.
        check_bounds(min, max, attrs.axis, count, attrs.bits.is_none())?;
    }
    let values = x.values::<T>()?;
    let place = |o: usize, slice: usize| (o * count + slice) * inner..(o * count + slice + 1) * inner;
    let mut out = ctx.allocate(T::DTYPE, x.shape().clone())?;
    let results = out.values_mut::<T>()?;
    let (lowest, highest) = match (attrs.signed, attrs.narrow) {
        (true, narrow) => (-(1i64 << (bits - 1)) + i64::from(narrow), (1i64 << (bits - 1)) - 1),
        (false, _) => (0, (1i64 << bits) - 1),
    };
    let (lowest, highest) = (T::of(lowest as f64), T::of(highest as f64));
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
        if attrs.range_given && (low > high || low.is_nan() || high.is_nan()) {
            crate::invalid!("Invalid range: input_min must not be greater than input_max");
        }
        // The larger scale would leave the levels on the other side.
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

/// Gradients pass where the input lies within bounds; nothing flows to the bounds.
pub(super) fn backward<T: Element + Real>(ctx: &mut KernelContext<'_>, axis: i64) -> Result<()> {
    let (dy, x, min, max) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?, ctx.input(3)?);
    if dy.shape() != x.shape() {
        crate::invalid!("gradient and input must have the same shape, got {} and {}", dy.shape(), x.shape());
    }
    let [_, count, inner] = slices(x, axis)?;
    check_bounds(min, max, axis, count, true)?;
    let mut dx = ctx.allocate(T::DTYPE, x.shape().clone())?;
    let (low, high) = (min.values::<T>()?, max.values::<T>()?);
    let pairs = dy.values::<T>()?.iter().zip(x.values::<T>()?);
    for (i, (dx, (&dy, &x))) in dx.values_mut::<T>()?.iter_mut().zip(pairs).enumerate() {
        let slice = i / inner % count;
        // Zero times a gradient is zero only of what is finite.
        *dx = dy * if x >= low[slice] && x <= high[slice] { T::one() } else { T::zero() };
    }
    let (of_min, of_max) = (min.shape().clone(), max.shape().clone());
    ctx.set_output(0, dx);
    ctx.set_output(1, Tensor::zeros(T::DTYPE, of_min)?);
    ctx.set_output(2, Tensor::zeros(T::DTYPE, of_max)?);
    Ok(())
}
