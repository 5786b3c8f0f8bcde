//! RaggedRange: ranges of numbers, one per row.

use crate::numeric::dispatch::dispatch;
use crate::numeric::scalar::Stored;
use crate::plan::shape::integers;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::{DType, Shape, Tensor};

pub(super) const TYPES: &[DType] = &[DType::Float, DType::Double, DType::Int32, DType::Int64];

pub(super) fn make(init: &KernelInit<'_>) -> Result<Kernel> {
    let splits_type = init.output_type(0);
    let build = dispatch!(@arms init.output_type(1), T => Ok(ranges::<T> as BuildFn);
        Float f32, Double f64, Int32 i32, Int64 i64)?;
    Kernel::sync(move |ctx| {
        let most = if splits_type == DType::Int32 { i64::from(i32::MAX) } else { i64::MAX };
        let (splits, out) = build([ctx.input(0)?, ctx.input(1)?, ctx.input(2)?], rows(ctx)?, most)?;
        ctx.set_output(0, integers(splits_type, &splits)?);
        ctx.set_output(1, out);
        Ok(())
    })
}

/// A function `(inputs, rows, most)` that returns row splits and the numbers of all ranges; see [`ranges`].
type BuildFn = fn([&Tensor; 3], usize, i64) -> Result<(Vec<i64>, Tensor)>;

/// The type of the numbers in a range.
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

/// Returns the number of ranges, which are the rows of the output, after checking the shapes of the inputs.
fn rows(ctx: &KernelContext<'_>) -> Result<usize> {
    let mut rows = None;
    for (i, name) in ["starts", "limits", "deltas"].into_iter().enumerate() {
        match *ctx.input(i)?.shape().dims() {
            [] => {}
            [count] if rows.is_none_or(|rows| rows == count) => rows = Some(count),
            [_] => invalid!("starts, limits, and deltas must have the same shape"),
            _ => invalid!("{name} must be a scalar or vector"),
        }
    }
    Ok(rows.unwrap_or(1))
}

/// Returns the row splits of `rows` ranges, each split at most `most`, and the numbers of all ranges, concatenated.
fn ranges<T: Number>(given: [&Tensor; 3], rows: usize, most: i64) -> Result<(Vec<i64>, Tensor)> {
    let [starts, limits, deltas] = given.map(|given| row_values::<T>(given, rows));
    let (starts, limits, deltas) = (starts?, limits?, deltas?);
    let mut splits = vec![0i64];
    for row in 0..rows {
        if deltas[row] == T::ZERO {
            return Err(zero_delta_error());
        }
        let steps = T::steps(starts[row], limits[row], deltas[row]);
        splits.push(range_end(splits[row], steps, most)?);
    }
    let mut out = empty_ranges(T::DTYPE, splits[rows])?;
    let to = out.values_mut::<T>()?;
    for row in 0..rows {
        let mut value = starts[row];
        for to in &mut to[splits[row] as usize..splits[row + 1] as usize] {
            *to = value;
            value = value.plus(deltas[row]);
        }
    }
    Ok((splits, out))
}

/// Returns one value per row; a scalar input applies to all rows.
fn row_values<T: Number>(given: &Tensor, rows: usize) -> Result<Vec<T>> {
    let values = given.values::<T>()?;
    Ok(if given.shape().rank() == 0 { vec![values[0]; rows] } else { values.to_vec() })
}

fn zero_delta_error() -> Error {
    Error::invalid("Requires delta != 0")
}

/// Returns the row split after a range of `steps` numbers that begins at split `start`; an error if it exceeds `most`.
fn range_end(start: i64, steps: Option<i64>, most: i64) -> Result<i64> {
    let end = steps.and_then(|steps| start.checked_add(steps)).filter(|&end| end <= most);
    end.ok_or_else(|| Error::invalid(format!("Requires ((limit - start) / delta) <= {most}")))
}

/// Returns a vector of `count` numbers with unspecified values.
fn empty_ranges(dtype: DType, count: i64) -> Result<Tensor> {
    let Ok(count) = usize::try_from(count) else { invalid!("The total range size overflowed") };
    Ok(Tensor::unspecified(dtype, Shape::new(&[count])?)?)
}
