//! Resizing of batches of images, and its gradients.

use super::{Gradient, OpDef};
use crate::attr::AttrValue;
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;
use crate::tensor::Tensor;

const CORNERS: &str = "align_corners: bool = false";
const CENTERS: &str = "half_pixel_centers: bool = false";
const PLAIN: &str = "T: {int8, uint8, int16, uint16, int32, int64, half, float, double, bfloat16}";

const TO_SINGLE: OpDef = OpDef {
    inputs: &["images: T", "size: int32"],
    outputs: &["resized_images: float"],
    infer: resized,
    ..OpDef::NEW
};
const RESIZE_GRADIENT: OpDef = OpDef {
    inputs: &["grads: float", "original_image: T"],
    outputs: &["output: T"],
    infer: |infer| {
        let shape = infer.input_of_rank(1, 4)?;
        infer.set(0, shape);
        Ok(())
    },
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "ResizeBilinear",
        attrs: &[
            "T: {int8, uint8, int16, uint16, int32, int64, bfloat16, half, float, double, bfloat16}",
            CORNERS,
            CENTERS,
        ],
        gradient: Gradient::Defined(|s, f, dy| resize_gradient(s, f, dy, "ResizeBilinearGrad")),
        ..TO_SINGLE
    },
    OpDef {
        name: "ResizeBilinearGrad",
        attrs: &["T: {float, bfloat16, half, double}", CORNERS, CENTERS],
        ..RESIZE_GRADIENT
    },
    OpDef {
        name: "ResizeBicubic",
        attrs: &[PLAIN, CORNERS, CENTERS],
        gradient: Gradient::Defined(|s, f, dy| resize_gradient(s, f, dy, "ResizeBicubicGrad")),
        ..TO_SINGLE
    },
    OpDef { name: "ResizeBicubicGrad", attrs: &["T: {float, double}", CORNERS, CENTERS], ..RESIZE_GRADIENT },
    OpDef { name: "ResizeArea", attrs: &[PLAIN, CORNERS], ..TO_SINGLE },
    OpDef {
        name: "ResizeNearestNeighbor",
        inputs: &["images: T", "size: int32"],
        outputs: &["resized_images: T"],
        attrs: &[PLAIN, CORNERS, CENTERS],
        infer: resized,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None, None]) };
            let shape = s.op("Shape").input(f.input(0)).output();
            let [begin, end, step] = [1, 3, 1].map(|v: i32| Tensor::from_slice(&[v], [1].try_into()?));
            let call = s.op("StridedSlice").input(shape).input(s.constant(begin?));
            let size = call.input(s.constant(end?)).input(s.constant(step?)).output();
            let call = s.op("ResizeNearestNeighborGrad").input(dy).input(size);
            let call = call.attr("align_corners", f.attr::<AttrValue>("align_corners")?);
            let dx = call.attr("half_pixel_centers", f.attr::<AttrValue>("half_pixel_centers")?).output();
            Ok(vec![Some(dx), None])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "ResizeNearestNeighborGrad",
        inputs: &["grads: T", "size: int32"],
        outputs: &["output: T"],
        attrs: &["T: {uint8, int8, int32, half, float, double, bfloat16}", CORNERS, CENTERS],
        infer: resized,
        ..OpDef::NEW
    },
    OpDef {
        name: "ScaleAndTranslate",
        inputs: &["images: T", "size: int32", "scale: float", "translation: float"],
        outputs: &["resized_images: float"],
        attrs: &[
            "T: {int8, uint8, int16, uint16, int32, int64, bfloat16, half, float, double}",
            "kernel_type: string = 'lanczos3'",
            "antialias: bool = true",
        ],
        infer: resized,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None; 4]) };
            let x = s.op("Cast").input(f.input(0)).attr("DstT", DType::Float).output();
            let call = s.op("ScaleAndTranslateGrad").input(dy).input(x).input(f.input(2)).input(f.input(3));
            let call = call.attr("kernel_type", f.attr::<AttrValue>("kernel_type")?);
            let dx = call.attr("antialias", f.attr::<AttrValue>("antialias")?).output();
            Ok(vec![Some(dx), None, None, None])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "ScaleAndTranslateGrad",
        inputs: &["grads: T", "original_image: T", "scale: float", "translation: float"],
        outputs: &["output: T"],
        attrs: &["T: {float}", "kernel_type: string = 'lanczos3'", "antialias: bool = true"],
        ..RESIZE_GRADIENT
    },
];

/// Sets the output's shape: images with the rows and columns that input 1 holds.
pub(super) fn resized(infer: &mut Infer<'_>) -> Result<()> {
    let x = infer.input_of_rank(0, 4)?;
    let size = infer.input_of_rank(1, 1)?;
    if size.dim(0).is_some_and(|n| n != 2) {
        crate::invalid!("Dimension must be 2 but is {}", size);
    }
    let [rows, columns] = match infer.value(1) {
        Some(size) => match *size.to_i64s()?.as_slice() {
            [rows, columns] => [rows, columns].map(|v| usize::try_from(v).map(Some)),
            _ => crate::invalid!("size must have two elements, got shape {}", size.shape()),
        },
        None => [Ok(None), Ok(None)],
    };
    let known = |v: Result<_, _>| v.map_err(|_| Error::invalid("size must be positive"));
    infer.set(0, PartialShape::from([x.dim(0), known(rows)?, known(columns)?, x.dim(3)]));
    Ok(())
}

/// Gradient of a resizing op whose output is `float`; images of integers have no gradient.
fn resize_gradient(s: &Scope, f: &Forward, dy: &[Option<Output>], op: &str) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None, None]) };
    if !s.dtype(f.input(0)).is_floating() {
        return Ok(vec![None, None]);
    }
    let mut call = s.op(op).input(dy).input(f.input(0));
    for name in ["align_corners", "half_pixel_centers"] {
        call = call.attr(name, f.attr::<AttrValue>(name)?);
    }
    Ok(vec![Some(call.output()), None])
}
