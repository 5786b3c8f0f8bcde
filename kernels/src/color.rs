//! Contrast, hue and saturation of images, and conversion between RGB and HSV.

use crate::numeric::dispatch::{FLOATS, dispatch};
use crate::numeric::scalar::Real;
use crate::numeric::threads::for_rows;
use crate::numeric::widen::{Lane as _, from_wide, to_wide, wide_dtype};
use crate::plan::color::{check_colours, check_images};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelDef};
use graph::{Code, DType, Tensor};
use num_traits::AsPrimitive;

const ADJUSTED: &[(&str, &[DType])] = &[("T", &[DType::Float, DType::Half])];

/// Evaluates an expression with `$W` as the type that elements of a floating-point dtype are computed in.
macro_rules! wide {
    ($dtype:expr, $W:ident => $body:expr) => {
        dispatch!(@arms wide_dtype($dtype), $W => $body; Float f32, Double f64)
    };
}

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("AdjustContrastv2", ADJUSTED, |_| Kernel::sync(adjust_contrast)),
    KernelDef::of(
        "AdjustContrast",
        &[("T", &[DType::UInt8, DType::Int8, DType::Int16, DType::Int32, DType::Float, DType::Double])],
        |_| Kernel::sync(adjust_contrast_within),
    ),
    KernelDef::of("AdjustHue", ADJUSTED, |_| {
        Kernel::sync(|ctx| {
            adjust(ctx, "delta", |delta, rgb| {
                let [h, s, v] = to_hsv(rgb);
                let turned = h + delta;
                to_rgb([turned - turned.floor(), s, v])
            })
        })
    }),
    KernelDef::of("AdjustSaturation", ADJUSTED, |_| {
        Kernel::sync(|ctx| {
            adjust(ctx, "scale", |scale, rgb| {
                let [h, s, v] = to_hsv(rgb);
                to_rgb([h, (s * scale).clamp(0.0, 1.0), v])
            })
        })
    }),
    KernelDef::of(
        "RGBToHSV",
        &[("T", FLOATS)],
        |i| wide!(i.output_type(0), W => Kernel::sync(|ctx| convert::<W>(ctx, to_hsv))),
    ),
    KernelDef::of(
        "HSVToRGB",
        &[("T", FLOATS)],
        |i| wide!(i.output_type(0), W => Kernel::sync(|ctx| convert::<W>(ctx, to_rgb))),
    ),
];

/// Converts red, green and blue to hue, saturation and value; the hue is in [0, 1).
fn to_hsv<W: Real>([r, g, b]: [W; 3]) -> [W; 3] {
    let value = r.max(g).max(b);
    let range = value - r.min(g).min(b);
    let zero = W::zero();
    let saturation = if value > zero { range / value } else { zero };
    if range <= zero {
        return [zero, saturation, value];
    }
    let sixth = W::one() / (W::of(6.0) * range);
    let hue = if r == value {
        sixth * (g - b)
    } else if g == value {
        sixth * (b - r) + W::of(2.0 / 6.0)
    } else {
        sixth * (r - g) + W::of(4.0 / 6.0)
    };
    [if hue < zero { hue + W::one() } else { hue }, saturation, value]
}

/// Converts hue, saturation and value to red, green and blue.
fn to_rgb<W: Real>([h, s, v]: [W; 3]) -> [W; 3] {
    let (zero, one, two) = (W::zero(), W::one(), W::of(2.0));
    let sixths = h * W::of(6.0);
    // The comparisons are false for NaN, so NaN stays NaN.
    let bound = |x: W| {
        if x < zero {
            zero
        } else if x > one {
            one
        } else {
            x
        }
    };
    let away = |from: f64| (sixths - W::of(from)).abs();
    let pure = [bound(away(3.0) - one), bound(two - away(2.0)), bound(two - away(4.0))];
    pure.map(|p| (one - s + s * p) * v)
}

/// Sets output 0 to input 0 with `pixel` applied to each pixel.
fn convert<W: Real>(ctx: &mut KernelContext<'_>, pixel: fn([W; 3]) -> [W; 3]) -> Result<()> {
    let x = ctx.input(0)?;
    check_colours(x.shape(), Code::FailedPrecondition)?;
    let dtype = x.dtype();
    let out = map_pixels::<W>(&to_wide(x)?, pixel)?;
    ctx.set_output(0, from_wide(out, dtype)?);
    Ok(())
}

