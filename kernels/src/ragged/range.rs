//! RaggedRange: ranges of numbers, one per row.

use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::Stored;
use crate::plan::shape::integers;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Result, invalid};
use graph::{DType, Shape, Tensor};

pub(super) const TYPES: &[DType] = &[DType::Float, DType::Double, DType::Int32, DType::Int64];

pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    let splits = init.output_type(0);
    dispatch!(@arms init.output_type(1), T => Kernel::sync(move |ctx| range::<T>(ctx, splits));
        Float f32, Double f64, Int32 i32, Int64 i64)
}

/// A number that ranges are made of.
trait Number: Stored {
    /// Returns the number of steps from `start` to before `limit`; `None` if it exceeds 64 bits.
    fn steps(start: Self, limit: Self, delta: Self) -> Option<i64>;
}

macro_rules! whole {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn steps(start: $t, limit: $t, delta: $t) -> Option<i64> {
                let (way, step) = (i128::from(limit) - i128::from(start), i128::from(delta));
                if way == 0 || (way < 0) != (step < 0) {
                    return Some(0);
                }
                i64::try_from((way.abs() + step.abs() - 1) / step.abs()).ok()
            }
        }
    )*};
}

macro_rules! real {
    ($($t:ty),*) => {$(
        impl Number for $t {
            fn steps(start: $t, limit: $t, delta: $t) -> Option<i64> {
                if (delta > 0.0 && start > limit) || (delta < 0.0 && start < limit) {
                    return Some(0);
                }
                let steps = ((limit - start) / delta).abs().ceil();
                (steps < i64::MAX as $t).then_some(steps as i64)
            }
        }
    )*};
}

whole!(i32, i64);
real!(f32, f64);

fn range<T: Number>(ctx: &mut KernelContext<'_>, splits_type: DType) -> Result<()> {
    let mut rows = None;
    for (i, name) in ["starts", "limits", "deltas"].into_iter().enumerate() {
        match *ctx.input(i)?.shape().dims() {
            [] => {}
            [count] if rows.is_none_or(|rows| rows == count) => rows = Some(count),
            [_] => invalid!("starts, limits, and deltas must have the same shape"),
            _ => invalid!("{name} must be a scalar or vector"),
        }
    }
    let rows = rows.unwrap_or(1);
    let values = |i: usize| -> Result<Vec<T>> {
        let given = ctx.input(i)?;
        let values = given.values::<T>()?;
        Ok(if given.shape().rank() == 0 { vec![values[0]; rows] } else { values.to_vec() })
    };
    let (starts, limits, deltas) = (values(0)?, values(1)?, values(2)?);
    let most = if splits_type == DType::Int32 { i64::from(i32::MAX) } else { i64::MAX };
    let mut splits = vec![0i64];
    for row in 0..rows {
        if deltas[row] == T::ZERO {
            invalid!("Requires delta != 0");
        }
        let steps = T::steps(starts[row], limits[row], deltas[row]);
        let end = steps.and_then(|steps| splits[row].checked_add(steps)).filter(|&end| end <= most);
        let Some(end) = end else {
            invalid!("Requires ((limit - start) / delta) <= {most}");
        };
        splits.push(end);
    }
    let Ok(count) = usize::try_from(splits[rows]) else { invalid!("The total range size overflowed") };
    let mut out = Tensor::unspecified(T::DTYPE, Shape::new(&[count])?)?;
    let to = out.values_mut::<T>()?;
    for row in 0..rows {
        let mut value = starts[row];
        for to in &mut to[splits[row] as usize..splits[row + 1] as usize] {
            *to = value;
            value = value.plus(deltas[row]);
        }
    }
    ctx.set_output(0, integers(splits_type, &splits)?);
    ctx.set_output(1, out);
    Ok(())
}
