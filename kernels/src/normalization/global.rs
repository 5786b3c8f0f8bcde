//! BatchNormWithGlobalNormalization: normalisation by a given mean and variance of each channel, and its gradient.

use super::columns::{each_row, sums};
use crate::numeric::scalar::Real;
use crate::numeric::widen::{from_wide, to_wide};
use device::Result;
use device::kernel::{KernelContext, KernelInit};
use graph::Tensor;
use num_traits::AsPrimitive;

/// The attributes of BatchNormWithGlobalNormalization.
#[derive(Clone, Copy)]
pub(super) struct GlobalNorm {
    epsilon: f32,
    scaled: bool,
}

impl GlobalNorm {
    pub(super) fn of(init: &KernelInit<'_>) -> Result<GlobalNorm> {
        Ok(GlobalNorm {
            epsilon: init.attr("variance_epsilon")?,
            scaled: init.attr("scale_after_normalization")?,
        })
    }
}

/// Returns the number of channels, and checks that each input in `vectors` has one value per channel.
fn channels(ctx: &KernelContext<'_>, vectors: &[(usize, &str)]) -> Result<usize> {
    let x = ctx.input(0)?;
    let &[_, _, _, channels] = x.shape().dims() else {
        device::invalid!("input must be 4-dimensional{}", x.shape());
    };
    for &(i, name) in vectors {
        let vector = ctx.input(i)?;
        if vector.shape().dims() != [channels] {
            device::invalid!("{name} must be 1-dimensional with {channels} elements, got {}", vector.shape());
        }
    }
    Ok(channels)
}

pub(super) fn forward<W: Real>(ctx: &mut KernelContext<'_>, attrs: GlobalNorm) -> Result<()> {
    let channels = channels(ctx, &[(1, "mean"), (2, "var"), (3, "beta"), (4, "gamma")])?;
    let dtype = ctx.input(0)?.dtype();
    let wide = |i: usize| to_wide(ctx.input(i)?);
    let (x, mean, variance, beta, gamma) = (wide(0)?, wide(1)?, wide(2)?, wide(3)?, wide(4)?);
    let (x, mean, beta, gamma) =
        (x.values::<W>()?, mean.values::<W>()?, beta.values::<W>()?, gamma.values::<W>()?);
    let factor = factors::<W>(attrs, variance.values()?, gamma);
    let mut out = Tensor::zeros(W::DTYPE, ctx.input(0)?.shape().clone())?;
    if channels > 0 {
        each_row(out.values_mut::<W>()?, channels, |row, out| {
            let x = &x[row * channels..][..channels];
            for c in 0..channels {
                out[c] = (x[c] - mean[c]) * factor[c] + beta[c];
            }
        });
    }
    ctx.set_output(0, from_wide(out, dtype)?);
    Ok(())
}

/// Returns the factor by which each channel's deviation from the mean is multiplied.
fn factors<W: Real>(attrs: GlobalNorm, variance: &[W], gamma: &[W]) -> Vec<W> {
    let epsilon = W::of(f64::from(attrs.epsilon));
    let factor = |(&v, &g): (&W, &W)| {
        let deviation = (v + epsilon).sqrt();
        if attrs.scaled { g / deviation } else { W::one() / deviation }
    };
    variance.iter().zip(gamma).map(factor).collect()
}

pub(super) fn backward<W: Real + AsPrimitive<f64>>(
    ctx: &mut KernelContext<'_>,
    attrs: GlobalNorm,
) -> Result<()>
where
    f64: AsPrimitive<W>,
{
    let channels = channels(ctx, &[(1, "mean"), (2, "var"), (3, "gamma")])?;
    let shape = ctx.input(0)?.shape().clone();
    if *ctx.input(4)?.shape() != shape {
        device::invalid!(
            "input and backprop must have the same shape, got {shape} and {}",
            ctx.input(4)?.shape()
        );
    }
    let dtype = ctx.input(0)?.dtype();
    let wide = |i: usize| to_wide(ctx.input(i)?);
    let (x, mean, variance, gamma, dy) = (wide(0)?, wide(1)?, wide(2)?, wide(3)?, wide(4)?);
    let (x, mean, dy) = (x.values::<W>()?, mean.values::<W>()?, dy.values::<W>()?);
    let (variance, gamma) = (variance.values::<W>()?, gamma.values::<W>()?);
    let factor = factors::<W>(attrs, variance, gamma);
    let mut dx = Tensor::zeros(W::DTYPE, shape)?;
    let mut of_channels: [Vec<W>; 4] = std::array::from_fn(|_| vec![W::zero(); channels]);
    if channels > 0 {
        let total = sums(dy, channels, |_, dy, sum| {
            sum.iter_mut().zip(dy).for_each(|(s, &d)| *s += d);
        });
        let moments = sums(dy, channels, |row, dy, sum| {
            let x = &x[row * channels..][..channels];
            for c in 0..channels {
                sum[c] += dy[c] * (x[c] - mean[c]);
            }
        });
        each_row(dx.values_mut::<W>()?, channels, |row, dx| {
            let dy = &dy[row * channels..][..channels];
            dx.iter_mut().zip(dy).zip(&factor).for_each(|((dx, &dy), &f)| *dx = dy * f);
        });
        let epsilon = W::of(f64::from(attrs.epsilon));
        let half = W::of(-0.5);
        for c in 0..channels {
            let [dm, dv, db, dg] = &mut of_channels;
            dm[c] = -(total[c] * factor[c]);
            dv[c] = moments[c] * half * factor[c] / (variance[c] + epsilon);
            db[c] = total[c];
            dg[c] = if attrs.scaled { moments[c] / (variance[c] + epsilon).sqrt() } else { W::zero() };
        }
    }
    ctx.set_output(0, from_wide(dx, dtype)?);
    for (i, values) in of_channels.iter().enumerate() {
        let vector = Tensor::from_slice(values, graph::Shape::new(&[channels])?)?;
        ctx.set_output(i + 1, from_wide(vector, dtype)?);
    }
    Ok(())
}