/// Returns `x` with `pixel` applied to each pixel.
fn map_pixels<W: Real>(x: &Tensor, pixel: impl Fn([W; 3]) -> [W; 3] + Sync) -> Result<Tensor> {
    let mut out = Tensor::unspecified(W::DTYPE, x.shape().clone())?;
    let values = x.values::<W>()?;
    for_rows(out.values_mut::<W>()?, 3, |first, out| {
        let (pixels, _) = out.as_chunks_mut::<3>();
        let (from, _) = values[first * 3..].as_chunks::<3>();
        pixels.iter_mut().zip(from).for_each(|(o, &x)| *o = pixel(x));
    });
    Ok(out)
}

/// Sets output 0 to input 0 with `pixel` applied to each pixel and the scalar in input 1; `name` is the scalar's name
/// in errors.
fn adjust(
    ctx: &mut KernelContext<'_>,
    name: &str,
    pixel: impl Fn(f32, [f32; 3]) -> [f32; 3] + Sync,
) -> Result<()> {
    let x = ctx.input(0)?;
    check_images(x.shape())?;
    let amount: f32 = ctx.scalar(1, name)?.item()?;
    check_colours(x.shape(), Code::InvalidArgument)?;
    let dtype = x.dtype();
    let out = map_pixels::<f32>(&to_wide(x)?, |p| pixel(amount, p))?;
    ctx.set_output(0, from_wide(out, dtype)?);
    Ok(())
}

/// `AdjustContrast`: adjusts the contrast of images of any numbers, and clips the results.
fn adjust_contrast_within(ctx: &mut KernelContext<'_>) -> Result<()> {
    let x = ctx.input(0)?;
    check_images(x.shape())?;
    let factor: f32 = ctx.scalar(1, "contrast_factor")?.item()?;
    let (low, high): (f32, f32) = (ctx.scalar(2, "min_value")?.item()?, ctx.scalar(3, "max_value")?.item()?);
    let values: Vec<f32> = dispatch!(real, x.dtype(), T => {
        Ok::<_, device::Error>(x.values::<T>()?.iter().map(|v| v.to_wide().as_()).collect())
    })?;
    let mut out = with_contrast(&Tensor::from_slice(&values, x.shape().clone())?, factor)?;
    for value in out.values_mut::<f32>()? {
        // A NaN stays, and the lower bound is applied last, like in TensorFlow.
        if *value > high {
            *value = high;
        }
        if *value < low {
            *value = low;
        }
    }
    ctx.set_output(0, out);
    Ok(())
}

/// `AdjustContrastv2`: multiplies each channel's distance from its mean in the image.
fn adjust_contrast(ctx: &mut KernelContext<'_>) -> Result<()> {
    let x = ctx.input(0)?;
    check_images(x.shape())?;
    let factor: f32 = ctx.scalar(1, "contrast_factor")?.item()?;
    let out = with_contrast(&to_wide(x)?, factor)?;
    let dtype = x.dtype();
    ctx.set_output(0, from_wide(out, dtype)?);
    Ok(())
}

/// Returns images with the distance of each channel from its mean in the image multiplied by `factor`.
fn with_contrast(x: &Tensor, factor: f32) -> Result<Tensor> {
    let mut out = Tensor::unspecified(DType::Float, x.shape().clone())?;
    if x.num_elements() > 0 {
        let rank = x.shape().rank();
        let channels = x.shape()[rank - 1];
        let image: usize = x.shape()[rank - 3..].iter().product();
        let values = x.values::<f32>()?;
        for_rows(out.values_mut::<f32>()?, image, |first, images| {
            let from = values[first * image..].chunks_exact(image);
            for (out, from) in images.chunks_exact_mut(image).zip(from) {
                let mut means = vec![0f64; channels];
                for pixel in from.chunks_exact(channels) {
                    means.iter_mut().zip(pixel).for_each(|(m, v)| *m += f64::from(*v));
                }
                // Each channel's sum is rounded to single precision before it becomes a mean, like in TensorFlow.
                let share = channels as f32 / image as f32;
                let means: Vec<f32> = means.iter().map(|m| *m as f32 * share).collect();
                for (out, pixel) in out.chunks_exact_mut(channels).zip(from.chunks_exact(channels)) {
                    for ((o, v), m) in out.iter_mut().zip(pixel).zip(&means) {
                        *o = (v - m) * factor + m;
                    }
                }
            }
        });
    }
    Ok(out)
}
