//! Random crops and random bounding boxes, which equal TensorFlow's for the same seeds.

use crate::numeric::philox::Philox;
use crate::plan::random::seeds;
use crate::random::{WordStream, Words};
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Code, DType, Shape, Tensor};

/// A box in pixels; its end coordinates are exclusive.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Rectangle {
    x: [i32; 2],
    y: [i32; 2],
}

impl Rectangle {
    fn area(&self) -> f32 {
        let side = |[from, to]: [i32; 2]| i64::from(to.saturating_sub(from).max(0));
        (side(self.x) * side(self.y)) as f32
    }

    fn intersection(&self, other: &Rectangle) -> Rectangle {
        let common = |a: [i32; 2], b: [i32; 2]| [a[0].max(b[0]), a[1].min(b[1])];
        Rectangle { x: common(self.x, other.x), y: common(self.y, other.y) }
    }
}

/// The attributes of `SampleDistortedBoundingBox`, and its stream of random words.
pub(super) struct Sampler {
    /// The node's own stream; `None` if input 3 gives seeds.
    stream: Option<WordStream>,
    /// The fraction of at least one box that a sample must cover; `None` if input 2 gives it.
    covered: Option<f32>,
    /// The least and the greatest ratio of width to height of a sampled box.
    ratios: [f32; 2],
    /// The least and the greatest area of a sampled box, as fractions of the image's area.
    areas: [f32; 2],
    attempts: usize,
    /// Set if the whole image counts as the only box when no boxes are given.
    use_image_if_none: bool,
}

impl Sampler {
    /// Reads the attributes; `covered` is the attribute `min_object_covered` of the first version of the op.
    pub(super) fn of(init: &KernelInit<'_>, covered: Option<f32>) -> Result<Sampler> {
        let covered = covered.map(checked_cover).transpose()?;
        Ok(Sampler { stream: Some(WordStream::of(init)?), covered, ..Sampler::of_seeds(init)? })
    }

    /// Reads the attributes of the op whose inputs give the seeds.
    pub(super) fn of_seeds(init: &KernelInit<'_>) -> Result<Sampler> {
        let range = |name: &str, below_one: bool| -> Result<[f32; 2]> {
            let values: Vec<f32> = init.attr(name)?;
            let &[low, high] = values.as_slice() else {
                device::invalid!("{name} field must specify 2 dimensions");
            };
            if !(low > 0.0 && high > 0.0) {
                device::invalid!("{name} must be positive: {values:?}");
            }
            if below_one && !(low <= 1.0 && high <= 1.0) {
                device::invalid!("{name} must be less then or equal to 1.0: {values:?}");
            }
            Ok([low, high])
        };
        let attempts: i64 = init.attr("max_attempts")?;
        let attempts = usize::try_from(attempts).ok().filter(|&a| a > 0 && a <= i32::MAX as usize);
        Ok(Sampler {
            stream: None,
            covered: None,
            ratios: range("aspect_ratio_range", false)?,
            areas: range("area_range", true)?,
            attempts: attempts.ok_or_else(|| Error::invalid("Max attempts must be positive"))?,
            use_image_if_none: init.attr("use_image_if_no_bounding_boxes")?,
        })
    }

