//! Non-maximum suppression: selects boxes by descending score, and drops boxes that overlap an already selected box.

use crate::numeric::scratch::check_scratch;
use crate::numeric::widen::narrowed;
use crate::plan::boxes::{
    SuppressionLimits, box_count, check_iou_threshold, check_scores, count, number, rounding, single,
};
use device::Result;
use device::kernel::KernelContext;
use graph::{DType, Element, Shape, Tensor};
use half::f16;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A box that may still be selected.
#[derive(PartialEq)]
struct Candidate {
    number: usize,
    score: f32,
    /// The number of selected boxes that this box has been compared with.
    compared: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    /// Orders by score; of two boxes with equal scores, the box with the lower index is the greater.
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.score.total_cmp(&other.score).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Returns the indices and scores of the selected boxes; `overlap(i, j)` returns the overlap of boxes `i` and `j`.
fn select(
    scores: &[f32],
    limits: &SuppressionLimits,
    overlap: impl Fn(usize, usize) -> f32,
) -> Vec<(usize, f32)> {
    let candidates = scores.iter().enumerate().filter(|(_, s)| **s > limits.score);
    let mut queue: BinaryHeap<Candidate> =
        candidates.map(|(number, &score)| Candidate { number, score, compared: 0 }).collect();
    let soft = limits.sigma > 0.0;
    let rounded = limits.rounded;
    let scale = limits.scale();
    let mut chosen: Vec<(usize, f32)> = Vec::new();
    while chosen.len() < limits.most
        && let Some(mut next) = queue.pop()
    {
        let score = next.score;
        let mut suppressed = false;
        for &(other, _) in chosen[next.compared..].iter().rev() {
            let common = rounded(overlap(next.number, other));
            if !soft && common > limits.overlap {
                suppressed = true;
                break;
            }
            // Soft suppression multiplies the score by a weight that falls with the overlap. In hard suppression the
            // weight is 1, because `scale` is 0; it is 0 if the overlap is NaN.
            let counts = soft || common <= limits.overlap;
            let weight = if counts { rounded(rounded(rounded(scale * common) * common).exp()) } else { 0.0 };
            next.score = rounded(next.score * weight);
            if next.score <= limits.score {
                break;
            }
        }
        next.compared = chosen.len();
        if suppressed {
            continue;
        }
        if next.score == score {
            chosen.push((next.number, next.score));
        } else if next.score > limits.score {
            queue.push(next);
        }
    }
    chosen
}

/// Returns the area of the intersection of two boxes, divided by the area of their union. Corners may be in any order;
/// each intermediate result is rounded by `rounded`. A corner that is NaN makes the overlap NaN.
fn intersection_over_union(a: &[f32; 4], b: &[f32; 4], rounded: fn(f32) -> f32) -> f32 {
    let min = |a: f32, b: f32| if b < a { b } else { a };
    let max = |a: f32, b: f32| if a < b { b } else { a };
    let sorted = |r: &[f32; 4]| [min(r[0], r[2]), min(r[1], r[3]), max(r[0], r[2]), max(r[1], r[3])];
    let (a, b) = (sorted(a), sorted(b));
    let area = |r: [f32; 4]| rounded(rounded(r[2] - r[0]) * rounded(r[3] - r[1]));
    let (area_a, area_b) = (area(a), area(b));
    if area_a <= 0.0 || area_b <= 0.0 {
        return 0.0;
    }
    let height = max(rounded(min(a[2], b[2]) - max(a[0], b[0])), 0.0);
    let width = max(rounded(min(a[3], b[3]) - max(a[1], b[1])), 0.0);
    let common = rounded(height * width);
    rounded(common / rounded(rounded(area_a + area_b) - common))
}

fn select_boxes(ctx: &KernelContext<'_>, limits: &SuppressionLimits) -> Result<Vec<(usize, f32)>> {
    let (boxes, scores) = (ctx.input(0)?, ctx.input(1)?);
    box_count(boxes.shape(), scores.shape())?;
    let (boxes, scores) = (single(boxes)?, single(scores)?);
    let (boxes, _) = boxes.values::<f32>()?.as_chunks::<4>();
    let overlap = |i: usize, j: usize| intersection_over_union(&boxes[i], &boxes[j], limits.rounded);
    Ok(select(scores.values::<f32>()?, limits, overlap))
}

/// Returns a tensor with one value per selected box, followed by zeros up to `length`.
fn zero_padded<T: Element>(
    chosen: &[(usize, f32)],
    length: usize,
    value: impl Fn(&(usize, f32)) -> T,
) -> Result<Tensor> {
    let mut out = Tensor::zeros(T::DTYPE, Shape::new(&[length.max(chosen.len())])?)?;
    out.values_mut::<T>()?.iter_mut().zip(chosen).for_each(|(o, c)| *o = value(c));
    Ok(out)
}

fn numbers(chosen: &[(usize, f32)], length: usize) -> Result<Tensor> {
    zero_padded(chosen, length, |c| c.0 as i32)
}

/// `NonMaxSuppression`: outputs the selected boxes; the threshold of overlaps is an attribute.
pub(super) fn version_1(ctx: &mut KernelContext<'_>, threshold: f32) -> Result<()> {
    let limits = SuppressionLimits {
        most: count(ctx.input(2)?)?,
        overlap: check_iou_threshold(threshold)?,
        score: f32::MIN,
        sigma: 0.0,
        rounded: rounding(DType::Float),
    };
    let chosen = select_boxes(ctx, &limits)?;
    ctx.set_output(0, numbers(&chosen, 0)?);
    Ok(())
}

/// Selects boxes by the limits in input 2 and later inputs. Returns each selected box with its score, and the maximum
/// number of selected boxes.
fn suppressed(ctx: &KernelContext<'_>) -> Result<(Vec<(usize, f32)>, usize)> {
    let limits = SuppressionLimits::of(ctx.input(1)?.dtype(), &ctx.inputs_from(2)?)?;
    Ok((select_boxes(ctx, &limits)?, limits.most))
}

/// `NonMaxSuppressionV2` and `NonMaxSuppressionV3`: outputs the selected boxes; the third version has an additional
/// score threshold.
pub(super) fn versions_2_and_3(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (chosen, _) = suppressed(ctx)?;
    ctx.set_output(0, numbers(&chosen, 0)?);
    Ok(())
}

/// Returns the minimum length of the outputs: `most`, the maximum number of selected boxes, if the outputs are
/// `padded`, and 0 otherwise.
fn length(padded: bool, most: usize) -> usize {
    if padded { most } else { 0 }
}

/// `NonMaxSuppressionV4`: outputs the selected boxes and, as output 1, their number.
pub(super) fn version_4(ctx: &mut KernelContext<'_>, padded: bool) -> Result<()> {
    let (chosen, most) = suppressed(ctx)?;
    ctx.set_output(0, numbers(&chosen, length(padded, most))?);
    ctx.set_output(1, Tensor::scalar(chosen.len() as i32));
    Ok(())
}

/// `NonMaxSuppressionV5`: outputs the selected boxes, their scores and their number.
pub(super) fn version_5(ctx: &mut KernelContext<'_>, padded: bool) -> Result<()> {
    let (chosen, most) = suppressed(ctx)?;
    let length = length(padded, most);
    let scores = zero_padded(&chosen, length, |c| c.1)?;
    let scores = if ctx.input(1)?.dtype() == DType::Half { narrowed::<f16>(scores)? } else { scores };
    ctx.set_output(0, numbers(&chosen, length)?);
    ctx.set_output(1, scores);
    ctx.set_output(2, Tensor::scalar(chosen.len() as i32));
    Ok(())
}

/// `NonMaxSuppressionWithOverlaps`: outputs the selected boxes; input 0 is the matrix of overlaps.
pub(super) fn with_overlaps(ctx: &mut KernelContext<'_>) -> Result<()> {
    let overlaps = ctx.input(0)?;
    let columns = match *overlaps.shape().dims() {
        [rows, columns] if rows == columns => columns,
        _ => device::invalid!("overlaps must be square, got shape {}", overlaps.shape()),
    };
    let scores = ctx.input(1)?;
    check_scores(scores.shape(), columns)?;
    let limits = SuppressionLimits {
        most: count(ctx.input(2)?)?,
        overlap: number(ctx.input(3)?, "overlap_threshold")?,
        score: number(ctx.input(4)?, "score_threshold")?,
        sigma: 0.0,
        rounded: rounding(DType::Float),
    };
    let overlaps = overlaps.values::<f32>()?;
    let chosen = select(scores.values::<f32>()?, &limits, |i, j| overlaps[i * columns + j]);
    ctx.set_output(0, numbers(&chosen, 0)?);
    Ok(())
}

/// `CombinedNonMaxSuppression`: selects boxes of each class, and of all classes the boxes with the greatest scores.
/// `pads`: the number of outputs is at most the number of boxes of all classes together; `clips`: output boxes are
/// clipped to the unit square.
pub(super) fn combined(ctx: &mut KernelContext<'_>, pads: bool, clips: bool) -> Result<()> {
    let (boxes, scores) = (ctx.input(0)?, ctx.input(1)?);
    let &[batch, count, boxed_classes, corners] = boxes.shape().dims() else {
        device::invalid!("boxes must be 4-D {}", boxes.shape());
    };
    let &[score_batch, score_count, classes] = scores.shape().dims() else {
        device::invalid!("scores must be 3-D {}", scores.shape());
    };
    if score_batch != batch {
        device::invalid!("boxes and scores must have same batch size");
    }
    if score_count != count {
        device::invalid!("scores has incompatible shape");
    }
    if corners != 4 {
        device::invalid!("boxes must have 4 columns");
    }
    if boxed_classes != 1 && boxed_classes != classes {
        device::invalid!("third dimension of boxes must be either 1 or num classes");
    }
    let positive = |i: usize, name: &str| -> Result<usize> {
        let value: i32 = ctx.scalar(i, name)?.item()?;
        match usize::try_from(value) {
            Ok(value) if value > 0 => Ok(value),
            _ => device::invalid!("{name} must be > 0, got {value}"),
        }
    };
    let (per_class, total) = (positive(2, "max_size_per_class")?, positive(3, "max_total_size")?);
    let overlap: f32 = ctx.scalar(4, "iou_threshold")?.item()?;
    let limits = SuppressionLimits {
        most: per_class.min(count),
        overlap: check_iou_threshold(overlap)?,
        score: ctx.scalar(5, "score_threshold")?.item()?,
        sigma: 0.0,
        rounded: rounding(DType::Float),
    };
    let length = if pads { total.min(per_class.saturating_mul(classes)) } else { total };
    let mut out_boxes = Tensor::zeros(DType::Float, Shape::new(&[batch, length, 4])?)?;
    let mut out_scores = Tensor::zeros(DType::Float, Shape::new(&[batch, length])?)?;
    let mut out_classes = Tensor::zeros(DType::Float, Shape::new(&[batch, length])?)?;
    check_scratch::<i32>(batch)?;
    let mut valid = Vec::with_capacity(batch);
    let (corners, _) = boxes.values::<f32>()?.as_chunks::<4>();
    let scores = scores.values::<f32>()?;
    for image in 0..batch {
        ctx.check_cancelled()?;
        // The chosen boxes of all classes: the score, the class and the corners.
        let mut chosen: Vec<(f32, usize, [f32; 4])> = Vec::new();
        for class in 0..classes {
            let corners_of = |i: usize| {
                let boxed = if boxed_classes == 1 { 0 } else { class };
                corners[(image * count + i) * boxed_classes + boxed]
            };
            let of_class: Vec<f32> =
                (0..count).map(|i| scores[(image * count + i) * classes + class]).collect();
            let overlap =
                |i: usize, j: usize| intersection_over_union(&corners_of(i), &corners_of(j), limits.rounded);
            let selected = select(&of_class, &limits, overlap);
            chosen.extend(selected.into_iter().map(|(i, score)| (score, class, corners_of(i))));
        }
        chosen.sort_by(|a, b| b.0.total_cmp(&a.0));
        chosen.truncate(length);
        valid.push(i32::try_from(chosen.len()).unwrap_or(i32::MAX));
        let first = image * length;
        for (i, (score, class, corners)) in chosen.into_iter().enumerate() {
            let corners = if clips { corners.map(|corner| corner.clamp(0.0, 1.0)) } else { corners };
            out_boxes.values_mut::<f32>()?[(first + i) * 4..][..4].copy_from_slice(&corners);
            out_scores.values_mut::<f32>()?[first + i] = score;
            out_classes.values_mut::<f32>()?[first + i] = class as f32;
        }
    }
    ctx.set_output(0, out_boxes);
    ctx.set_output(1, out_scores);
    ctx.set_output(2, out_classes);
    ctx.set_output(3, Tensor::vector(&valid)?);
    Ok(())
}
