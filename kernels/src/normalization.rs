//! Batch normalisation by the mean and variance of each channel, and local response normalisation over neighbouring
//! channels.

mod columns;
mod global;
mod local;

use self::columns::{each_row, sums};
use crate::numeric::dispatch::{FLOATS, dispatch};
use crate::numeric::image::{load, store};
use crate::numeric::widen::{Lane, wide_dtype};
use crate::plan::normalization::LocalNorm;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result};
use graph::ops::normalization::BatchNorm;
use graph::{DType, Shape, Tensor};
use half::{bf16, f16};

const SINGLE: &[(&str, &[DType])] = &[("T", &[DType::Float])];
const MIXED: &[(&str, &[DType])] =
    &[("T", &[DType::Float, DType::Half, DType::BFloat16]), ("U", &[DType::Float])];
const HALF_OR_SINGLE: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Half, DType::BFloat16])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("FusedBatchNorm", SINGLE, |i| {
        let attrs = BatchNorm::of(i.node)?;
        Kernel::sync(move |ctx| forward(ctx, &attrs))
    }),
    KernelDef::of("FusedBatchNormV2", MIXED, |i| {
        let attrs = BatchNorm::of(i.node)?;
        Kernel::sync(move |ctx| forward(ctx, &attrs))
    }),
    KernelDef::of("FusedBatchNormV3", MIXED, |i| {
        let attrs = BatchNorm::of(i.node)?;
        Kernel::sync(move |ctx| forward(ctx, &attrs))
    }),
    KernelDef::of("FusedBatchNormGrad", SINGLE, |i| {
        let attrs = BatchNorm::of(i.node)?;
        Kernel::sync(move |ctx| backward(ctx, &attrs, None))
    }),
    KernelDef::of("FusedBatchNormGradV2", MIXED, |i| {
        let attrs = BatchNorm::of(i.node)?;
        Kernel::sync(move |ctx| backward(ctx, &attrs, None))
    }),
    KernelDef::of("FusedBatchNormGradV3", MIXED, |i| {
        let attrs = BatchNorm::of(i.node)?;
        Kernel::sync(move |ctx| backward(ctx, &attrs, None))
    }),
    KernelDef::of("_FusedBatchNormActivationGrad", MIXED, |i| {
        let (attrs, passes_gradient) = (BatchNorm::of(i.node)?, Some(passes_gradient(i)?));
        Kernel::sync(move |ctx| backward(ctx, &attrs, passes_gradient))
    }),
    KernelDef::of("LRN", HALF_OR_SINGLE, |i| {
        let attrs = LocalNorm::of(i)?;
        Kernel::sync(move |ctx| local::forward(ctx, &attrs))
    }),
    KernelDef::of("LRNGrad", HALF_OR_SINGLE, |i| {
        let attrs = LocalNorm::of(i)?;
        Kernel::sync(move |ctx| local::backward(ctx, &attrs))
    }),
    KernelDef::of("BatchNormWithGlobalNormalization", &[("T", FLOATS)], |i| {
        let attrs = global::GlobalNorm::of(i)?;
        dispatch!(@arms wide_dtype(i.output_type(0)), W => {
            Kernel::sync(move |ctx| global::forward::<W>(ctx, attrs))
        }; Float f32, Double f64)
    }),
    KernelDef::of("BatchNormWithGlobalNormalizationGrad", &[("T", FLOATS)], |i| {
        let attrs = global::GlobalNorm::of(i)?;
        dispatch!(@arms wide_dtype(i.output_type(0)), W => {
            Kernel::sync(move |ctx| global::backward::<W>(ctx, attrs))
        }; Float f32, Double f64)
    }),
];

/// Checks the data's rank and returns the number of channels.
fn channels_of(attrs: &BatchNorm, x: &Shape) -> Result<usize> {
    match x.rank() {
        4 | 5 => {}
        _ => device::invalid!("input must be 4-dimensional or 5-dimensional{x}"),
    }
    Ok(x[attrs.channel_axis(x.rank())])
}

/// Checks that input `i` is a vector with one value per channel.
fn check_vector(ctx: &KernelContext<'_>, i: usize, name: &str, channels: usize, when: &str) -> Result<()> {
    let vector = ctx.input(i)?;
    if vector.shape().rank() != 1 {
        device::invalid!("{name} must be 1-dimensional{}", vector.shape());
    }
    if vector.num_elements() != channels {
        device::invalid!(
            "{when}{name} must have the same number of elements as the channels of x, got {} and {channels}",
            vector.num_elements()
        );
    }
    Ok(())
}

fn vector(values: &[f32]) -> Result<Tensor> {
    Ok(Tensor::from_slice(values, Shape::new(&[values.len()])?)?)
}

