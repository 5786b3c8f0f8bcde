//! Decoding and encoding of image files.

use super::OpDef;
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

const CHANNELS: &str = "channels: int = 0";
const JPEG: &[&str] = &[
    CHANNELS,
    "ratio: int = 1",
    "fancy_upscaling: bool = true",
    "try_recover_truncated: bool = false",
    "acceptable_fraction: float = 1.0",
    "dct_method: string = ''",
];

const DECODE: OpDef = OpDef {
    inputs: &["contents: string"],
    outputs: &["image: uint8"],
    infer: |infer| {
        let channels = channels(infer)?;
        infer.set(0, [None, None, channels]);
        Ok(())
    },
    ..OpDef::NEW
};
const ENCODE: OpDef = OpDef { outputs: &["contents: string"], ..OpDef::NEW };

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "DecodeJpeg", attrs: JPEG, ..DECODE },
    OpDef {
        name: "DecodeAndCropJpeg",
        inputs: &["contents: string", "crop_window: int32"],
        attrs: JPEG,
        infer: |infer| {
            let channels = channels(infer)?;
            let window = infer.value_as_shape(1)?.with_rank(4)?;
            infer.set(0, [window.dim(2), window.dim(3), channels]);
            Ok(())
        },
        ..DECODE
    },
    OpDef {
        name: "DecodePng",
        outputs: &["image: dtype"],
        attrs: &[CHANNELS, "dtype: {uint8, uint16} = uint8"],
        ..DECODE
    },
    OpDef { name: "DecodeBmp", attrs: &[CHANNELS], ..DECODE },
    OpDef {
        name: "DecodeGif",
        attrs: &[],
        infer: |infer| {
            infer.input_of_rank(0, 0)?;
            infer.set(0, [None, None, None, Some(3)]);
            Ok(())
        },
        ..DECODE
    },
    OpDef {
        name: "DecodeWebP",
        outputs: &["image: dtype"],
        attrs: &[CHANNELS, "dtype: {uint8} = uint8"],
        infer: |infer| {
            let channels = channels(infer)?;
            infer.set(0, [None, None, None, channels]);
            Ok(())
        },
        ..DECODE
    },
    OpDef {
        name: "DecodeJxl",
        outputs: &["image: dtype"],
        attrs: &[CHANNELS, "dtype: {uint8} = uint8"],
        ..DECODE
    },
    OpDef {
        name: "DecodeImage",
        outputs: &["image: dtype"],
        attrs: &[CHANNELS, "dtype: {uint8, uint16, float} = uint8", "expand_animations: bool = true"],
        infer: |infer| {
            let channels = channels(infer)?;
            let animated: bool = infer.attr("expand_animations")?;
            let still = PartialShape::from([None, None, channels]);
            infer.set(0, if animated { PartialShape::unknown() } else { still });
            Ok(())
        },
        ..DECODE
    },
    OpDef {
        name: "ExtractJpegShape",
        inputs: &["contents: string"],
        outputs: &["image_shape: output_type"],
        attrs: &["output_type: {int32, int64} = int32"],
        infer: |infer| {
            infer.input_of_rank(0, 0)?;
            infer.set(0, [3usize]);
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "EncodeJpeg",
        inputs: &["image: uint8"],
        attrs: &[
            "format: {'', 'grayscale', 'rgb'} = ''",
            "quality: int = 95",
            "progressive: bool = false",
            "optimize_size: bool = false",
            "chroma_downsampling: bool = true",
            "density_unit: {'in', 'cm'} = 'in'",
            "x_density: int = 300",
            "y_density: int = 300",
            "xmp_metadata: string = ''",
        ],
        infer: encoded_one,
        ..ENCODE
    },
    OpDef {
        name: "EncodeJpegVariableQuality",
        inputs: &["images: uint8", "quality: int32"],
        infer: encoded_one,
        ..ENCODE
    },
    OpDef {
        name: "EncodePng",
        inputs: &["image: T"],
        attrs: &["compression: int = -1", "T: {uint8, uint16} = uint8"],
        infer: |infer| {
            let image = infer.input(0);
            let batch = image.dims().map(|dims| dims[..dims.len().saturating_sub(3)].to_vec());
            infer.set(0, batch.map_or_else(PartialShape::unknown, PartialShape::of_dims));
            Ok(())
        },
        ..ENCODE
    },
];

fn encoded_one(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 3)?;
    infer.set(0, PartialShape::scalar());
    Ok(())
}

/// Returns the number of channels that the attribute `channels` sets; unknown for 0, which means the number in the
/// file.
fn channels(infer: &Infer<'_>) -> Result<Dim> {
    infer.input_of_rank(0, 0)?;
    let channels: i64 = infer.attr("channels")?;
    match usize::try_from(channels) {
        Ok(0) => Ok(None),
        Ok(channels) => Ok(Some(channels)),
        Err(_) => crate::invalid!("channels must be non-negative, got {channels}"),
    }
}
