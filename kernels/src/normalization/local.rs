//! Local response normalisation (LRN): divides each channel of a pixel by a norm of the channels around it.

use super::columns::each_row;
use crate::numeric::widen::{from_wide, to_wide};
use crate::plan::normalization::{LocalNorm, channels, common_channels};
use device::Result;
use device::kernel::KernelContext;
use graph::{DType, Tensor};

impl LocalNorm {
    /// Computes `bias + alpha * (sum of squares of the neighbouring channels)` for each channel.
    fn norms(&self, x: &[f32], norms: &mut [f32]) {
        norms.fill(0.0);
        let radius = self.radius.min(x.len());
        for shift in 0..=radius {
            // Adds the squares of the channels at distance `shift` on both sides.
            let count = x.len() - shift;
            norms[..count].iter_mut().zip(&x[shift..]).for_each(|(n, v)| *n += v * v);
            if shift > 0 {
                norms[shift..].iter_mut().zip(x).for_each(|(n, v)| *n += v * v);
            }
        }
        norms.iter_mut().for_each(|n| *n = self.bias + self.alpha * *n);
    }

    /// Returns `norm` to the power of `-beta`.
    fn power(&self, norm: f32) -> f32 {
        match self.beta {
            1.0 => 1.0 / norm,
            0.5 => 1.0 / norm.sqrt(),
            0.75 => {
                let root = norm.sqrt();
                1.0 / (root * root.sqrt())
            }
            beta => norm.powf(-beta),
        }
    }
}

pub(super) fn forward(ctx: &mut KernelContext<'_>, attrs: &LocalNorm) -> Result<()> {
    let x = ctx.input(0)?;
    let (channels, dtype) = (channels(x.shape())?, x.dtype());
    let mut out = Tensor::zeros(DType::Float, x.shape().clone())?;
    if x.num_elements() > 0 {
        let x = to_wide(x)?;
        let x = x.values::<f32>()?;
        each_row(out.values_mut::<f32>()?, channels, |row, out| {
            let x = &x[row * channels..][..channels];
            attrs.norms(x, out);
            out.iter_mut().zip(x).for_each(|(o, x)| *o = x * attrs.power(*o));
        });
    }
    ctx.set_output(0, from_wide(out, dtype)?);
    Ok(())
}

pub(super) fn backward(ctx: &mut KernelContext<'_>, attrs: &LocalNorm) -> Result<()> {
    let (dy, x, y) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let (channels, dtype) = (common_channels(dy.shape(), x.shape(), y.shape())?, x.dtype());
    let mut dx = Tensor::zeros(DType::Float, x.shape().clone())?;
    if x.num_elements() > 0 {
        let (dy, x, y) = (to_wide(dy)?, to_wide(x)?, to_wide(y)?);
        let (dy, x, y) = (dy.values::<f32>()?, x.values::<f32>()?, y.values::<f32>()?);
        let factor = -2.0 * attrs.alpha * attrs.beta;
        each_row(dx.values_mut::<f32>()?, channels, |row, dx| {
            let part = |v| -> &[f32] { &<[f32]>::as_ref(v)[row * channels..][..channels] };
            let (dy, x, y) = (part(dy), part(x), part(y));
            let mut norms = vec![0.0; channels];
            attrs.norms(x, &mut norms);
            for c in 0..channels {
                let near = c.saturating_sub(attrs.radius)..channels.min(c.saturating_add(attrs.radius + 1));
                // Returns the contribution of the gradient of output channel `n` to the gradient of input channel `c`.
                let share = |n: usize| {
                    let through_norm = factor * x[c] * y[n] / norms[n];
                    let own = if n == c { attrs.power(norms[c]) } else { 0.0 };
                    (through_norm + own) * dy[n]
                };
                dx[c] = near.map(share).sum();
            }
        });
    }
    ctx.set_output(0, from_wide(dx, dtype)?);
    Ok(())
}