fn forward(ctx: &mut KernelContext<'_>, attrs: &BatchNorm) -> Result<()> {
    let x = ctx.input(0)?;
    let channels = channels_of(attrs, x.shape())?;
    check_vector(ctx, 1, "scale", channels, "")?;
    check_vector(ctx, 2, "offset", channels, "")?;
    let (when, given) = match (attrs.training, attrs.average) {
        (false, _) => ("When is_training=false, ", true),
        (true, factor) => ("When exponential_avg_factor != 1, ", factor != 1.0),
    };
    for (i, name) in [(3, "mean"), (4, "variance")] {
        if given {
            check_vector(ctx, i, name, channels, when)?;
        } else if ctx.input(i)?.shape().rank() != 1 {
            device::invalid!("{name} must be 1-dimensional{}", ctx.input(i)?.shape());
        }
    }
    let (scale, offset) = (ctx.input(1)?.values::<f32>()?, ctx.input(2)?.values::<f32>()?);
    let (old_mean, old_variance) = (ctx.input(3)?.values::<f32>()?, ctx.input(4)?.values::<f32>()?);
    let (shape, dtype) = (x.shape().clone(), x.dtype());
    let has_third_space = ctx.num_outputs() == 6;
    let out = if x.num_elements() == 0 {
        let (nan, zero) = (vec![f32::NAN; channels], vec![0.0; channels]);
        [Tensor::zeros(dtype, shape)?, vector(&nan)?, vector(&nan)?, vector(&zero)?, vector(&zero)?]
    } else {
        let x = load(x, attrs.format)?;
        let rows = x.num_elements() / channels;
        let values = x.values::<f32>()?;
        let (mean, variance, running) = if attrs.training {
            let share = 1.0 / rows as f64;
            let mean: Vec<f32> = sums(values, channels, |_, v, sum| add(sum, v));
            let mean: Vec<f32> = mean.iter().map(|&s| (f64::from(s) * share) as f32).collect();
            let variance = sums(values, channels, |_, v, sum| {
                for ((s, v), m) in sum.iter_mut().zip(v).zip(&mean) {
                    *s += (v - m) * (v - m);
                }
            });
            let variance: Vec<f32> = variance.iter().map(|&s| (f64::from(s) * share) as f32).collect();
            let unbiased = rows as f32 / (rows.max(2) - 1) as f32;
            let unbiased: Vec<f32> = variance.iter().map(|v| v * unbiased).collect();
            let averaged = |new: &[f32], old: &[f32]| -> Vec<f32> {
                if attrs.average == 1.0 {
                    return new.to_vec();
                }
                new.iter().zip(old).map(|(n, o)| (1.0 - attrs.average) * o + attrs.average * n).collect()
            };
            let running = [averaged(&mean, old_mean), averaged(&unbiased, old_variance)];
            (mean, variance, running)
        } else {
            let (mean, variance) = (old_mean.to_vec(), old_variance.to_vec());
            let running = [mean.clone(), variance.clone()];
            (mean, variance, running)
        };
        let factor = factors(&variance, scale, attrs);
        let mut y = Tensor::unspecified(DType::Float, x.shape().clone())?;
        each_row(y.values_mut()?, channels, |row, y| {
            let x = &values[row * channels..][..channels];
            for ((((y, x), m), f), o) in y.iter_mut().zip(x).zip(&mean).zip(&factor).zip(offset) {
                *y = (x - m) * f + o;
            }
        });
        let y = store(y, dtype, attrs.format)?;
        [y, vector(&running[0])?, vector(&running[1])?, vector(&mean)?, vector(&variance)?]
    };
    for (i, out) in out.into_iter().enumerate() {
        ctx.set_output(i, out);
    }
    if has_third_space {
        ctx.set_output(5, Tensor::zeros(DType::Float, Shape::scalar())?);
    }
    Ok(())
}

/// Returns `scale / sqrt(variance + epsilon)` of each channel, the factor of the channel's deviation from the mean.
fn factors(variance: &[f32], scale: &[f32], attrs: &BatchNorm) -> Vec<f32> {
    variance.iter().zip(scale).map(|(v, s)| s / (v + attrs.epsilon).sqrt()).collect()
}

fn add(sum: &mut [f32], v: &[f32]) {
    sum.iter_mut().zip(v).for_each(|(s, v)| *s += v);
}

/// A predicate on an activation's output: true if the activation's gradient is 1 there, false if it is 0.
type PassesGradient = fn(f32) -> bool;

fn passes_gradient(init: &KernelInit<'_>) -> Result<PassesGradient> {
    match &*init.attr::<String>("activation_mode")? {
        "Relu" => Ok(|y| y > 0.0),
        "Relu6" => Ok(|y| y > 0.0 && y < 6.0),
        other => Err(Error::unimplemented(format!("{}: '{other}'", init.node.op.name()))),
    }
}

