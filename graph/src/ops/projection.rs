//! Resampling of images: projective transformations, and glimpses around points.

use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

const TRANSFORM: OpDef = OpDef {
    inputs: &["images: dtype", "transforms: float", "output_shape: int32"],
    outputs: &["transformed_images: dtype"],
    attrs: &[
        "dtype: {uint8, int32, int64, half, bfloat16, float, double}",
        "interpolation: string",
        "fill_mode: string = 'CONSTANT'",
    ],
    infer: transformed,
    ..OpDef::NEW
};

const GLIMPSE: OpDef = OpDef {
    inputs: &["input: float", "size: int32", "offsets: float"],
    outputs: &["glimpse: float"],
    attrs: &[
        "centered: bool = true",
        "normalized: bool = true",
        "uniform_noise: bool = true",
        "noise: string = 'uniform'",
    ],
    infer: glimpse,
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "ImageProjectiveTransformV2", ..TRANSFORM },
    OpDef {
        name: "ImageProjectiveTransformV3",
        inputs: &["images: dtype", "transforms: float", "output_shape: int32", "fill_value: float"],
        ..TRANSFORM
    },
    OpDef { name: "ExtractGlimpse", ..GLIMPSE },
    OpDef { name: "ExtractGlimpseV2", ..GLIMPSE },
];

fn transformed(infer: &mut Infer<'_>) -> Result<()> {
    let images = infer.input_of_rank(0, 4)?;
    infer.input_of_rank(1, 2)?;
    let sizes = infer.input_of_rank(2, 1)?;
    if sizes.dim(0).is_some_and(|n| n != 2) {
        crate::invalid!("output_shape must have 2 elements, not the shape {sizes}");
    }
    windows(infer, &images, 2)
}

fn glimpse(infer: &mut Infer<'_>) -> Result<()> {
    let images = infer.input_of_rank(0, 4)?;
    let offsets = infer.input_of_rank(2, 2)?;
    let count = PartialShape::vector(images.dim(0)).merge(&PartialShape::vector(offsets.dim(0)))?.dim(0);
    let images = PartialShape::of_dims([count, images.dim(1), images.dim(2), images.dim(3)]);
    windows(infer, &images, 1)
}

/// Sets output 0 to the shape of images with the rows and columns that input `at` holds.
fn windows(infer: &mut Infer<'_>, images: &PartialShape, at: usize) -> Result<()> {
    let size = infer.value(at).map(|size| size.to_i64s()).transpose()?;
    let size = |i: usize| size.as_ref().and_then(|size| usize::try_from(*size.get(i)?).ok());
    infer.set(0, PartialShape::of_dims([images.dim(0), size(0), size(1), images.dim(3)]));
    Ok(())
}
