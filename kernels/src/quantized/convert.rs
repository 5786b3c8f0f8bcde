//! QuantizeV2 and Dequantize: conversions between numbers and quantized values, with one range or one range per slice
//! of an axis.

use super::level::{Level, build, levels, to_i32, to_i64};
use super::range::{Dequantizer, Quantizer, Range, bounded};
use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result, invalid};
use graph::{DType, Shape, Tensor};

/// The rule by which levels are assigned to the numbers of a range.
#[derive(Clone, Copy, PartialEq)]
enum Mode {
    /// The ends of the range are the lowest and the highest level.
    MinCombined,
    /// Like `MinCombined`, but zero is a level, and numbers are computed from the lowest level.
    MinFirst,
    /// Levels are multiples of a scale.
    Scaled,
}

impl Mode {
    fn of(init: &KernelInit<'_>) -> Result<Mode> {
        Ok(match init.attr::<String>("mode")?.as_str() {
            "MIN_FIRST" => Mode::MinFirst,
            "SCALED" => Mode::Scaled,
            _ => Mode::MinCombined,
        })
    }
}

fn axis_attr(init: &KernelInit<'_>) -> Result<i64> {
    let axis = init.attr("axis")?;
    if axis < -1 {
        invalid!("Axis must be at least -1. Found {axis}");
    }
    Ok(axis)
}

fn check_axis(axis: i64, mode: Mode) -> Result<()> {
    if axis != -1 && mode == Mode::MinFirst {
        return Err(Error::unimplemented("MIN_FIRST mode is not implemented with a range for each slice"));
    }
    Ok(())
}

/// The attributes of QuantizeV2.
pub(super) struct Quantization {
    mode: Mode,
    half_to_even: bool,
    narrow: bool,
    axis: i64,
    /// The least width of a range, relative to the greater magnitude of its ends.
    least_width: f32,
}

impl Quantization {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Quantization> {
        let mode = Mode::of(init)?;
        let half_to_even = init.attr::<String>("round_mode")? == "HALF_TO_EVEN";
        if half_to_even && mode != Mode::Scaled {
            invalid!("Round mode 'HALF_TO_EVEN' only supported for mode 'SCALED'");
        }
        Ok(Quantization {
            mode,
            half_to_even,
            narrow: init.attr("narrow_range")?,
            axis: axis_attr(init)?,
            least_width: init.attr("ensure_minimum_range")?,
        })
    }

    /// Returns the range to which a range with these ends is widened: it contains zero.
    fn widened(&self, min: f32, max: f32) -> Result<Range> {
        if max < min {
            invalid!("input_max_range must be larger than input_min_range.");
        }
        let low = min.min(0.0);
        let least = low + 1f32.max(min.abs().max(max.abs())) * self.least_width;
        Ok(Range { min: low, max: max.max(least).max(0.0) })
    }
}

/// Returns the product of the dimensions before the axis, the size of the axis, and the product of the dimensions after
/// it, and checks the shapes of the ends of the ranges in inputs 1 and 2.
fn slices(ctx: &KernelContext<'_>, axis: i64) -> Result<[usize; 3]> {
    let slices = crate::plan::quantize::slices(ctx.shape(0)?, axis)?;
    for i in [1, 2] {
        let end = ctx.shape(i)?;
        let fits = if axis == -1 { end.num_elements() == 1 } else { end.dims() == [slices[1]] };
        if !fits {
            invalid!("The ends of the range must have {} elements, got shape {end}", slices[1]);
        }
    }
    Ok(slices)
}

pub(super) fn quantize<T: Level>(ctx: &mut KernelContext<'_>, attrs: &Quantization) -> Result<()> {
    let [outer, count, inner] = slices(ctx, attrs.axis)?;
    check_axis(attrs.axis, attrs.mode)?;
    let x = ctx.input(0)?;
    let values = x.values::<f32>()?;
    let (mins, maxs) = (ctx.input(1)?, ctx.input(2)?);
    let ends = mins.values::<f32>()?.iter().zip(maxs.values::<f32>()?);
    let mut ranges = ends.map(|(&min, &max)| attrs.widened(min, max)).collect::<Result<Vec<_>>>()?;
    let shape = if attrs.axis == -1 { Shape::scalar() } else { mins.shape().clone() };
    let out = build(x.shape().clone(), |out: &mut [T]| {
        for (slice, range) in ranges.iter_mut().enumerate() {
            let quantize = of_mode::<T>(attrs, range);
            for o in 0..outer {
                let place = (o * count + slice) * inner..(o * count + slice + 1) * inner;
                out[place.clone()].iter_mut().zip(&values[place]).for_each(|(o, &v)| *o = quantize(v));
            }
        }
        Ok(())
    })?;
    let (low, high): (Vec<f32>, Vec<f32>) = ranges.iter().map(|r| (r.min, r.max)).unzip();
    ctx.set_output(0, out);
    ctx.set_output(1, Tensor::from_slice(&low, shape.clone())?);
    ctx.set_output(2, Tensor::from_slice(&high, shape)?);
    Ok(())
}

