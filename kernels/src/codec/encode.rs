//! Encoding of images as JPEG and PNG files.

use super::png;
use bytes::Bytes;
use device::kernel::{Kernel, KernelContext, KernelInit};
use device::{Error, Result};
use graph::{DType, Shape, Tensor};
use jpeg_encoder::{ColorType, Encoder, PixelDensity, PixelDensityUnit, SamplingFactor};

/// The colours that an encoded JPEG file must have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Colours {
    /// The colours that the input image has.
    Any,
    Grey,
    Rgb,
}

/// The attributes of a JPEG encoder.
struct Jpeg {
    colours: Colours,
    quality: i64,
    progressive: bool,
    optimized: bool,
    downsampled: bool,
    density: PixelDensity,
    metadata: Bytes,
}

impl Jpeg {
    fn of(init: &KernelInit<'_>) -> Result<Jpeg> {
        let quality: i64 = init.attr("quality")?;
        check_quality(quality)?;
        let density = |name: &str| -> Result<u16> {
            let value: i64 = init.attr(name)?;
            u16::try_from(value).map_err(|_| Error::invalid(format!("{name} is out of range: {value}")))
        };
        let unit = match init.attr::<String>("density_unit")?.as_str() {
            "cm" => PixelDensityUnit::Centimeters,
            _ => PixelDensityUnit::Inches,
        };
        Ok(Jpeg {
            colours: match init.attr::<String>("format")?.as_str() {
                "grayscale" => Colours::Grey,
                "rgb" => Colours::Rgb,
                _ => Colours::Any,
            },
            quality,
            progressive: init.attr("progressive")?,
            optimized: init.attr("optimize_size")?,
            downsampled: init.attr("chroma_downsampling")?,
            density: PixelDensity { density: (density("x_density")?, density("y_density")?), unit },
            metadata: init.attr("xmp_metadata")?,
        })
    }

    fn encode(&self, image: &Tensor, quality: i64) -> Result<Vec<u8>> {
        let shape = image.shape();
        let &[height, width, channels] = shape.dims() else {
            device::invalid!("image must be 3-dimensional{shape}");
        };
        match (self.colours, channels) {
            (Colours::Any, 1 | 3) | (Colours::Grey, 1) | (Colours::Rgb, 3) => {}
            (Colours::Any, _) => device::invalid!("image must have 1 or 3 channels, got {shape}"),
            (Colours::Grey, _) => device::invalid!("format grayscale expects 1 channels, got {shape}"),
            (Colours::Rgb, _) => device::invalid!("format rgb expects 3 channels, got {shape}"),
        }
        let (Ok(columns), Ok(rows)) = (u16::try_from(width), u16::try_from(height)) else {
            device::invalid!("JPEG encoding failed: {width} by {height} pixels are too many");
        };
        let failed = |e| Error::invalid(format!("JPEG encoding failed: {e}"));
        let mut file = Vec::new();
        let mut encoder = Encoder::new(&mut file, (quality as u8).max(1));
        encoder.set_progressive(self.progressive);
        // With optimised Huffman tables, the encoder writes one scan per component, which some decoders reject if
        // components differ in size.
        encoder.set_optimized_huffman_tables(self.optimized && !self.downsampled || self.progressive);
        encoder.set_sampling_factor(if self.downsampled {
            SamplingFactor::F_2_2
        } else {
            SamplingFactor::F_1_1
        });
        encoder.set_density(self.density);
        if !self.metadata.is_empty() {
            let segment = [b"http://ns.adobe.com/xap/1.0/\0", &self.metadata[..]].concat();
            encoder.add_app_segment(1, segment).map_err(failed)?;
        }
        let colours = if channels == 1 { ColorType::Luma } else { ColorType::Rgb };
        encoder.encode(image.values::<u8>()?, columns, rows, colours).map_err(failed)?;
        Ok(file)
    }
}

fn check_quality(quality: i64) -> Result<()> {
    if !(0..=100).contains(&quality) {
        device::invalid!("quality must be in [0,100], got {quality}");
    }
    Ok(())
}

fn set_file(ctx: &mut KernelContext<'_>, file: Vec<u8>) -> Result<()> {
    ctx.set_output(0, Tensor::strings(vec![file.into()], Shape::scalar())?);
    Ok(())
}

/// `EncodeJpeg`: outputs a JPEG file; the quality is an attribute.
pub(super) fn jpeg(init: &KernelInit<'_>) -> Result<Kernel> {
    let jpeg = Jpeg::of(init)?;
    Kernel::sync(move |ctx| {
        let file = jpeg.encode(ctx.input(0)?, jpeg.quality)?;
        set_file(ctx, file)
    })
}

/// `EncodeJpegVariableQuality`: outputs a JPEG file; the quality is input 1.
pub(super) fn jpeg_of_quality(_: &KernelInit<'_>) -> Result<Kernel> {
    let jpeg = Jpeg {
        colours: Colours::Any,
        quality: 95,
        progressive: false,
        optimized: false,
        downsampled: true,
        density: PixelDensity { density: (300, 300), unit: PixelDensityUnit::Inches },
        metadata: Bytes::new(),
    };
    Kernel::sync(move |ctx| {
        let quality = ctx.input(1)?;
        if quality.shape().rank() != 0 {
            device::invalid!("quality must be scalar: {}", quality.shape());
        }
        let quality = i64::from(quality.item::<i32>()?);
        check_quality(quality)?;
        let file = jpeg.encode(ctx.input(0)?, quality)?;
        set_file(ctx, file)
    })
}

/// `EncodePng`: outputs one file per image of a batch.
pub(super) fn png(init: &KernelInit<'_>) -> Result<Kernel> {
    let compression: i64 = init.attr("compression")?;
    if !(-1..=9).contains(&compression) {
        device::invalid!("compression should be in [-1,9], got {compression}");
    }
    let wide = init.input_type(0) == DType::UInt16;
    Kernel::sync(move |ctx| {
        let image = ctx.input(0)?;
        let rank = image.shape().rank();
        if rank < 3 {
            device::invalid!("images must have at least rank 3, got {}", image.shape());
        }
        let (batch, sizes) = image.shape().split_at(rank - 3);
        let [height, width, channels] = [sizes[0], sizes[1], sizes[2]];
        if !(1..=4).contains(&channels) {
            device::invalid!("image must have 1, 2, 3, or 4 channels, got {channels}");
        }
        let batch = Shape::new(batch)?;
        let count = batch.num_elements();
        if count > 0 && (height == 0 || width == 0) {
            return Err(Error::internal("PNG encoding failed at the following flattened batch indices: 0"));
        }
        // Samples of 16 bits are stored with the upper byte first.
        let bytes: Vec<u8> = if wide {
            image.values::<u16>()?.iter().flat_map(|v| v.to_be_bytes()).collect()
        } else {
            image.bytes()?.to_vec()
        };
        let file_len = bytes.len().checked_div(count).unwrap_or(0).max(1);
        let files = bytes
            .chunks_exact(file_len)
            .map(|bytes| png::encode(bytes, [height, width, channels], wide, compression));
        let files: Vec<Bytes> = files.map(|f| f.map(Bytes::from)).collect::<Result<_>>()?;
        ctx.set_output(0, Tensor::strings(files, batch)?);
        Ok(())
    })
}
