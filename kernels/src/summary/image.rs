//! Encodes images of a batch as PNG.

use checkpoint::proto::Writer;
use device::{Error, Result};
use graph::{DType, Tensor};
use half::f16;

/// An encoded image, with the fields of `Summary.Image`.
pub(super) struct Image {
    height: usize,
    width: usize,
    depth: usize,
    png: Vec<u8>,
}

impl Image {
    pub(super) fn write(&self, proto: &mut Writer) {
        proto.int(1, self.height as i64).int(2, self.width as i64).int(3, self.depth as i64);
        proto.string(4, &self.png);
    }
}

/// Encodes the first `max_images` images of a batch, which are height by width by 1 (grey), 3 (red, green, blue) or 4
/// (with opacity).
pub(super) fn encode_all(batch: &Tensor, max_images: i64, bad_color: &[u8]) -> Result<Vec<Image>> {
    let &[count, height, width, depth @ (1 | 3 | 4)] = batch.shape().dims() else {
        device::invalid!("Tensor must be 4-D with last dim 1, 3, or 4, not {}", batch.shape());
    };
    let count = count.min(usize::try_from(max_images).unwrap_or(0));
    if count == 0 {
        return Ok(Vec::new());
    }
    if height == 0 || width == 0 {
        let [a, b, c, d] = [batch.shape()[0], height, width, depth];
        device::invalid!("input tensor must have non-zero dims. Found: [{a}, {b}, {c}, {d}].");
    }
    if depth > bad_color.len() {
        device::invalid!(
            "expected depth <= bad_color.size, got depth = {depth}, bad_color.size = {}",
            bad_color.len()
        );
    }
    let bad = &bad_color[..depth];
    let size = height * width * depth;
    let pixels = |i: usize| -> Result<Vec<u8>> {
        let range = i * size..(i + 1) * size;
        Ok(match batch.dtype() {
            DType::UInt8 => batch.values::<u8>()?[range].to_vec(),
            DType::Half => normalized(&batch.values::<f16>()?[range], bad),
            DType::Double => normalized(&batch.values::<f64>()?[range], bad),
            _ => normalized(&batch.values::<f32>()?[range], bad),
        })
    };
    (0..count)
        .map(|i| Ok(Image { height, width, depth, png: png(&pixels(i)?, height, width, depth)? }))
        .collect()
}

/// The type of an image's elements, in which they are scaled to bytes.
trait Sample: Copy {
    fn of(value: f32) -> Self;
    fn to_f32(self) -> f32;
    /// Returns `self * scale + offset`, truncated to a byte.
    fn byte(self, scale: Self, offset: Self) -> u8;
}

impl Sample for f32 {
    fn of(value: f32) -> f32 {
        value
    }

    fn to_f32(self) -> f32 {
        self
    }

    fn byte(self, scale: f32, offset: f32) -> u8 {
        (self * scale + offset) as u8
    }
}

impl Sample for f64 {
    fn of(value: f32) -> f64 {
        value.into()
    }

    fn to_f32(self) -> f32 {
        self as f32
    }

    fn byte(self, scale: f64, offset: f64) -> u8 {
        (self * scale + offset) as u8
    }
}

impl Sample for f16 {
    fn of(value: f32) -> f16 {
        f16::from_f32(value)
    }

    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }

    fn byte(self, scale: f16, offset: f16) -> u8 {
        (self * scale + offset).to_f32() as u8
    }
}

/// Scales values to the range 0 to 255, with zero at 128 if some values are negative; pixels that are not finite get
/// the color `bad`.
fn normalized<T: Sample>(values: &[T], bad: &[u8]) -> Vec<u8> {
    /// If no value reaches this magnitude, all values count as zero.
    const ZERO: f32 = 1e-6;
    let is_finite = |pixel: &[T]| pixel.iter().all(|v| v.to_f32().is_finite());
    let finite = || values.chunks_exact(bad.len()).filter(|p| is_finite(p)).flatten().map(|v| v.to_f32());
    let min = finite().fold(f32::INFINITY, f32::min);
    let max = finite().fold(f32::NEG_INFINITY, f32::max);
    let (range, reach, offset) =
        if min < 0.0 { (127.0, min.abs().max(max.abs()), 128.0) } else { (255.0, max, 0.0) };
    let scale = T::of(if reach < ZERO { 0.0 } else { range / reach });
    let offset = T::of(offset);
    let mut out = Vec::with_capacity(values.len());
    for pixel in values.chunks_exact(bad.len()) {
        if is_finite(pixel) {
            out.extend(pixel.iter().map(|v| v.byte(scale, offset)));
        } else {
            out.extend_from_slice(bad);
        }
    }
    out
}

fn png(pixels: &[u8], height: usize, width: usize, depth: usize) -> Result<Vec<u8>> {
    let size =
        |n: usize| u32::try_from(n).map_err(|_| Error::invalid(format!("an image of {height} by {width}")));
    let mut out = Vec::new();
    let mut encoder = png::Encoder::new(&mut out, size(width)?, size(height)?);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_color(match depth {
        1 => png::ColorType::Grayscale,
        3 => png::ColorType::Rgb,
        _ => png::ColorType::Rgba,
    });
    let written = encoder.write_header().and_then(|mut writer| {
        writer.write_image_data(pixels)?;
        writer.finish()
    });
    written.map_err(|e| Error::internal(format!("PNG encoding failed: {e}")))?;
    Ok(out)
}
