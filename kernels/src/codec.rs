//! Image files: decoding into pixels and encoding. Each format has a submodule; an op named after one format also
//! decodes files of other formats, like in TensorFlow.
//!
//! JPEG files decode to within a few levels of TensorFlow's values, which depend on how its library rounds the cosine
//! transform, and JPEG XL files that are not lossless to within one; all other formats decode to the same values.

mod bmp;
mod decode;
mod encode;
mod gif;
mod jpeg;
mod jpeg_scans;
mod jxl;
mod png;
mod webp;

use crate::numeric::dispatch::INDEX;
use bytes::Bytes;
use device::kernel::{KernelContext, KernelDef};
use device::{Error, Result};
use graph::DType;

const PNG_TYPES: &[(&str, &[DType])] = &[("dtype", &[DType::UInt8, DType::UInt16])];
const ALL_TYPES: &[(&str, &[DType])] = &[("dtype", &[DType::UInt8, DType::UInt16, DType::Float])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("DecodeJpeg", &[], decode::image),
    KernelDef { host_memory: &["crop_window"], ..KernelDef::of("DecodeAndCropJpeg", &[], decode::image) },
    KernelDef::of("DecodePng", PNG_TYPES, decode::image),
    KernelDef::of("DecodeBmp", &[], decode::image),
    KernelDef::of("DecodeGif", &[], decode::image),
    KernelDef::of("DecodeWebP", &[], decode::image),
    KernelDef::of("DecodeJxl", &[], decode::image),
    KernelDef::of("DecodeImage", ALL_TYPES, decode::image),
    KernelDef::of("ExtractJpegShape", &[("output_type", INDEX)], decode::jpeg_shape),
    KernelDef::of("EncodeJpeg", &[], encode::jpeg),
    KernelDef::of("EncodeJpegVariableQuality", &[], encode::jpeg_of_quality),
    KernelDef::of("EncodePng", &[("T", &[DType::UInt8, DType::UInt16])], encode::png),
];

/// The decoded samples of an image file: frame after frame, row after row.
#[derive(Debug)]
struct Pixels {
    frames: usize,
    height: usize,
    width: usize,
    channels: usize,
    samples: Samples,
}

/// Samples of 8 or of 16 bits.
#[derive(Debug)]
enum Samples {
    Bytes(Vec<u8>),
    Words(Vec<u16>),
}

/// The limit of the number of samples of an image; a file whose header states this number or more is refused.
const MOST_SAMPLES: usize = 1 << 29;

/// Returns the number of samples of an image.
///
/// # Errors
/// `InvalidArgument` if the image has no samples, or too many.
fn sample_count(height: usize, width: usize, channels: usize) -> Result<usize> {
    let count = height.checked_mul(width).and_then(|n| n.checked_mul(channels));
    match count.filter(|&n| n < MOST_SAMPLES) {
        Some(0) => device::invalid!("the image has no pixels: {width} by {height}"),
        Some(count) => Ok(count),
        None => device::invalid!("Image too large: {width} by {height}"),
    }
}

/// Returns the file in the string scalar that is input `i`.
fn contents(ctx: &KernelContext<'_>, i: usize) -> Result<Bytes> {
    let contents = ctx.input(i)?;
    if contents.shape().rank() != 0 {
        device::invalid!("`contents` must be scalar but got shape{}", contents.shape());
    }
    match contents.as_strings()? {
        [file] if !file.is_empty() => Ok(file.clone()),
        _ => Err(Error::invalid("Input is empty.")),
    }
}
