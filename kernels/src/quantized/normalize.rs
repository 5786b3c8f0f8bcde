//! QuantizedInstanceNorm and QuantizedBatchNormWithGlobalNormalization.

use super::level::{Level, build, map};
use super::range::{Quantized, Quantizer, Range};
use device::kernel::{KernelContext, KernelInit};
use device::{Result, invalid};

/// The attributes of QuantizedInstanceNorm.
pub(super) struct Instance {
    /// The range of the result; `None` for the range of the numbers that occur.
    given: Option<Range>,
    epsilon: f32,
    least_width: f32,
}

impl Instance {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Instance> {
        let (min, max): (f32, f32) = (init.attr("given_y_min")?, init.attr("given_y_max")?);
        let is_given = init.attr("output_range_given")?;
        if is_given && !(Range { min, max }).is_ascending() {
            invalid!("Invalid output range: given_y_min must be less than given_y_max, got {min} and {max}");
        }
        let (epsilon, least_width) = (init.attr("variance_epsilon")?, init.attr("min_separation")?);
        Ok(Instance { given: is_given.then_some(Range { min, max }), epsilon, least_width })
    }
}

/// Normalizes each channel of each image to a mean of 0 and a variance of 1.
pub(super) fn instances(ctx: &mut KernelContext<'_>, attrs: &Instance) -> Result<()> {
    let x = Quantized::<u8>::input(ctx, 0, 1, "x")?;
    let &[batch, height, width, channels] = x.tensor.shape().dims() else {
        invalid!("input must be 4-dimensional, not of shape {}", x.tensor.shape());
    };
    if !x.range.is_ascending() {
        invalid!("input_min must be less than input_max : {} >= {}", x.range.min, x.range.max);
    }
    let pixels = height * width;
    // The variance is that of the levels, so the term that is added to it is in units of squared levels.
    let step = f64::from(x.range.max - x.range.min) / 255.0;
    let epsilon = f64::from(attrs.epsilon) / step / step;
    let mut numbers = vec![0f32; x.levels.len()];
    for image in 0..if pixels > 0 { batch } else { 0 } {
        let place = image * pixels * channels..(image + 1) * pixels * channels;
        let (levels, numbers) = (&x.levels[place.clone()], &mut numbers[place]);
        for channel in 0..channels {
            let values = || levels[channel..].iter().step_by(channels).map(|&v| f64::from(v));
            let mean = values().sum::<f64>() / pixels as f64;
            let variance = values().map(|v| (v - mean) * (v - mean)).sum::<f64>() / pixels as f64;
            let deviation = (variance + epsilon).sqrt();
            let normalized = numbers[channel..].iter_mut().step_by(channels);
            normalized.zip(values()).for_each(|(o, v)| *o = ((v - mean) / deviation) as f32);
        }
    }
    let range = attrs.given.unwrap_or_else(|| {
        let min = numbers.iter().copied().fold(f32::INFINITY, f32::min);
        let max = numbers.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        Range { min, max: max.max(min + attrs.least_width) }
    });
    let quantizer = Quantizer::<u8>::new(range);
    let out = map(x.tensor.shape().clone(), &numbers, |v| quantizer.apply(v))?;
    ctx.set_output(0, out);
    range.set_outputs(ctx, 1);
    Ok(())
}

/// The range of normalized values.
const NORMALIZED: Range = Range { min: -1_048_576.0, max: 1_048_576.0 };

/// Normalizes images with given means and variances per channel, in integers.
pub(super) fn batch(ctx: &mut KernelContext<'_>, epsilon: f32, scales: bool) -> Result<()> {
    let x = Quantized::<u8>::with_first(ctx, 0, 1, "t")?;
    if x.tensor.shape().rank() != 4 {
        invalid!("input must be 4-dimensional: {}", x.tensor.shape());
    }
    let channels = x.tensor.shape()[3];
    let mut vectors = Vec::new();
    for (i, name) in [(3, "mean"), (6, "var"), (9, "beta"), (12, "gamma")] {
        let vector = Quantized::<u8>::with_first(ctx, i, i + 1, name)?;
        if vector.tensor.shape().rank() != 1 {
            invalid!("{name} must be 1-dimensional: {}", vector.tensor.shape());
        }
        if vector.levels.len() != channels {
            invalid!("{name} must have {channels} elements, got {}", vector.levels.len());
        }
        vectors.push(vector);
    }
    if channels == 0 {
        invalid!("Must have at least one mean value");
    }
    let one = i64::from(NORMALIZED.quantize::<i32>(1.0));
    let level = |number: f32| i64::from(NORMALIZED.quantize::<i32>(number));
    let linear: Vec<(i64, i64)> = (0..channels)
        .map(|c| {
            let [mean, variance, beta, gamma] =
                [0, 1, 2, 3].map(|v: usize| vectors[v].range.dequantize(vectors[v].levels[c]));
            let weight = 1.0 / (variance + epsilon).sqrt();
            let weight = if scales { weight * gamma } else { weight };
            (level(weight), level(beta - mean * weight))
        })
        .collect();
    let out = build(x.tensor.shape().clone(), |out: &mut [i32]| {
        for (i, (o, &v)) in out.iter_mut().zip(x.levels).enumerate() {
            let (weight, bias) = linear[i % channels];
            *o = i32::wrapped(level(x.range.dequantize(v)).wrapping_mul(weight) / one + bias);
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    NORMALIZED.set_outputs(ctx, 1);
    Ok(())
}