/// Converts a rounded number to a level.
fn cast<T: Level>(level: f32) -> T {
    T::wrapped(to_i64(f64::from(level)))
}

/// Returns the function that converts a number to a level. The mode `SCALED` changes the range to that of the levels.
fn of_mode<T: Level>(attrs: &Quantization, range: &mut Range) -> Box<dyn Fn(f32) -> T> {
    match attrs.mode {
        Mode::MinCombined => {
            let ends = [range.min, range.max];
            let scale = ((T::HIGHEST as f64 - T::LOWEST as f64) as f32) / (range.max - range.min);
            let half = half_range::<T>();
            Box::new(move |v| cast(((bounded(v, ends) - ends[0]) * scale - half).round()))
        }
        Mode::MinFirst => {
            let quantizer = Quantizer::<T>::new(*range);
            Box::new(move |v| quantizer.apply(v))
        }
        Mode::Scaled => {
            let levels = [(T::LOWEST + i64::from(attrs.narrow)) as f32, T::HIGHEST as f32];
            let scale_of = |level: f32, end: f32| if level * end > 0.0 { level / end } else { f32::MAX };
            let scale = scale_of(levels[0], range.min).min(scale_of(levels[1], range.max));
            // An end that is no normal number is flushed to zero, like in TensorFlow.
            let flushed = |end: f32| if end.is_subnormal() { 0.0 } else { end };
            let ends = levels.map(|level| flushed(level / scale));
            *range = Range { min: ends[0], max: ends[1] };
            if attrs.half_to_even {
                Box::new(move |v| cast((bounded(v, ends) * scale).round_ties_even()))
            } else {
                Box::new(move |v| cast((bounded(v, ends) * scale).round()))
            }
        }
    }
}

/// Returns half the number of levels of a signed type, 0 for an unsigned type.
fn half_range<T: Level>() -> f32 {
    if T::IS_SIGNED { (T::COUNT / 2.0) as f32 } else { 0.0 }
}

/// The attributes of Dequantize.
pub(super) struct Dequantization {
    mode: Mode,
    narrow: bool,
    axis: i64,
    dtype: DType,
}

impl Dequantization {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Dequantization> {
        let (mode, dtype) = (Mode::of(init)?, init.output_type(0));
        if dtype == DType::BFloat16 && mode != Mode::MinCombined {
            invalid!("When output type is bfloat16, Mode string must be 'MIN_COMBINED'");
        }
        Ok(Dequantization { mode, narrow: init.attr("narrow_range")?, axis: axis_attr(init)?, dtype })
    }

    /// Returns the function that converts a level of a range to a number.
    fn function<T: Level>(&self, range: Range) -> Box<dyn Fn(T) -> f32> {
        match self.mode {
            Mode::MinCombined => {
                let scale = (range.max - range.min) / (T::HIGHEST as f32 - T::LOWEST as f32);
                let half = half_range::<T>();
                Box::new(move |level| (level.wide() as f32 + half) * scale + range.min)
            }
            Mode::MinFirst => {
                let dequantizer = Dequantizer::<T>::new(range);
                Box::new(move |level| dequantizer.apply(level))
            }
            Mode::Scaled => {
                let by_max = range.max / T::HIGHEST as f32;
                let lowest = (T::LOWEST + i64::from(self.narrow)) as f32;
                let scale = if T::IS_SIGNED { (range.min / lowest).max(by_max) } else { by_max };
                // The level becomes an integer of 32 bits by way of a float, which may exceed the greatest one.
                Box::new(move |level| to_i32(level.wide() as f32) as f32 * scale)
            }
        }
    }
}

pub(super) fn dequantize<T: Level>(ctx: &mut KernelContext<'_>, attrs: &Dequantization) -> Result<()> {
    let [outer, count, inner] = slices(ctx, attrs.axis)?;
    check_axis(attrs.axis, attrs.mode)?;
    let x = ctx.input(0)?;
    let values = levels::<T>(x)?;
    let (mins, maxs) = (ctx.input(1)?.values::<f32>()?, ctx.input(2)?.values::<f32>()?);
    let mut numbers = vec![0f32; values.len()];
    for slice in 0..count.min(mins.len()) {
        let dequantize = attrs.function::<T>(Range { min: mins[slice], max: maxs[slice] });
        for o in 0..outer {
            let place = (o * count + slice) * inner..(o * count + slice + 1) * inner;
            let pairs = numbers[place.clone()].iter_mut().zip(&values[place]);
            pairs.for_each(|(o, &v)| *o = dequantize(v));
        }
    }
    let shape = x.shape().clone();
    let out = if attrs.dtype == DType::BFloat16 {
        let rounded: Vec<half::bf16> = numbers.into_iter().map(half::bf16::from_f32).collect();
        Tensor::from_slice(&rounded, shape)?
    } else {
        Tensor::from_slice(&numbers, shape)?
    };
    ctx.set_output(0, out);
    Ok(())
}
