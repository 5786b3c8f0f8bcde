//! QuantizeAndDequantize ops: numbers quantised and dequantised, with one scale or one scale per slice of an axis.

use crate::numeric::scalar::Real;
use crate::plan::quantize::{RoundTrip, check_range, gradient_slices};
use device::Result;
use device::kernel::KernelContext;
use graph::{Element, Tensor};

pub(super) fn forward<T: Element + Real>(ctx: &mut KernelContext<'_>, attrs: &RoundTrip) -> Result<()> {
    let [outer, count, inner] = attrs.slices(ctx)?;
    let [lowest, highest] = attrs.levels(ctx)?.map(T::of);
    let x = ctx.input(0)?;
    let values = x.values::<T>()?;
    let given = |slice: usize| -> Result<(T, T)> {
        Ok(match attrs.bounds {
            Some([min, max]) => (T::of(min.into()), T::of(max.into())),
            None => (ctx.input(1)?.values::<T>()?[slice], ctx.input(2)?.values::<T>()?[slice]),
        })
    };
    let place = |o: usize, slice: usize| (o * count + slice) * inner..(o * count + slice + 1) * inner;
    let mut out = ctx.allocate(T::DTYPE, x.shape().clone())?;
    let results = out.values_mut::<T>()?;
    for slice in 0..count {
        let (mut low, mut high) = if attrs.range_given {
            given(slice)?
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
        // The smaller of the two scales is used, because the larger one would move values beyond the levels at the
        // other end.
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

/// Outputs the incoming gradient where the input lies within its bounds, else zero; the bounds get a gradient of zero.
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
