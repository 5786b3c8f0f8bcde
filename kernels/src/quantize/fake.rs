//! FakeQuant ops: round numbers to the levels that a quantised model would have.

use crate::numeric::threads::for_rows;
use crate::plan::quantize::{Levels, channels_of, check_ends, check_same, ends};
use device::Result;
use device::kernel::{KernelContext, KernelInit};
use graph::{DType, Shape, Tensor};

/// The range of numbers between the lowest and the highest level, shifted so that zero is a level.
#[derive(Clone, Copy)]
pub(super) struct Range {
    min: f32,
    max: f32,
    scale: f32,
    /// The number of levels per unit, computed from the range and therefore not exactly `1 / scale`.
    inverse: f32,
    /// True if level numbers are found by division, like in TensorFlow if the inputs give a single range.
    divides: bool,
}

impl Range {
    pub(super) fn of_attrs(init: &KernelInit<'_>) -> Result<Range> {
        let [min, max] = ends(init)?;
        Ok(Range::new(min, max, Levels::of(init)?))
    }

    fn new(min: f32, max: f32, Levels([lowest, highest]): Levels) -> Range {
        let scale = (max - min) / (highest - lowest);
        let zero = (lowest - min / scale).round().clamp(lowest, highest);
        // `clamp` returns NaN for NaN, which is replaced by the lowest level.
        let zero = if zero.is_nan() { lowest } else { zero };
        let inverse = (highest - lowest) / (max - min);
        Range { min: (lowest - zero) * scale, max: (highest - zero) * scale, scale, inverse, divides: false }
    }

    fn apply(&self, x: f32) -> f32 {
        let zero = (-self.min * self.inverse + 0.5).floor();
        let bounded = if x.is_nan() { x } else { x.min(self.max).max(self.min) };
        let shifted = bounded - self.min;
        let place = if self.divides { shifted / self.scale } else { shifted * self.inverse };
        (place - zero + 0.5).floor() * self.scale
    }

    fn contains(&self, x: f32) -> bool {
        x >= self.min && x <= self.max
    }
}

pub(super) fn by_attrs(ctx: &mut KernelContext<'_>, range: Range) -> Result<()> {
    let x = ctx.input(0)?;
    let mut out = ctx.allocate(DType::Float, x.shape().clone())?;
    let values = x.values::<f32>()?;
    for_rows(out.values_mut::<f32>()?, 1, |first, out| {
        out.iter_mut().zip(&values[first..]).for_each(|(o, &x)| *o = range.apply(x));
    });
    ctx.set_output(0, out);
    Ok(())
}

/// Returns `dy` if `flows` is set, else zero times `dy`, which is NaN for infinite or NaN `dy`.
fn masked(dy: f32, flows: bool) -> f32 {
    dy * f32::from(u8::from(flows))
}

pub(super) fn by_attrs_grad(ctx: &mut KernelContext<'_>, range: Range) -> Result<()> {
    check_same(ctx)?;
    let (dy, x) = (ctx.input(0)?, ctx.input(1)?);
    let mut out = ctx.allocate(DType::Float, x.shape().clone())?;
    let pairs = dy.values::<f32>()?.iter().zip(x.values::<f32>()?);
    for (o, (&dy, &x)) in out.values_mut::<f32>()?.iter_mut().zip(pairs) {
        *o = masked(dy, range.contains(x));
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Returns the quantisation ranges in inputs `first` and `first + 1`, one range or one per channel; `None` for a range
/// whose ends are both 0.
fn ranges(
    ctx: &KernelContext<'_>,
    first: usize,
    levels: Levels,
    channels: Option<usize>,
) -> Result<Vec<Option<Range>>> {
    check_ends(ctx, first, channels)?;
    let (min, max) = (ctx.input(first)?, ctx.input(first + 1)?);
    let ends = min.values::<f32>()?.iter().zip(max.values::<f32>()?);
    let range = |(&min, &max): (&f32, &f32)| {
        let empty = min == 0.0 && max == 0.0;
        (!empty).then(|| Range { divides: channels.is_none(), ..Range::new(min, max, levels) })
    };
    Ok(ends.map(range).collect())
}

pub(super) fn by_inputs(ctx: &mut KernelContext<'_>, levels: Levels, per_channel: bool) -> Result<()> {
    let x = ctx.input(0)?;
    let channels = channels_of(x.shape(), per_channel)?;
    let ranges = ranges(ctx, 1, levels, channels)?;
    let mut out = ctx.allocate(DType::Float, x.shape().clone())?;
    if x.num_elements() > 0 {
        let values = x.values::<f32>()?;
        for_rows(out.values_mut::<f32>()?, ranges.len(), |first, out| {
            let from = values[first * ranges.len()..].chunks_exact(ranges.len());
            for (out, x) in out.chunks_exact_mut(ranges.len()).zip(from) {
                for ((o, &x), range) in out.iter_mut().zip(x).zip(&ranges) {
                    *o = range.as_ref().map_or(0.0, |r| r.apply(x));
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}

pub(super) fn by_inputs_grad(ctx: &mut KernelContext<'_>, levels: Levels, per_channel: bool) -> Result<()> {
    check_same(ctx)?;
    let (dy, x) = (ctx.input(0)?, ctx.input(1)?);
    let channels = channels_of(x.shape(), per_channel)?;
    let ranges = ranges(ctx, 2, levels, channels)?;
    let mut dx = ctx.allocate(DType::Float, x.shape().clone())?;
    let (mut below, mut above) = (vec![0f64; ranges.len()], vec![0f64; ranges.len()]);
    if x.num_elements() > 0 {
        let all = dx.values_mut::<f32>()?.iter_mut().zip(dy.values::<f32>()?).zip(x.values::<f32>()?);
        for (i, ((dx, &dy), &x)) in all.enumerate() {
            let channel = i % ranges.len();
            *dx = match &ranges[channel] {
                Some(range) => {
                    below[channel] += f64::from(masked(dy, x < range.min));
                    above[channel] += f64::from(masked(dy, x > range.max));
                    masked(dy, range.contains(x))
                }
                None => dy,
            };
        }
    }
    ctx.set_output(0, dx);
    let shape = channels.map_or(Ok(Shape::scalar()), |c| Shape::new(&[c]))?;
    for (i, sums) in [below, above].into_iter().enumerate() {
        let sums: Vec<f32> = sums.into_iter().map(|s| s as f32).collect();
        ctx.set_output(i + 1, Tensor::from_slice(&sums, shape.clone())?);
    }
    Ok(())
}
