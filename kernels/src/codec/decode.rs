//! Decoding: detection of the file's format, the formats that an op accepts, and conversion to the output type.

use super::{Pixels, Samples, bmp, contents, gif, jpeg, jxl, png, webp};
use device::Result;
use device::kernel::{Kernel, KernelContext, KernelInit};
use graph::{DType, Shape, Tensor};

/// The format of an image file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Jpeg,
    Png,
    Gif,
    Bmp,
    WebP,
    Jxl,
}

impl Format {
    /// Detects the format by the first bytes of the file.
    fn of(file: &[u8]) -> Option<Format> {
        let starts = [
            (&b"\xff\xd8\xff"[..], Format::Jpeg),
            (b"\x89PNG\r\n\x1a\n", Format::Png),
            (b"GIF8", Format::Gif),
            (b"BM", Format::Bmp),
        ];
        let found = starts.into_iter().find(|(start, _)| file.starts_with(start)).map(|(_, format)| format);
        let is_webp = file.len() > 12 && file.starts_with(b"RIFF") && file[8..].starts_with(b"WEBP");
        found.or(is_webp.then_some(Format::WebP)).or_else(|| jxl::has_signature(file).then_some(Format::Jxl))
    }

    fn name(self) -> &'static str {
        match self {
            Format::Jpeg => "JPEG",
            Format::Png => "PNG",
            Format::Gif => "GIF",
            Format::Bmp => "BMP",
            Format::WebP => "WebP",
            Format::Jxl => "JXL",
        }
    }
}

/// The decoding op of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    /// `DecodeJpeg`, `DecodePng`, `DecodeWebP` or `DecodeJxl`; only files of WebP give several images.
    Still,
    Crop,
    Bmp,
    Gif,
    Image,
}

/// A decoding op with its attributes.
struct Decoder {
    op: Op,
    channels: usize,
    dtype: DType,
    /// Set if the output has all frames of an animation.
    animated: bool,
    jpeg: jpeg::Options,
}

/// Makes the kernel of any decoding op.
pub(super) fn image(init: &KernelInit<'_>) -> Result<Kernel> {
    let op = match init.node.op.name() {
        "DecodeAndCropJpeg" => Op::Crop,
        "DecodeBmp" => Op::Bmp,
        "DecodeGif" => Op::Gif,
        "DecodeImage" => Op::Image,
        _ => Op::Still,
    };
    let has = |name| init.node.op.attr_spec(name).is_some();
    let channels: i64 = if op == Op::Gif { 3 } else { init.attr("channels")? };
    if !matches!(channels, 0 | 1 | 3 | 4) {
        device::invalid!("`channels` must be 0, 1, 3 or 4 but got {channels}");
    }
    let jpeg = if has("dct_method") { jpeg::Options::of(init)? } else { jpeg::Options::default() };
    let animated = match op {
        Op::Image => init.attr("expand_animations")?,
        op => op == Op::Gif,
    };
    let decoder = Decoder { op, channels: channels as usize, dtype: init.output_type(0), animated, jpeg };
    Kernel::sync(move |ctx| decoder.run(ctx))
}

impl Decoder {
    fn run(&self, ctx: &mut KernelContext<'_>) -> Result<()> {
        let file = contents(ctx, 0)?;
        let Some(format) = Format::of(&file) else {
            device::invalid!(
                "Unknown image file format. One of JPEG, JPEG XL, PNG, GIF, BMP, WebP required."
            );
        };
        self.check(format)?;
        let pixels = match format {
            Format::Jpeg => {
                let window = if self.op == Op::Crop { Some(crop_window(ctx)?) } else { None };
                jpeg::decode(&file, self.channels, &self.jpeg, window)?
            }
            Format::Png => png::decode(&file, self.channels, self.dtype != DType::UInt8)?,
            Format::Gif => {
                // Ops whose output is one image refuse animations, except `DecodeImage`, which can take the first
                // frame. Decoding two frames suffices to detect an animation.
                let most = if self.animated { usize::MAX } else { 2 };
                let mut pixels = gif::decode(&file, most)?;
                if !self.animated && pixels.frames > 1 {
                    if self.op != Op::Image {
                        device::invalid!(
                            "Got {} frames, but animated gifs can only be decoded by tf.io.decode_gif or \
                             tf.io.decode_image",
                            pixels.frames
                        );
                    }
                    pixels.keep_first();
                }
                pixels
            }
            Format::Bmp => bmp::decode(&file, self.channels)?,
            Format::WebP => {
                let most = if self.has_frames(format) { usize::MAX } else { 1 };
                webp::decode(&file, self.channels, most)?
            }
            Format::Jxl => jxl::decode(&file, self.channels)?,
        };
        let as_animation = self.has_frames(format);
        let image = pixels.into_tensor(self.dtype, as_animation)?;
        ctx.set_output(0, image);
        Ok(())
    }

