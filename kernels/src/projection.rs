//! Kernels that resample images: projective transformations, and glimpses around points.

use crate::numeric::philox::{Philox, PhiloxWords, entropy};
use crate::numeric::threads::{Cost, chunk_size, for_chunks};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::DType::{self, BFloat16, Double, Float, Half, Int32, Int64, UInt8};
use graph::{Element, Shape, Tensor};
use half::{bf16, f16};

const PIXELS: &[DType] = &[UInt8, Int32, Int64, Half, BFloat16, Float, Double];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("ImageProjectiveTransformV2", &[("dtype", PIXELS)], transform),
    KernelDef::of("ImageProjectiveTransformV3", &[("dtype", PIXELS)], transform),
    KernelDef::of("ExtractGlimpse", &[], |init| glimpse(init, false)),
    KernelDef::of("ExtractGlimpseV2", &[], |init| glimpse(init, true)),
];

/// A pixel's value in one channel, which is interpolated in single precision.
trait Pixel: Element {
    fn single(self) -> f32;
    fn of_single(value: f32) -> Self;
}

macro_rules! pixels {
    ($($t:ty),*) => { $(impl Pixel for $t {
        fn single(self) -> f32 { self as f32 }
        fn of_single(value: f32) -> $t { value as $t }
    })* };
}
pixels!(u8, i32, i64, f32, f64);

macro_rules! short_pixels {
    ($($t:ty),*) => { $(impl Pixel for $t {
        fn single(self) -> f32 { self.to_f32() }
        fn of_single(value: f32) -> $t { <$t>::from_f32(value) }
    })* };
}
short_pixels!(f16, bf16);

/// The source of the values of pixels outside of an image.
#[derive(Clone, Copy, Debug)]
enum FillMode {
    Constant,
    Reflect,
    Wrap,
    Nearest,
}

impl FillMode {
    /// Returns the coordinate inside of an image of `length` pixels for a coordinate that may be outside.
    fn inside(self, at: f32, length: usize) -> f32 {
        let (length, last) = (length as f32, length as f32 - 1.0);
        let moved = match self {
            FillMode::Constant => return at,
            FillMode::Nearest => at,
            _ if length <= 1.0 => 0.0,
            FillMode::Reflect if at < 0.0 => {
                let period = 2.0 * length;
                let at = if at < period { period * (-at / period).trunc() + at } else { at };
                if at < -length { at + period } else { -at - 1.0 }
            }
            FillMode::Reflect if at > last => {
                let period = 2.0 * length;
                let at = at - period * (at / period).trunc();
                if at >= length { period - at - 1.0 } else { at }
            }
            FillMode::Wrap if at < 0.0 => at + length * ((-at / last).trunc() + 1.0),
            FillMode::Wrap if at > last => at - length * (at / last).trunc(),
            _ => at,
        };
        moved.clamp(0.0, last.max(0.0))
    }
}

/// The attributes of a node that resamples images.
#[derive(Clone, Copy, Debug)]
struct Sampling {
    is_bilinear: bool,
    fill_mode: FillMode,
}

/// One image: its sizes `[rows, columns, channels]` and its pixels.
struct Image<'a, T> {
    sizes: [usize; 3],
    pixels: &'a [T],
    fill: f32,
}

impl<T: Pixel> Image<'_, T> {
    /// Returns the value of a pixel, or the fill value if it is outside of the image.
    fn pixel(&self, [row, column]: [f32; 2], channel: usize) -> f32 {
        let [rows, columns, channels] = self.sizes;
        let is_inside = (0.0..rows as f32).contains(&row) && (0.0..columns as f32).contains(&column);
        if !is_inside {
            return self.fill;
        }
        // The sizes may have been rounded up by the conversion to `f32`, so `row` or `column` may be out of range.
        let (row, column) = ((row as usize).min(rows - 1), (column as usize).min(columns - 1));
        self.pixels[(row * columns + column) * channels + channel].single()
    }

    fn sample(&self, [row, column]: [f32; 2], channel: usize, sampling: Sampling) -> f32 {
        let row = sampling.fill_mode.inside(row, self.sizes[0]);
        let column = sampling.fill_mode.inside(column, self.sizes[1]);
        if !sampling.is_bilinear {
            return self.pixel([row.round(), column.round()], channel);
        }
        let (top, left) = (row.floor(), column.floor());
        let (bottom, right) = (top + 1.0, left + 1.0);
        let along = |r: f32| {
            (right - column) * self.pixel([r, left], channel)
                + (column - left) * self.pixel([r, right], channel)
        };
        (bottom - row) * along(top) + (row - top) * along(bottom)
    }
}

