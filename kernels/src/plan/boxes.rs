//! Inputs of the ops on boxes: crops of images, and the limits of non-maximum suppression.

use crate::numeric::widen::widened;
use device::kernel::{KernelContext, KernelInit};
use device::{Error, Result};
use graph::{Code, DType, Shape, Tensor};
use half::f16;

/// The interpolation by which a crop samples the image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CropMethod {
    Bilinear,
    Nearest,
}

impl CropMethod {
    /// Reads the attribute `method`.
    pub fn of(init: &KernelInit<'_>) -> Result<CropMethod> {
        match init.attr::<String>("method")?.as_str() {
            "nearest" => Ok(CropMethod::Nearest),
            _ => Ok(CropMethod::Bilinear),
        }
    }
}

/// Returns, for each box, the index of the image that it crops, which must be less than the batch size. Images have the
/// shape `[batch, rows, columns, channels]`; `crop` holds the rows and columns of a crop.
pub fn images_of(
    boxes: &Shape,
    index: &Tensor,
    [batch, rows, columns, _]: [usize; 4],
    crop: [usize; 2],
) -> Result<Vec<usize>> {
    let &[count, columns_of_box] = boxes.dims() else {
        device::invalid!("boxes must be 2-D, got shape {boxes}");
    };
    if count > 0 && columns_of_box != 4 {
        device::invalid!("boxes must have 4 columns, got shape {boxes}");
    }
    if index.shape().dims() != [count] {
        device::invalid!("box_index has incompatible shape {}: there are {count} boxes", index.shape());
    }
    if rows == 0 || columns == 0 {
        device::invalid!("image dimensions must be positive");
    }
    if crop.contains(&0) {
        device::invalid!("crop dimensions must be positive");
    }
    let image = |&i: &i32| usize::try_from(i).ok().filter(|&i| i < batch);
    let images: Option<Vec<usize>> = index.values::<i32>()?.iter().map(image).collect();
    images.ok_or_else(|| Error::new(Code::OutOfRange, "box_index has values outside [0, batch_size)"))
}

/// Returns the dimensions of a batch of images: batch, rows, columns, channels.
pub fn image_dims(image: &Shape) -> Result<[usize; 4]> {
    match *image.dims() {
        [n, h, w, c] => Ok([n, h, w, c]),
        _ => device::invalid!("input image must be 4-D{image}"),
    }
}

/// Returns the rows and columns of a crop, given in input 3.
pub fn crop_size(ctx: &KernelContext<'_>) -> Result<[usize; 2]> {
    let size = ctx.input(3)?;
    let (&[rows, columns], 1) = (size.values::<i32>()?, size.shape().rank()) else {
        device::invalid!("crop_size must have two elements, got shape {}", size.shape());
    };
    let size = |v: i32| usize::try_from(v).map_err(|_| Error::invalid("crop dimensions must be positive"));
    Ok([size(rows)?, size(columns)?])
}

/// Returns the shape of the images, given in input 3.
pub fn image_size(ctx: &KernelContext<'_>) -> Result<Shape> {
    let size = ctx.input(3)?;
    if size.shape().dims() != [4] {
        device::invalid!("image_size must be 1-D with 4 elements, got shape {}", size.shape());
    }
    Ok(Shape::from_i64(&size.to_i64s()?)?)
}

/// Returns the rows and columns of the crops, given the shape `grads` of their gradient.
pub fn grad_crop(grads: &Shape, channels: usize, boxes: &Shape) -> Result<[usize; 2]> {
    let count = boxes.first().copied().unwrap_or(0);
    match *grads.dims() {
        [n, rows, columns, c] if n == count && c == channels => Ok([rows, columns]),
        _ => {
            device::invalid!("grads must be 4-D, of {count} boxes and {channels} channels, got shape {grads}")
        }
    }
}