    /// Returns whether the output has an axis for the frames. Each op decodes JPEG XL to one image, and WebP to
    /// frames: `DecodeJpeg`, `DecodePng` and `DecodeBmp` too. The attribute of `DecodeImage` decides for it. TensorFlow does
    /// the same.
    fn has_frames(&self, format: Format) -> bool {
        match format {
            Format::Jxl => false,
            Format::WebP => self.op != Op::Image || self.animated,
            format => self.op == Op::Gif || format == Format::Gif && self.animated,
        }
    }

    /// Returns an error unless the op decodes files of this format.
    fn check(&self, format: Format) -> Result<()> {
        let name = format.name();
        match (self.op, format) {
            (_, Format::WebP) if self.channels == 1 => device::invalid!("WebP only supports 3 or 4 channels"),
            (_, Format::WebP | Format::Jxl) if self.dtype != DType::UInt8 => {
                device::invalid!("{name} only supports uint8 for dtype")
            }
            (_, Format::WebP | Format::Jxl) => Ok(()),
            (Op::Crop, format) if format != Format::Jpeg => {
                device::invalid!("DecodeAndCropJpeg operation can run on JPEG only, but detected {name}.")
            }
            (Op::Bmp, format) if format != Format::Bmp => device::invalid!(
                "Trying to decode {name} format using DecodeBmp op. Use `decode_{}` or `decode_image` instead.",
                name.to_lowercase()
            ),
            (Op::Still | Op::Gif, Format::Bmp) => device::invalid!(
                "Trying to decode BMP format using a wrong op. Use `decode_bmp` or `decode_image` instead."
            ),
            (_, Format::Bmp) if self.channels == 1 => {
                device::invalid!("`channels` must be 0, 3 or 4 for BMP, but got 1")
            }
            (_, Format::Jpeg) if self.channels == 4 => device::invalid!("JPEG does not support 4 channels"),
            (_, Format::Gif) if !matches!(self.channels, 0 | 3) => {
                device::invalid!("channels must be 0 or 3 for GIF, but got {}", self.channels)
            }
            _ => Ok(()),
        }
    }
}

/// Returns the crop window in input 1: the first row, the first column, the number of rows, and the number of columns.
fn crop_window(ctx: &KernelContext<'_>) -> Result<[usize; 4]> {
    let window = ctx.input(1)?;
    let &[y, x, height, width] = window.values::<i32>()? else {
        device::invalid!("crop_window must have four elements {}", window.shape());
    };
    let parts = [y, x, height, width].map(usize::try_from);
    match parts {
        [Ok(y), Ok(x), Ok(height), Ok(width)] => Ok([y, x, height, width]),
        _ => device::invalid!("jpeg::Uncompress failed. Invalid JPEG data or crop window."),
    }
}

impl Pixels {
    /// Drops all frames except the first.
    fn keep_first(&mut self) {
        self.frames = 1;
        let len = self.height * self.width * self.channels;
        match &mut self.samples {
            Samples::Bytes(samples) => samples.truncate(len),
            Samples::Words(samples) => samples.truncate(len),
        }
    }

    /// Converts the samples to `dtype`; `as_animation` adds an axis for the frames.
    fn into_tensor(self, dtype: DType, as_animation: bool) -> Result<Tensor> {
        let [h, w, c] = [self.height, self.width, self.channels];
        let shape = if as_animation { Shape::new(&[self.frames, h, w, c])? } else { Shape::new(&[h, w, c])? };
        Ok(match (dtype, self.samples) {
            (DType::Float, Samples::Bytes(v)) => {
                Tensor::from_slice(&v.iter().map(|&v| f32::from(v) / 255.0).collect::<Vec<_>>(), shape)?
            }
            (DType::Float, Samples::Words(v)) => {
                Tensor::from_slice(&v.iter().map(|&v| f32::from(v) / 65535.0).collect::<Vec<_>>(), shape)?
            }
            (DType::UInt16, Samples::Bytes(v)) => {
                Tensor::from_slice(&v.iter().map(|&v| u16::from(v) << 8).collect::<Vec<_>>(), shape)?
            }
            (_, Samples::Bytes(v)) => Tensor::from_slice(&v, shape)?,
            (_, Samples::Words(v)) => Tensor::from_slice(&v, shape)?,
        })
    }
}

/// `ExtractJpegShape`: outputs height, width and channels without decoding.
pub(super) fn jpeg_shape(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.output_type(0);
    Kernel::sync(move |ctx| {
        let file = contents(ctx, 0)?;
        let sizes = jpeg::sizes(&file)?.map(|s| s as i32);
        let shape = Shape::new(&[3])?;
        let out = match dtype {
            DType::Int64 => Tensor::from_slice(&sizes.map(i64::from), shape)?,
            _ => Tensor::from_slice(&sizes, shape)?,
        };
        ctx.set_output(0, out);
        Ok(())
    })
}