/// Makes the kernel that sets each pixel of the result to the pixel of the image to which a projective transformation
/// maps its position.
fn transform(init: &KernelInit<'_>) -> Result<Kernel> {
    let interpolation = init.attr::<String>("interpolation")?.to_ascii_uppercase();
    let is_bilinear = match &*interpolation {
        "NEAREST" => false,
        "BILINEAR" => true,
        other => invalid!("the interpolation must be NEAREST or BILINEAR, not {other}"),
    };
    let fill_mode = match &*init.attr::<String>("fill_mode")?.to_ascii_uppercase() {
        "CONSTANT" => FillMode::Constant,
        "REFLECT" => FillMode::Reflect,
        "WRAP" => FillMode::Wrap,
        "NEAREST" => FillMode::Nearest,
        other => invalid!("the fill mode must be CONSTANT, REFLECT, WRAP or NEAREST, not {other}"),
    };
    let sampling = Sampling { is_bilinear, fill_mode };
    type Run = fn(&mut KernelContext<'_>, Sampling) -> Result<()>;
    let run: Run = match init.input_type(0) {
        UInt8 => transformed::<u8>,
        Int32 => transformed::<i32>,
        Int64 => transformed::<i64>,
        Half => transformed::<f16>,
        BFloat16 => transformed::<bf16>,
        Float => transformed::<f32>,
        _ => transformed::<f64>,
    };
    Kernel::sync(move |ctx| run(ctx, sampling))
}

fn transformed<T: Pixel>(ctx: &mut KernelContext<'_>, sampling: Sampling) -> Result<()> {
    let (images, transforms, sizes) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let &[count, rows, columns, channels] = images.shape().dims() else {
        invalid!("Input images must have rank 4");
    };
    match transforms.shape().dims() {
        &[n, 8] if n == 1 || n == count => {}
        _ => invalid!("Input transform should be num_images x 8 or 1 x 8"),
    }
    if sizes.shape().rank() != 1 {
        invalid!("output shape must be 1-dimensional{}", sizes.shape());
    }
    let wanted = sizes.to_i64s()?;
    let [out_rows, out_columns] = wanted[..] else {
        invalid!("output shape must have two elements{}", sizes.shape());
    };
    if out_rows <= 0 || out_columns <= 0 {
        invalid!("output dimensions must be positive");
    }
    let fill = if ctx.num_inputs() > 3 {
        let fill = ctx.input(3)?;
        if fill.shape().rank() != 0 {
            invalid!("fill_value must be a scalar{}", fill.shape());
        }
        // The fill value is rounded to the pixels' type.
        T::of_single(fill.item::<f32>()?).single()
    } else {
        0.0
    };
    let (out_rows, out_columns) = (out_rows as usize, out_columns as usize);
    let mut out = Tensor::unspecified(T::DTYPE, Shape::new(&[count, out_rows, out_columns, channels])?)?;
    let (pixels, matrices) = (images.values::<T>()?, transforms.values::<f32>()?);
    let (line, image_size) = (out_columns * channels, rows * columns * channels);
    if line > 0 {
        let chunk = chunk_size(out.num_elements(), Cost::Expensive).next_multiple_of(line);
        for_chunks(out.values_mut::<T>()?, chunk, |start, part| {
            for (i, out) in part.chunks_exact_mut(line).enumerate() {
                let row = start / line + i;
                let (n, y) = (row / out_rows, (row % out_rows) as f32);
                let t = &matrices[if matrices.len() == 8 { 0 } else { n * 8 }..][..8];
                let pixels = &pixels[n * image_size..(n + 1) * image_size];
                let image = Image { sizes: [rows, columns, channels], pixels, fill };
                for (x, out) in out.chunks_exact_mut(channels).enumerate() {
                    let x = x as f32;
                    let scale = t[6] * x + t[7] * y + 1.0;
                    let at = [(t[3] * x + t[4] * y + t[5]) / scale, (t[0] * x + t[1] * y + t[2]) / scale];
                    for (channel, out) in out.iter_mut().enumerate() {
                        let value = if scale == 0.0 { fill } else { image.sample(at, channel, sampling) };
                        *out = T::of_single(value);
                    }
                }
            }
        });
    }
    ctx.set_output(0, out);
    Ok(())
}

/// The values of a glimpse's pixels that are outside of the image.
#[derive(Clone, Copy, Debug)]
enum Noise {
    /// Uniform numbers between the least and the greatest value of the images.
    Uniform,
    /// Normal numbers with the mean and deviation of the images, limited to the range of their values.
    Gaussian,
    Zero,
}

/// Makes the kernel that cuts a window out of each image. In the first version of the op an offset is the centre of the
/// window. In the second (`is_second`) an offset in pixels is the window's first row or column.
fn glimpse(init: &KernelInit<'_>, is_second: bool) -> Result<Kernel> {
    let (is_centered, is_normalized) = (init.attr::<bool>("centered")?, init.attr::<bool>("normalized")?);
    let (is_uniform, noise) = (init.attr::<bool>("uniform_noise")?, init.attr::<String>("noise")?);
    if is_uniform && noise != "uniform" {
        invalid!("The uniform_noise and noise could not be specified at the same time");
    }
    let noise = match &*noise {
        "uniform" => Noise::Uniform,
        "gaussian" => Noise::Gaussian,
        "zero" => Noise::Zero,
        other => invalid!("The noise could only be uniform, gaussian, or zero, got{other}"),
    };
    // Returns the first row or column of a window of `window` pixels in an image of `length` pixels.
    let start = move |offset: f32, length: usize, window: usize| -> i64 {
        let (length, window) = (length as f32, window as f32);
        let mut at = if is_normalized { offset * length } else { offset };
        if is_centered && (is_normalized || !is_second) {
            at /= 2.0;
        }
        if is_centered {
            at += length / 2.0;
        }
        if !is_second || is_centered && is_normalized {
            at -= window / 2.0;
        }
        at as i64
    };
    Kernel::sync(move |ctx| {
        let (images, size, offsets) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        let &[count, rows, columns, channels] = images.shape().dims() else {
            invalid!("input must be 4-dimensional (batch_size, height, width, depth){}", images.shape());
        };
        if size.shape().dims() != [2] {
            invalid!("input must be a vector of size 2 (height, width){}", size.shape());
        }
        let size = size.to_i64s()?;
        let offsets_shape = offsets.shape();
        if offsets_shape.rank() != 2 {
            invalid!("input must be a matrix{offsets_shape}");
        }
        if offsets_shape[0] != count {
            invalid!("first dimension should be batch{offsets_shape}");
        }
        if offsets_shape[1] != 2 {
            invalid!("second dimension should be of size 2 (y,x){offsets_shape}");
        }
        let shape = Shape::from_i64(&[count as i64, size[0], size[1], channels as i64])?;
        let (height, width) = (shape[1], shape[2]);
        let mut out = Tensor::zeros(Float, shape)?;
        let (pixels, offsets) = (images.values::<f32>()?, offsets.values::<f32>()?);
        let mut outside = NoiseSource::new(noise, pixels);
        let cells = out.values_mut::<f32>()?;
        for (at, cell) in cells.chunks_exact_mut(channels.max(1)).enumerate() {
            let (n, y, x) = (at / (height * width), at / width % height, at % width);
            let row = start(offsets[2 * n], rows, height).saturating_add(y as i64);
            let column = start(offsets[2 * n + 1], columns, width).saturating_add(x as i64);
            match (usize::try_from(row), usize::try_from(column)) {
                (Ok(row), Ok(column)) if row < rows && column < columns => {
                    let from = ((n * rows + row) * columns + column) * channels;
                    cell.copy_from_slice(&pixels[from..from + channels]);
                }
                _ => cell.fill_with(|| outside.draw()),
            }
        }
        ctx.set_output(0, out);
        Ok(())
    })
}

/// A source of random pixels with the distribution of the pixels of images.
struct NoiseSource {
    noise: Noise,
    words: PhiloxWords,
    least: f32,
    greatest: f32,
    mean: f32,
    deviation: f32,
}

impl NoiseSource {
    fn new(noise: Noise, pixels: &[f32]) -> NoiseSource {
        let count = pixels.len().max(1) as f32;
        let (least, greatest, mean, deviation) = match noise {
            Noise::Zero => (0.0, 0.0, 0.0, 0.0),
            _ => {
                let mean = pixels.iter().sum::<f32>() / count;
                let variance = pixels.iter().map(|p| (p - mean) * (p - mean)).sum::<f32>() / count;
                let least = pixels.iter().copied().fold(f32::INFINITY, f32::min);
                let greatest = pixels.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                (least, greatest, mean, variance.sqrt())
            }
        };
        NoiseSource {
            noise,
            words: PhiloxWords::new(Philox::new(entropy(), 0)),
            least,
            greatest,
            mean,
            deviation,
        }
    }

    /// Returns a number from 0 to below 1.
    fn uniform(&mut self) -> f32 {
        (self.words.next() >> 8) as f32 / (1u32 << 24) as f32
    }

    fn draw(&mut self) -> f32 {
        match self.noise {
            Noise::Zero => 0.0,
            Noise::Uniform => self.least + (self.greatest - self.least) * self.uniform(),
            Noise::Gaussian => {
                let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
                let normal = radius * (std::f32::consts::TAU * self.uniform()).cos();
                (self.mean + self.deviation * normal).max(self.least).min(self.greatest)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_op;
    use graph::AttrValue;

    #[test]
    fn pixels_outside_of_a_glimpse_are_within_the_range_of_the_image() -> Result<()> {
        for noise in ["uniform", "gaussian"] {
            let image = Tensor::from_slice(&[1f32, 2.0, 3.0, 5.0], Shape::new(&[1, 2, 2, 1])?)?;
            let size = Tensor::vector(&[40i32, 40])?;
            let offsets = Tensor::from_slice(&[0f32, 0.0], Shape::new(&[1, 2])?)?;
            let attrs = [("uniform_noise", AttrValue::from(false)), ("noise", AttrValue::from(noise))];
            let out = run_op("ExtractGlimpse", &[image, size, offsets], &attrs)?;
            let values = out[0].values::<f32>()?;
            assert!(values.iter().all(|v| (1.0..=5.0).contains(v)), "{noise}");
            let mean = values.iter().sum::<f32>() / values.len() as f32;
            assert!((2.5..3.5).contains(&mean), "{noise}: {mean}");
        }
        Ok(())
    }
}