/// The limits of a non-maximum suppression: the maximum number of boxes to select, and the bounds of overlaps and
/// scores beyond which a box is dropped.
#[derive(Debug)]
pub struct SuppressionLimits {
    /// The maximum number of boxes that are selected.
    pub most: usize,
    /// The overlap with a selected box above which a box is dropped.
    pub overlap: f32,
    /// The score that a selected box must exceed.
    pub score: f32,
    /// The width of the Gaussian weight by which an overlap lowers a score; 0 if overlapping boxes are dropped instead.
    pub(crate) sigma: f32,
    /// The function that rounds a number to the precision of the scores' dtype.
    pub(crate) rounded: fn(f32) -> f32,
}

impl SuppressionLimits {
    /// Reads the limits from `inputs`, which follow the boxes and the scores of type `dtype`: the maximum number of
    /// boxes to select, the overlap above which boxes are dropped, and, in later versions of the op, the score to
    /// exceed and the width of the Gaussian by which overlaps lower scores.
    pub fn of(dtype: DType, inputs: &[&Tensor]) -> Result<SuppressionLimits> {
        let [most, overlap, others @ ..] = inputs else {
            return Err(Error::internal("no thresholds"));
        };
        let sigma = others.get(1).map_or(Ok(0.0), |sigma| number(sigma, "soft_nms_sigma"))?;
        if sigma < 0.0 || sigma.is_nan() {
            device::invalid!("soft_nms_sigma_ must be non-negative.");
        }
        let overlap = check_iou_threshold(number(overlap, "iou_threshold")?)?;
        let most = count(most)?;
        let score = others.first().map_or(Ok(f32::MIN), |score| number(score, "score_threshold"))?;
        Ok(SuppressionLimits { most, overlap, score, sigma, rounded: rounding(dtype) })
    }

    /// Returns the factor of the squared overlap in the exponent of the Gaussian weight that lowers a score; 0 if
    /// overlapping boxes are dropped instead.
    pub fn scale(&self) -> f32 {
        if self.sigma > 0.0 { (self.rounded)(-0.5 / self.sigma) } else { 0.0 }
    }
}

/// Returns the function that rounds a number to the precision of `dtype`.
pub(crate) fn rounding(dtype: DType) -> fn(f32) -> f32 {
    if dtype == DType::Half { |v| f16::from_f32(v).to_f32() } else { |v| v }
}

/// Returns a tensor of dtype `float` or `half` as a tensor of dtype `float`.
pub(crate) fn single(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::Half { widened::<f16>(x) } else { Ok(x.clone()) }
}

/// Returns the scalar in a `half` or `float` tensor; `name` is the input's name in messages.
pub(crate) fn number(tensor: &Tensor, name: &str) -> Result<f32> {
    if tensor.shape().rank() != 0 {
        device::invalid!("{name} must be 0-D, got shape {}", tensor.shape());
    }
    Ok(single(tensor)?.item()?)
}

/// Checks that an overlap threshold is in [0, 1].
pub(crate) fn check_iou_threshold(value: f32) -> Result<f32> {
    if !(0.0..=1.0).contains(&value) {
        device::invalid!("iou_threshold must be in [0, 1]");
    }
    Ok(value)
}

pub(crate) fn count(tensor: &Tensor) -> Result<usize> {
    if tensor.shape().rank() != 0 {
        device::invalid!("max_output_size must be 0-D, got shape {}", tensor.shape());
    }
    let most: i32 = tensor.item()?;
    usize::try_from(most).map_err(|_| Error::invalid("max_output_size must be non-negative"))
}

pub(crate) fn check_scores(scores: &Shape, count: usize) -> Result<()> {
    if scores.rank() != 1 {
        device::invalid!("scores must be 1-D{scores}");
    }
    if scores.num_elements() != count {
        device::invalid!("scores has incompatible shape: {} scores for {count} boxes", scores.num_elements());
    }
    Ok(())
}

/// Returns the number of boxes, after checking that there are as many scores.
pub fn box_count(boxes: &Shape, scores: &Shape) -> Result<usize> {
    let &[count, 4] = boxes.dims() else {
        device::invalid!("boxes must be 2-D with 4 columns, got shape {boxes}");
    };
    check_scores(scores, count)?;
    Ok(count)
}
