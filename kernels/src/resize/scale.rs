//! ScaleAndTranslate: scaling and translation of images, sampled with one of several kernels.

use super::as_single;
use crate::numeric::threads::for_rows;
use crate::plan::resize::Sizes;
use device::Result;
use device::kernel::{KernelContext, KernelInit};
use graph::{DType, Tensor};
use std::f32::consts::PI;

/// The function that gives the weight of an input pixel at a distance from the sampled point.
#[derive(Clone, Copy)]
enum SamplingKernel {
    Lanczos(f32),
    Gaussian,
    Box,
    Triangle,
    KeysCubic,
    MitchellCubic,
}

/// The attributes of ScaleAndTranslate.
#[derive(Clone, Copy)]
pub(super) struct Sampler {
    shape: SamplingKernel,
    antialias: bool,
}

impl Sampler {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<Sampler> {
        let name: String = init.attr("kernel_type")?;
        let shape = match name.to_lowercase().as_str() {
            "lanczos1" => SamplingKernel::Lanczos(1.0),
            "lanczos3" => SamplingKernel::Lanczos(3.0),
            "lanczos5" => SamplingKernel::Lanczos(5.0),
            "gaussian" => SamplingKernel::Gaussian,
            "box" => SamplingKernel::Box,
            "triangle" => SamplingKernel::Triangle,
            "keyscubic" => SamplingKernel::KeysCubic,
            "mitchellcubic" => SamplingKernel::MitchellCubic,
            _ => device::invalid!("Unrecognized kernel type: {name}"),
        };
        Ok(Sampler { shape, antialias: init.attr("antialias")? })
    }

    fn radius(self) -> f32 {
        match self.shape {
            SamplingKernel::Lanczos(radius) => radius,
            SamplingKernel::Gaussian => 1.5,
            SamplingKernel::Box => 0.5,
            SamplingKernel::Triangle => 1.0,
            SamplingKernel::KeysCubic | SamplingKernel::MitchellCubic => 2.0,
        }
    }

    /// Returns the weight of a pixel at distance `x`, which is not negative.
    fn weight(self, x: f32) -> f32 {
        match self.shape {
            SamplingKernel::Lanczos(radius) if x > radius => 0.0,
            SamplingKernel::Lanczos(_) if x <= 1e-3 => 1.0,
            SamplingKernel::Lanczos(radius) => {
                radius * (PI * x).sin() * (PI * x / radius).sin() / (PI * PI * x * x)
            }
            SamplingKernel::Gaussian if x >= 1.5 => 0.0,
            // A Gaussian whose deviation is a third of the radius.
            SamplingKernel::Gaussian => (-x * x / (2.0 * 0.5 * 0.5)).exp(),
            SamplingKernel::Box if x < 0.5 => 1.0,
            SamplingKernel::Box if x == 0.5 => 0.5,
            SamplingKernel::Box => 0.0,
            SamplingKernel::Triangle => (1.0 - x).max(0.0),
            SamplingKernel::KeysCubic | SamplingKernel::MitchellCubic if x >= 2.0 => 0.0,
            SamplingKernel::KeysCubic if x >= 1.0 => ((-0.5 * x + 2.5) * x - 4.0) * x + 2.0,
            SamplingKernel::KeysCubic => (1.5 * x - 2.5) * x * x + 1.0,
            SamplingKernel::MitchellCubic if x >= 1.0 => {
                ((-7.0 / 18.0 * x + 2.0) * x - 10.0 / 3.0) * x + 16.0 / 9.0
            }
            SamplingKernel::MitchellCubic => (7.0 / 6.0 * x - 2.0) * x * x + 8.0 / 9.0,
        }
    }

    /// Returns, for each output position, the input positions that contribute to it and their weights.
    fn spans(self, input: usize, output: usize, scale: f32, translation: f32) -> Vec<Span> {
        let inverse = 1.0 / scale;
        let moved = -inverse * translation;
        // When shrinking with antialiasing, the kernel is stretched so that it covers all input pixels.
        let stretch = if self.antialias { inverse.max(1.0) } else { 1.0 };
        let reach = self.radius() * stretch;
        let last = input as i64 - 1;
        let span = |x: usize| {
            let at = (x as f32 + 0.5) * inverse + moved;
            if !(at >= 0.0 && at <= input as f32) {
                return (0, Vec::new());
            }
            let start = ((at - reach - 0.5).ceil() as i64).clamp(0, last);
            let end = ((at + reach - 0.5).floor() as i64).clamp(0, last) + 1;
            let weight = |source| self.weight(((source as f32 + 0.5 - at) * (1.0 / stretch)).abs());
            let mut weights: Vec<f32> = (start..end).map(weight).collect();
            let sum: f32 = weights.iter().sum();
            let factor = if sum.abs() >= 1000.0 * f32::MIN_POSITIVE { 1.0 / sum } else { 0.0 };
            weights.iter_mut().for_each(|w| *w *= factor);
            (start as usize, weights)
        };
        (0..output).map(span).collect()
    }
}

