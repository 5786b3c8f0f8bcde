//! Contrast, hue and saturation of images, and conversion between RGB and HSV.

use super::OpDef;
use crate::error::Result;
use crate::infer::Infer;

const ADJUSTED: &str = "T: {half, float} = float";
const CONVERTED: &str = "T: {half, bfloat16, float, double} = float";

const CONVERSION: OpDef = OpDef {
    inputs: &["images: T"],
    outputs: &["output: T"],
    attrs: &[CONVERTED],
    infer: colours,
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "AdjustContrast",
        inputs: &["images: T", "contrast_factor: float", "min_value: float", "max_value: float"],
        outputs: &["output: float"],
        attrs: &["T: {uint8, int8, int16, int32, int64, float, double}"],
        infer: |infer| {
            let images = infer.input(0);
            infer.set(0, images);
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "AdjustContrastv2",
        inputs: &["images: T", "contrast_factor: float"],
        outputs: &["output: T"],
        attrs: &[ADJUSTED],
        infer: adjusted,
        ..OpDef::NEW
    },
    OpDef {
        name: "AdjustHue",
        inputs: &["images: T", "delta: float"],
        outputs: &["output: T"],
        attrs: &[ADJUSTED],
        infer: adjusted,
        ..OpDef::NEW
    },
    OpDef {
        name: "AdjustSaturation",
        inputs: &["images: T", "scale: float"],
        outputs: &["output: T"],
        attrs: &[ADJUSTED],
        infer: adjusted,
        ..OpDef::NEW
    },
    OpDef { name: "RGBToHSV", ..CONVERSION },
    OpDef { name: "HSVToRGB", ..CONVERSION },
];

fn adjusted(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0);
    if shape.rank().is_some_and(|r| r < 3) {
        crate::invalid!("Shape must be at least rank 3 but is rank {}", shape.rank().unwrap_or_default());
    }
    infer.input_of_rank(1, 0)?;
    infer.set(0, shape);
    Ok(())
}

/// Checks that the last axis has size 3.
fn colours(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0);
    if let Some(dims) = shape.dims() {
        match dims.last() {
            None => crate::invalid!("Shape must be at least rank 1 but is rank 0"),
            Some(Some(n)) if *n != 3 => crate::invalid!("Dimension must be 3 but is {n}"),
            _ => {}
        }
    }
    infer.set(0, shape);
    Ok(())
}
