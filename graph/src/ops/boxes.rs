//! Boxes in images: cropping, drawing, sampling, and selection among overlapping boxes.

use super::{Gradient, OpDef, Traits};
use crate::attr::AttrValue;
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;

const METHOD: &str = "method: {'bilinear', 'nearest'} = 'bilinear'";
const PLAIN: &str = "T: {uint8, uint16, int8, int16, int32, int64, half, float, double}";
const SIZES: &str = "T: {uint8, int8, int16, int32, int64}";
const RATIOS: &str = "aspect_ratio_range: list(float) = [0.75, 1.33]";
const AREAS: &str = "area_range: list(float) = [0.05, 1.0]";
const SCORES: &str = "T: {half, float} = float";
const THRESHOLDS: &str = "T_threshold: {half, float} = float";

const SAMPLE: OpDef = OpDef {
    outputs: &["begin: T", "size: T", "bboxes: float"],
    infer: |infer| {
        infer.set(0, [3usize]);
        infer.set(1, [3usize]);
        infer.set(2, [1usize, 1, 4]);
        Ok(())
    },
    traits: Traits::STATEFUL,
    ..OpDef::NEW
};
const SELECTION: OpDef =
    OpDef { outputs: &["selected_indices: int32"], infer: selected_indices_shape, ..OpDef::NEW };

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "CropAndResize",
        inputs: &["image: T", "boxes: float", "box_ind: int32", "crop_size: int32"],
        outputs: &["crops: float"],
        attrs: &[PLAIN, METHOD, "extrapolation_value: float = 0.0"],
        infer: |infer| {
            let (image, boxes) = (infer.input_of_rank(0, 4)?, infer.input_of_rank(1, 2)?);
            let size = infer.value_as_shape(3)?.with_rank(2)?;
            infer.set(0, [boxes.dim(0), size.dim(0), size.dim(1), image.dim(3)]);
            Ok(())
        },
        gradient: Gradient::Defined(crop_grad),
        ..OpDef::NEW
    },
    OpDef {
        name: "CropAndResizeGradImage",
        inputs: &["grads: float", "boxes: float", "box_ind: int32", "image_size: int32"],
        outputs: &["output: T"],
        attrs: &["T: {float, half, double}", METHOD],
        infer: |infer| {
            let shape = infer.value_as_shape(3)?.with_rank(4)?;
            infer.set(0, shape);
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "CropAndResizeGradBoxes",
        inputs: &["grads: float", "image: T", "boxes: float", "box_ind: int32"],
        outputs: &["output: float"],
        attrs: &[PLAIN, "method: {'bilinear'} = 'bilinear'"],
        infer: |infer| {
            let shape = infer.input_of_rank(2, 2)?;
            infer.set(0, shape);
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "DrawBoundingBoxes",
        inputs: &["images: T", "boxes: float"],
        outputs: &["output: T"],
        attrs: &["T: {float, half} = float"],
        infer: like_images,
        ..OpDef::NEW
    },
    OpDef {
        name: "DrawBoundingBoxesV2",
        inputs: &["images: T", "boxes: float", "colors: float"],
        outputs: &["output: T"],
        attrs: &["T: {float, half} = float"],
        infer: like_images,
        ..OpDef::NEW
    },
    OpDef {
        name: "SampleDistortedBoundingBox",
        inputs: &["image_size: T", "bounding_boxes: float"],
        attrs: &[
            SIZES,
            "seed: int = 0",
            "seed2: int = 0",
            "min_object_covered: float = 0.1",
            RATIOS,
            AREAS,
            "max_attempts: int = 100",
            "use_image_if_no_bounding_boxes: bool = false",
        ],
        ..SAMPLE
    },
    OpDef {
        name: "SampleDistortedBoundingBoxV2",
        inputs: &["image_size: T", "bounding_boxes: float", "min_object_covered: float"],
        attrs: &[
            SIZES,
            "seed: int = 0",
            "seed2: int = 0",
            RATIOS,
            AREAS,
            "max_attempts: int = 100",
            "use_image_if_no_bounding_boxes: bool = false",
        ],
        ..SAMPLE
    },
    OpDef {
        name: "StatelessSampleDistortedBoundingBox",
        inputs: &["image_size: T", "bounding_boxes: float", "min_object_covered: float", "seed: Tseed"],
        attrs: &[
            SIZES,
            "Tseed: {int32, int64}",
            RATIOS,
            AREAS,
            "max_attempts: int = 100",
            "use_image_if_no_bounding_boxes: bool = false",
        ],
        traits: Traits::NONE,
        ..SAMPLE
    },
    OpDef {
        name: "CombinedNonMaxSuppression",
        inputs: &[
            "boxes: float",
            "scores: float",
            "max_output_size_per_class: int32",
            "max_total_size: int32",
            "iou_threshold: float",
            "score_threshold: float",
        ],
        outputs: &[
            "nmsed_boxes: float",
            "nmsed_scores: float",
            "nmsed_classes: float",
            "valid_detections: int32",
        ],
        attrs: &["pad_per_class: bool = false", "clip_boxes: bool = true"],
        infer: |infer| {
            let batch = infer.input_of_rank(0, 4)?.dim(0);
            infer.input_of_rank(1, 3)?;
            infer.set(0, [batch, None, Some(4)]);
            infer.set(1, [batch, None]);
            infer.set(2, [batch, None]);
            infer.set(3, [batch]);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "RandomCrop",
        inputs: &["image: T", "size: int64"],
        outputs: &["output: T"],
        attrs: &["T: {uint8, int8, int16, int32, int64, float, double}", "seed: int = 0", "seed2: int = 0"],
        infer: |infer| {
            let image = infer.input_of_rank(0, 3)?;
            let size = infer.value_as_shape(1)?.with_rank(2)?;
            infer.set(0, [size.dim(0), size.dim(1), image.dim(2)]);
            Ok(())
        },
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "NonMaxSuppression",
        inputs: &["boxes: float", "scores: float", "max_output_size: int32"],
        attrs: &["iou_threshold: float = 0.5"],
        ..SELECTION
    },
    OpDef {
        name: "NonMaxSuppressionV2",
        inputs: &["boxes: T", "scores: T", "max_output_size: int32", "iou_threshold: T_threshold"],
        attrs: &[SCORES, THRESHOLDS],
        ..SELECTION
    },
    OpDef {
        name: "NonMaxSuppressionV3",
        inputs: &[
            "boxes: T",
            "scores: T",
            "max_output_size: int32",
            "iou_threshold: T_threshold",
            "score_threshold: T_threshold",
        ],
        attrs: &[SCORES, THRESHOLDS],
        ..SELECTION
    },
    OpDef {
        name: "NonMaxSuppressionV4",
        inputs: &[
            "boxes: T",
            "scores: T",
            "max_output_size: int32",
            "iou_threshold: T_threshold",
            "score_threshold: T_threshold",
        ],
        outputs: &["selected_indices: int32", "valid_outputs: int32"],
        attrs: &[SCORES, THRESHOLDS, "pad_to_max_output_size: bool = false"],
        ..SELECTION
    },
    OpDef {
        name: "NonMaxSuppressionV5",
        inputs: &[
            "boxes: T",
            "scores: T",
            "max_output_size: int32",
            "iou_threshold: T",
            "score_threshold: T",
            "soft_nms_sigma: T",
        ],
        outputs: &["selected_indices: int32", "selected_scores: T", "valid_outputs: int32"],
        attrs: &[SCORES, "pad_to_max_output_size: bool = false"],
        ..SELECTION
    },
    OpDef {
        name: "NonMaxSuppressionWithOverlaps",
        inputs: &[
            "overlaps: float",
            "scores: float",
            "max_output_size: int32",
            "overlap_threshold: float",
            "score_threshold: float",
        ],
        ..SELECTION
    },
];

fn like_images(infer: &mut Infer<'_>) -> Result<()> {
    let images = infer.input_of_rank(0, 4)?;
    infer.input_of_rank(1, 3)?;
    infer.set(0, images);
    Ok(())
}

/// Sets the shape of the vector of selected indices: its length is `max_output_size` if the op pads its output,
/// otherwise unknown.
fn selected_indices_shape(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 2)?;
    infer.input_of_rank(1, 1)?;
    infer.input_of_rank(2, 0)?;
    let padded = infer.op().attr_spec("pad_to_max_output_size").is_some()
        && infer.attr::<bool>("pad_to_max_output_size")?;
    let size = match infer.value(2) {
        Some(size) if padded => {
            let size = usize::try_from(size.item::<i32>()?).ok();
            Some(size.ok_or_else(|| Error::invalid("max_output_size must be non-negative"))?)
        }
        _ => None,
    };
    infer.set_all(PartialShape::vector(size));
    if infer.num_outputs() > 1 {
        infer.set(infer.num_outputs() - 1, PartialShape::scalar());
    }
    Ok(())
}

fn crop_grad(s: &Scope, f: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dy) = dy[0] else { return Ok(vec![None; 4]) };
    let (image, boxes, index) = (f.input(0), f.input(1), f.input(2));
    let of_image = if matches!(s.dtype(image), DType::Half | DType::Float | DType::Double) {
        let shape = s.op("Shape").input(image).output();
        let call = s.op("CropAndResizeGradImage").input(dy).input(boxes).input(index).input(shape);
        let call = call.attr("T", s.dtype(image)).attr("method", f.attr::<AttrValue>("method")?);
        Some(call.output())
    } else {
        None
    };
    let of_boxes = s.op("CropAndResizeGradBoxes").input(dy).input(image).input(boxes).input(index).output();
    Ok(vec![of_image, Some(of_boxes), None, None])
}