    /// Draws a sample and sets the outputs: its begin, its size, and its relative coordinates.
    pub(super) fn run(&self, ctx: &mut KernelContext<'_>) -> Result<()> {
        let size = ctx.input(0)?;
        if size.shape().dims() != [3] {
            device::invalid!("image_size must be a vector of 3 elements, got shape {}", size.shape());
        }
        let sizes = integers(size)?;
        let side = |v: i64| i32::try_from(v).ok().filter(|&v| v > 0);
        let (Some(height), Some(width)) = (side(sizes[0]), side(sizes[1])) else {
            device::invalid!("image height and width must be positive: {sizes:?}");
        };
        let covered = match self.covered {
            Some(covered) => covered,
            None => checked_cover(ctx.input(2)?.item()?)?,
        };
        let whole = Rectangle { x: [0, width], y: [0, height] };
        let mut boxes = boxes(ctx.input(1)?, width, height)?;
        if boxes.is_empty() {
            if !self.use_image_if_none {
                device::invalid!(
                    "No bounding boxes provided as input. One must enable use_image_if_no_bounding_boxes if you \
                     wish to not provide any bounding boxes."
                );
            }
            boxes.push(whole);
        }
        let mut words = match &self.stream {
            Some(stream) => stream.reserve(self.attempts.saturating_mul(4)),
            None => Words::of(Philox::scrambled(seeds(ctx.input(3)?)?)),
        };
        let sample = (0..self.attempts).find_map(|_| {
            let ratio = words.unit_f32() * (self.ratios[1] - self.ratios[0]) + self.ratios[0];
            let sample = self.crop(width, height, ratio, &mut words)?;
            covers(&sample, covered, &boxes).then_some(sample)
        });
        let Rectangle { x, y } = sample.unwrap_or(whole);
        let vector = |values: [i32; 3]| cast(size.dtype(), values);
        let (begin, extent) = (vector([y[0], x[0], 0])?, vector([y[1] - y[0], x[1] - x[0], -1])?);
        let (w, h) = (width as f32, height as f32);
        let relative = [y[0] as f32 / h, x[0] as f32 / w, y[1] as f32 / h, x[1] as f32 / w];
        ctx.set_output(0, begin);
        ctx.set_output(1, extent);
        ctx.set_output(2, Tensor::from_slice(&relative, Shape::new(&[1, 1, 4])?)?);
        Ok(())
    }

    /// Returns a random crop with the given ratio of width to height and an area within the bounds `areas`; `None` if
    /// no such crop fits into the image.
    fn crop(&self, width: i32, height: i32, ratio: f32, words: &mut Words) -> Option<Rectangle> {
        if self.areas[0] > self.areas[1] || ratio <= 0.0 {
            return None;
        }
        let [least, most] = self.areas.map(|a| a * width as f32 * height as f32);
        let rounded = |v: f32| v.round_ties_even() as i32;
        let width_of = |height: i32| rounded(height as f32 * ratio);
        let mut tall = rounded((least / ratio).sqrt());
        let mut tallest = rounded((most / ratio).sqrt());
        if width_of(tallest) > width {
            // The largest height for which the width, `ratio` times the height rounded, fits into the image.
            tallest = ((f64::from(width) + 0.5 - f64::from(0.000_000_1_f32)) / f64::from(ratio)) as i32;
            if width_of(tallest) > width {
                tallest -= 1;
            }
        }
        tallest = tallest.min(height);
        tall = tall.min(tallest);
        if tall < tallest {
            tall += uniform(words, (tallest - tall + 1) as u32) as i32;
        }
        let area = |tall: i32| (i64::from(width_of(tall)) * i64::from(tall)) as f32;
        // Rounding may have moved the area slightly out of bounds.
        if area(tall) < least {
            tall += 1;
        }
        if area(tall) > most {
            tall -= 1;
        }
        let wide = width_of(tall);
        let fits = wide > 0 && tall > 0 && wide <= width && tall <= height;
        if !fits || area(tall) < least || area(tall) > most {
            return None;
        }
        let mut start =
            |size: i32, of: i32| if of < size { uniform(words, (size - of) as u32) as i32 } else { 0 };
        let y = start(height, tall);
        let x = start(width, wide);
        Some(Rectangle { x: [x, x + wide], y: [y, y + tall] })
    }
}

fn checked_cover(covered: f32) -> Result<f32> {
    if covered < 0.0 || covered.is_nan() {
        device::invalid!("Min object covered must be non-negative: {covered}");
    }
    Ok(covered)
}

/// Returns a uniform number in `0..bound`; random words that would favour some numbers are redrawn.
fn uniform(words: &mut Words, bound: u32) -> u32 {
    if bound.is_power_of_two() {
        return words.next() & (bound - 1);
    }
    let rejected = u32::MAX % bound + 1;
    loop {
        let word = words.next();
        if word >= rejected {
            return word % bound;
        }
    }
}

/// Returns whether a crop covers at least the fraction `least` of one of the boxes. Boxes and crops smaller than
/// one pixel do not count.
fn covers(crop: &Rectangle, least: f32, boxes: &[Rectangle]) -> bool {
    const SMALLEST: f32 = 1.0;
    let large = boxes.iter().filter(|b| b.area() >= SMALLEST);
    crop.area() >= SMALLEST && large.into_iter().any(|b| crop.intersection(b).area() / b.area() >= least)
}