/// Multiplies the incoming gradient by the gradient of the activation that follows the normalisation. The activation's
/// output is recomputed and rounded to `T`; `vectors` are mean, factor and offset of each channel.
fn block_gradient<T: Lane<Wide = f32>>(
    dy: &mut [f32],
    x: &[f32],
    vectors: [&[f32]; 3],
    passes_gradient: PassesGradient,
) {
    let [mean, factor, offset] = vectors;
    let channels = mean.len();
    each_row(dy, channels, |row, dy| {
        let x = &x[row * channels..][..channels];
        for ((((dy, x), m), f), o) in dy.iter_mut().zip(x).zip(mean).zip(factor).zip(offset) {
            let y = T::of_wide((x - m) * f + o).to_wide();
            // The gradient is multiplied by 0 or 1, not selected, so that NaN stays NaN where the activation blocks the
            // gradient.
            *dy *= f32::from(u8::from(passes_gradient(y)));
        }
    });
}

/// Computes the gradients of batch normalisation. If an activation follows the normalisation, its outputs are
/// recomputed to find where the gradient passes.
fn backward(
    ctx: &mut KernelContext<'_>,
    attrs: &BatchNorm,
    passes_gradient: Option<PassesGradient>,
) -> Result<()> {
    let (dy, x) = (ctx.input(0)?, ctx.input(1)?);
    let channels = channels_of(attrs, x.shape())?;
    if dy.shape() != x.shape() {
        device::invalid!(
            "x and y_backprop must have same shape, but x has shape {} and y_backprop has shape {}",
            x.shape(),
            dy.shape()
        );
    }
    check_vector(ctx, 2, "scale", channels, "")?;
    check_vector(ctx, 3, "saved mean", channels, "")?;
    check_vector(ctx, 4, "saved variance", channels, "")?;
    let (scale, mean, variance) =
        (ctx.input(2)?.values::<f32>()?, ctx.input(3)?.values::<f32>()?, ctx.input(4)?.values::<f32>()?);
    let (shape, dtype) = (x.shape().clone(), x.dtype());
    let (dx, d_scale, d_offset) = if x.num_elements() == 0 {
        (Tensor::zeros(dtype, shape)?, vec![0.0; channels], vec![0.0; channels])
    } else {
        let (mut dy, x) = (load(dy, attrs.format)?, load(x, attrs.format)?);
        let share = 1.0 / (x.num_elements() / channels) as f32;
        let mut dx = Tensor::unspecified(DType::Float, x.shape().clone())?;
        let x = x.values::<f32>()?;
        if let Some(passes_gradient) = passes_gradient {
            check_vector(ctx, 5, "offset", channels, "")?;
            let offset = ctx.input(5)?.values::<f32>()?;
            let factor = factors(variance, scale, attrs);
            let (dy, vectors) = (dy.values_mut::<f32>()?, [mean, &factor, offset]);
            match dtype {
                DType::Half => block_gradient::<f16>(dy, x, vectors, passes_gradient),
                DType::BFloat16 => block_gradient::<bf16>(dy, x, vectors, passes_gradient),
                _ => block_gradient::<f32>(dy, x, vectors, passes_gradient),
            }
        }
        let dy = dy.values::<f32>()?;
        let deviation: Vec<f32> = variance.iter().map(|v| 1.0 / (v + attrs.epsilon).sqrt()).collect();
        let d_offset = sums(dy, channels, |_, dy, sum| add(sum, dy));
        let moments = sums(dy, channels, |row, dy, sum| {
            let x = &x[row * channels..][..channels];
            for (((s, dy), x), m) in sum.iter_mut().zip(dy).zip(x).zip(mean) {
                *s += dy * (x - m);
            }
        });
        let factor: Vec<f32> = scale.iter().zip(&deviation).map(|(s, d)| s * d).collect();
        if attrs.training {
            // Per channel, the parts of the input's gradient that come from the mean and from the variance.
            let through_mean: Vec<f32> = d_offset.iter().map(|d| d * share).collect();
            let through_variance: Vec<f32> =
                moments.iter().zip(&deviation).map(|(m, d)| m * share * d * d).collect();
            each_row(dx.values_mut()?, channels, |row, dx| {
                let (dy, x) = (&dy[row * channels..][..channels], &x[row * channels..][..channels]);
                for c in 0..channels {
                    dx[c] = factor[c] * (dy[c] - through_mean[c] - (x[c] - mean[c]) * through_variance[c]);
                }
            });
        } else {
            each_row(dx.values_mut()?, channels, |row, dx| {
                let dy = &dy[row * channels..][..channels];
                dx.iter_mut().zip(dy).zip(&factor).for_each(|((dx, dy), f)| *dx = dy * f);
            });
        }
        let d_scale = moments.iter().zip(&deviation).map(|(m, d)| m * d).collect();
        (store(dx, dtype, attrs.format)?, d_scale, d_offset)
    };
    ctx.set_output(0, dx);
    ctx.set_output(1, vector(&d_scale)?);
    ctx.set_output(2, vector(&d_offset)?);
    for i in 3..5 {
        ctx.set_output(i, vector(&[])?);
    }
    Ok(())
}

#[cfg(test)]
mod tests;