/// The first input position with a weight, and the weights from that position on.
type Span = (usize, Vec<f32>);

/// Returns an input of two numbers, for rows and columns.
fn pair(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<[f32; 2]> {
    let given = ctx.input(i)?;
    match (given.values::<f32>()?, given.shape().rank()) {
        (&[rows, columns], 1) => Ok([rows, columns]),
        _ => device::invalid!("{name} must be a vector of two elements, got shape {}", given.shape()),
    }
}

/// Returns the input positions and weights of each output row and of each output column.
fn spans(ctx: &KernelContext<'_>, sampler: Sampler, sizes: &Sizes) -> Result<[Vec<Span>; 2]> {
    let (scale, translation) = (pair(ctx, 2, "scale")?, pair(ctx, 3, "translation")?);
    if !scale.iter().all(|&s| s > 0.0) {
        device::invalid!("scale must be greater than zero, got {scale:?}");
    }
    Ok([0, 1].map(|i| sampler.spans(sizes.input[i], sizes.output[i], scale[i], translation[i])))
}

pub(super) fn forward(ctx: &mut KernelContext<'_>, sampler: Sampler) -> Result<()> {
    let sizes = Sizes::forward(ctx)?;
    let input = as_single(ctx.input(0)?)?;
    let mut out = ctx.allocate(DType::Float, sizes.output_shape()?)?;
    if out.num_elements() > 0 {
        let [rows, columns] = spans(ctx, sampler, &sizes)?;
        let (values, channels, line_in) = (input.values::<f32>()?, sizes.channels, sizes.input_line());
        for_rows(out.values_mut::<f32>()?, sizes.output_line(), |first, lines| {
            let mut sums = vec![0.0; line_in];
            for (i, out) in lines.chunks_exact_mut(sizes.output_line()).enumerate() {
                let (image, row) = ((first + i) / sizes.output[0], &rows[(first + i) % sizes.output[0]]);
                sums.fill(0.0);
                for (y, weight) in (row.0..).zip(&row.1) {
                    let line = &values[(image * sizes.input[0] + y) * line_in..][..line_in];
                    sums.iter_mut().zip(line).for_each(|(s, v)| *s += v * weight);
                }
                for (out, (start, weights)) in out.chunks_exact_mut(channels).zip(&columns) {
                    out.fill(0.0);
                    for (sums, weight) in sums[start * channels..].chunks_exact(channels).zip(weights) {
                        out.iter_mut().zip(sums).for_each(|(o, s)| *o += s * weight);
                    }
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}

pub(super) fn backward(ctx: &mut KernelContext<'_>, sampler: Sampler) -> Result<()> {
    let sizes = Sizes::backward(ctx)?;
    let [rows, columns] = spans(ctx, sampler, &sizes)?;
    let mut out = Tensor::zeros(DType::Float, sizes.input_shape()?)?;
    let (channels, line_in) = (sizes.channels, sizes.input_line());
    let (image_in, image_out) = (sizes.input[0] * line_in, sizes.output[0] * sizes.output_line());
    if out.num_elements() > 0 {
        let grads = ctx.input(0)?.values::<f32>()?;
        for_rows(out.values_mut::<f32>()?, image_in, |first, images| {
            let mut sums = vec![0.0; line_in];
            for (i, out) in images.chunks_exact_mut(image_in).enumerate() {
                let grads = &grads[(first + i) * image_out..][..image_out];
                for ((start, weights), grads) in rows.iter().zip(grads.chunks_exact(sizes.output_line())) {
                    sums.fill(0.0);
                    for ((start, weights), grad) in columns.iter().zip(grads.chunks_exact(channels)) {
                        for (sums, weight) in sums[start * channels..].chunks_exact_mut(channels).zip(weights)
                        {
                            sums.iter_mut().zip(grad).for_each(|(s, g)| *s += g * weight);
                        }
                    }
                    for (out, weight) in out[start * line_in..].chunks_exact_mut(line_in).zip(weights) {
                        out.iter_mut().zip(&sums).for_each(|(o, s)| *o += s * weight);
                    }
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}