/// Returns the boxes in pixels, given their relative coordinates, which must be in [0, 1].
fn boxes(relative: &Tensor, width: i32, height: i32) -> Result<Vec<Rectangle>> {
    if relative.shape().rank() != 3 || relative.shape()[2] != 4 {
        device::invalid!("bounding boxes must have shape [batch, boxes, 4], got {}", relative.shape());
    }
    let (corners, _) = relative.values::<f32>()?.as_chunks::<4>();
    let mut out = Vec::with_capacity(corners.len());
    for &[top, left, bottom, right] in corners {
        if [top, left, bottom, right].iter().any(|v| !(0.0..=1.0).contains(v)) {
            device::invalid!(
                "All bounding box coordinates must be in [0.0, 1.0]: [{top}, {left}, {bottom}, {right}]"
            );
        }
        let pixels = |from: f32, to: f32, size: i32| [from, to].map(|v| (v * size as f32) as i32);
        out.push(Rectangle { x: pixels(left, right, width), y: pixels(top, bottom, height) });
    }
    Ok(out)
}

fn integers(sizes: &Tensor) -> Result<Vec<i64>> {
    Ok(match sizes.dtype() {
        DType::UInt8 => sizes.values::<u8>()?.iter().map(|&v| i64::from(v)).collect(),
        DType::Int8 => sizes.values::<i8>()?.iter().map(|&v| i64::from(v)).collect(),
        DType::Int16 => sizes.values::<i16>()?.iter().map(|&v| i64::from(v)).collect(),
        _ => sizes.to_i64s()?,
    })
}

fn cast(dtype: DType, values: [i32; 3]) -> Result<Tensor> {
    let shape = Shape::new(&[3])?;
    Ok(match dtype {
        DType::UInt8 => Tensor::from_slice(&values.map(|v| v as u8), shape)?,
        DType::Int8 => Tensor::from_slice(&values.map(|v| v as i8), shape)?,
        DType::Int16 => Tensor::from_slice(&values.map(|v| v as i16), shape)?,
        DType::Int64 => Tensor::from_slice(&values.map(i64::from), shape)?,
        _ => Tensor::from_slice(&values, shape)?,
    })
}

/// `RandomCrop`: outputs a crop of an image, of a given size and at a random position.
pub(super) fn random_crop(init: &KernelInit<'_>) -> Result<Kernel> {
    let stream = WordStream::of(init)?;
    Kernel::sync(move |ctx| {
        let (image, size) = (ctx.input(0)?, ctx.input(1)?);
        let &[height, width, channels] = image.shape().dims() else {
            device::invalid!("Input image must be 3-dimensional, got shape {}", image.shape());
        };
        let (&[rows, columns], &[_]) = (size.values::<i64>()?, size.shape().dims()) else {
            device::invalid!("size must be a vector of two elements, got shape {}", size.shape());
        };
        let within = |target: i64, image_side: usize, name: &str| {
            let Ok(size) = usize::try_from(target) else {
                device::invalid!("target_{name} must not be negative, is {target}");
            };
            if size > image_side {
                return Err(Error::new(
                    Code::FailedPrecondition,
                    format!("{name} must be >= target_{name}: {name} = {image_side}, target_{name} = {size}"),
                ));
            }
            Ok(size)
        };
        let (rows, columns) = (within(rows, height, "height")?, within(columns, width, "width")?);
        let mut words = stream.reserve(2);
        let mut offset = |size: usize, of: usize| match size - of {
            0 => 0,
            rest => words.below((rest + 1) as u32) as usize,
        };
        // The column is drawn before the row, like in TensorFlow, so that the same seeds give the same crops.
        let left = offset(width, columns);
        let top = offset(height, rows);
        let mut out = ctx.allocate(image.dtype(), Shape::new(&[rows, columns, channels])?)?;
        if out.num_elements() > 0 {
            let pixel = channels * image.dtype().size().unwrap_or(1);
            let from = image.bytes()?;
            for (i, line) in out.bytes_mut()?.chunks_exact_mut(columns * pixel).enumerate() {
                line.copy_from_slice(&from[((top + i) * width + left) * pixel..][..columns * pixel]);
            }
        }
        ctx.set_output(0, out);
        Ok(())
    })
}
