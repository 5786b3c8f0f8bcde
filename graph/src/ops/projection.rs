//! Resampling of images: projective transformations, and glimpses around points.

use super::broadcast::arrived;
use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope, SliceIndex};
use crate::error::Result;
use crate::graph::Output;
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
    gradient: Gradient::Defined(transform_gradient),
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

/// Returns the gradient of transformed images: the arrived gradient, transformed by the inverse matrices, like TensorFlow's.
/// It is exact for translations by whole pixels.
fn transform_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    let first = SliceIndex::Range(None, Some(1), 1);
    let transforms = forward.input(1);
    // The last element of a matrix of 3 x 3 elements is 1, and is not part of the transformation.
    let one = scope.op("OnesLike").input(scope.strided_slice(transforms, &[SliceIndex::ALL, first])).output();
    let matrices = scope.reshape(scope.concat(&[transforms, one], 1), &[-1, 3, 3]);
    let inverses = scope.reshape(scope.op("MatrixInverse").input(matrices).output(), &[-1, 9]);
    let last = scope.strided_slice(inverses, &[SliceIndex::ALL, SliceIndex::Range(Some(8), Some(9), 1)]);
    let scaled = scope.op("RealDiv").input(inverses).input(last).output();
    let inverses = scope.strided_slice(scaled, &[SliceIndex::ALL, SliceIndex::Range(None, Some(8), 1)]);
    let size = scope.shape_of(forward.input(0));
    let size = scope.strided_slice(size, &[SliceIndex::Range(Some(1), Some(3), 1)]);
    let mut call = scope.op(forward.node.op.name()).input(dz).input(inverses).input(size);
    if forward.inputs.len() > 3 {
        call = call.input(scope.constant(0f32));
    }
    for name in ["interpolation", "fill_mode"] {
        call = call.attr(name, forward.attr::<String>(name)?);
    }
    Ok(first_only(forward, Some(call.output())))
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
