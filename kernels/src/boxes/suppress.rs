//! Non-maximum suppression: selects boxes in the order of their scores and drops those that overlap a box selected
//! before.

use crate::numeric::wide::{narrowed, widened};
use device::kernel::KernelContext;
use device::{Error, Result};
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
    /// Orders by score; among equal scores the box with the lower number is the greater.
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.score.total_cmp(&other.score).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// The limits of a suppression: how many boxes are selected, and when a box is dropped.
#[derive(Debug)]
pub struct Rules {
    /// The most boxes to select.
    pub most: usize,
    /// The overlap above which a box is dropped.
    pub overlap: f32,
    /// The score that a selected box must exceed.
    pub score: f32,
    /// The width of the Gaussian by which overlaps lower scores; 0 if overlapping boxes are dropped instead.
    sigma: f32,
    /// Rounds a number to the type of the scores.
    rounded: fn(f32) -> f32,
}

impl Rules {
    /// Reads the inputs behind the boxes and the scores of type `dtype`: the most boxes to select, the overlap
    /// above which boxes are dropped, and, in later versions of the op, the score to exceed and the width by which
    /// overlaps lower scores.
    pub fn of(dtype: DType, inputs: &[&Tensor]) -> Result<Rules> {
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
        Ok(Rules { most, overlap, score, sigma, rounded: rounding(dtype) })
    }

    /// Returns the factor of the squared overlap in the exponent of the weight that lowers a score; 0 if
    /// overlapping boxes are dropped instead.
    pub fn scale(&self) -> f32 {
        if self.sigma > 0.0 { (self.rounded)(-0.5 / self.sigma) } else { 0.0 }
    }
}

/// Returns the function that rounds a number to `dtype`.
fn rounding(dtype: DType) -> fn(f32) -> f32 {
    if dtype == DType::Half { |v| f16::from_f32(v).to_f32() } else { |v| v }
}

/// Returns the numbers and scores of the selected boxes; `overlap` gives the overlap of two boxes.
fn select(scores: &[f32], rules: &Rules, overlap: impl Fn(usize, usize) -> f32) -> Vec<(usize, f32)> {
    let candidates = scores.iter().enumerate().filter(|(_, s)| **s > rules.score);
    let mut queue: BinaryHeap<Candidate> =
        candidates.map(|(number, &score)| Candidate { number, score, compared: 0 }).collect();
    let soft = rules.sigma > 0.0;
    let rounded = rules.rounded;
    let scale = rules.scale();
    let mut chosen: Vec<(usize, f32)> = Vec::new();
    while chosen.len() < rules.most
        && let Some(mut next) = queue.pop()
    {
        let score = next.score;
        let mut suppressed = false;
        for &(other, _) in chosen[next.compared..].iter().rev() {
            let common = rounded(overlap(next.number, other));
            if !soft && common > rules.overlap {
                suppressed = true;
                break;
            }
            // A soft suppression lowers scores with overlap. A hard one leaves the score, times 1, or makes it 0 if
            // the overlap is NaN.
            let counts = soft || common <= rules.overlap;
            let weight = if counts { rounded(rounded(rounded(scale * common) * common).exp()) } else { 0.0 };
            next.score = rounded(next.score * weight);
            if next.score <= rules.score {
                break;
            }
        }
        next.compared = chosen.len();
        if suppressed {
            continue;
        }
        if next.score == score {
            chosen.push((next.number, next.score));
        } else if next.score > rules.score {
            queue.push(next);
        }
    }
    chosen
}

/// Returns the intersection of two boxes divided by their union. Corners may be in any order; each intermediate
/// result is rounded. A corner that is NaN makes the overlap NaN.
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

/// Returns a tensor of `float` or `half` as `float`.
fn single(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::Half { widened::<f16>(x) } else { Ok(x.clone()) }
}

/// Returns the scalar in an input called `name`.
fn number(tensor: &Tensor, name: &str) -> Result<f32> {
    if tensor.shape().rank() != 0 {
        device::invalid!("{name} must be 0-D, got shape {}", tensor.shape());
    }
    Ok(single(tensor)?.item()?)
}

/// Checks that an overlap threshold is in [0, 1].
fn check_iou_threshold(value: f32) -> Result<f32> {
    if !(0.0..=1.0).contains(&value) {
        device::invalid!("iou_threshold must be in [0, 1]");
    }
    Ok(value)
}

fn count(tensor: &Tensor) -> Result<usize> {
    if tensor.shape().rank() != 0 {
        device::invalid!("max_output_size must be 0-D, got shape {}", tensor.shape());
    }
    let most: i32 = tensor.item()?;
    usize::try_from(most).map_err(|_| Error::invalid("max_output_size must be non-negative"))
}

fn check_scores(scores: &Shape, count: usize) -> Result<()> {
    if scores.rank() != 1 {
        device::invalid!("scores must be 1-D{scores}");
    }
    if scores.num_elements() != count {
        device::invalid!("scores has incompatible shape: {} scores for {count} boxes", scores.num_elements());
    }
    Ok(())
}

/// Returns the number of boxes, checked to equal the number of scores.
pub fn among(boxes: &Shape, scores: &Shape) -> Result<usize> {
    let &[count, 4] = boxes.dims() else {
        device::invalid!("boxes must be 2-D with 4 columns, got shape {boxes}");
    };
    check_scores(scores, count)?;
    Ok(count)
}

fn select_boxes(ctx: &KernelContext<'_>, rules: &Rules) -> Result<Vec<(usize, f32)>> {
    let (boxes, scores) = (ctx.input(0)?, ctx.input(1)?);
    among(boxes.shape(), scores.shape())?;
    let (boxes, scores) = (single(boxes)?, single(scores)?);
    let (boxes, _) = boxes.values::<f32>()?.as_chunks::<4>();
    let overlap = |i: usize, j: usize| intersection_over_union(&boxes[i], &boxes[j], rules.rounded);
    Ok(select(scores.values::<f32>()?, rules, overlap))
}

/// Returns one value per selected box, followed by zeros up to `length`.
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

/// `NonMaxSuppression`: the threshold of overlaps is an attribute.
pub(super) fn version_1(ctx: &mut KernelContext<'_>, threshold: f32) -> Result<()> {
    let rules = Rules {
        most: count(ctx.input(2)?)?,
        overlap: check_iou_threshold(threshold)?,
        score: f32::MIN,
        sigma: 0.0,
        rounded: rounding(DType::Float),
    };
    let chosen = select_boxes(ctx, &rules)?;
    ctx.set_output(0, numbers(&chosen, 0)?);
    Ok(())
}

/// Selects boxes by the inputs' rules. Also returns the most boxes that may be selected.
fn suppressed(ctx: &KernelContext<'_>) -> Result<(Vec<(usize, f32)>, usize)> {
    let rules = Rules::of(ctx.input(1)?.dtype(), &ctx.inputs_from(2)?)?;
    Ok((select_boxes(ctx, &rules)?, rules.most))
}

/// `NonMaxSuppressionV2`, and V3, which has an additional score threshold.
pub(super) fn versions_2_and_3(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (chosen, _) = suppressed(ctx)?;
    ctx.set_output(0, numbers(&chosen, 0)?);
    Ok(())
}

/// Returns the least length of the outputs: the most boxes that may be selected if outputs are padded, else 0.
fn length(padded: bool, most: usize) -> usize {
    if padded { most } else { 0 }
}

/// `NonMaxSuppressionV4`: output 1 is the number of selected boxes.
pub(super) fn version_4(ctx: &mut KernelContext<'_>, padded: bool) -> Result<()> {
    let (chosen, most) = suppressed(ctx)?;
    ctx.set_output(0, numbers(&chosen, length(padded, most))?);
    ctx.set_output(1, Tensor::scalar(chosen.len() as i32));
    Ok(())
}

/// `NonMaxSuppressionV5`: output 1 is the selected scores, output 2 the number of selected boxes.
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

/// `NonMaxSuppressionWithOverlaps`: input 0 is the matrix of overlaps.
pub(super) fn with_overlaps(ctx: &mut KernelContext<'_>) -> Result<()> {
    let overlaps = ctx.input(0)?;
    let columns = match *overlaps.shape().dims() {
        [rows, columns] if rows == columns => columns,
        _ => device::invalid!("overlaps must be square, got shape {}", overlaps.shape()),
    };
    let scores = ctx.input(1)?;
    check_scores(scores.shape(), columns)?;
    let rules = Rules {
        most: count(ctx.input(2)?)?,
        overlap: number(ctx.input(3)?, "overlap_threshold")?,
        score: number(ctx.input(4)?, "score_threshold")?,
        sigma: 0.0,
        rounded: rounding(DType::Float),
    };
    let overlaps = overlaps.values::<f32>()?;
    let chosen = select(scores.values::<f32>()?, &rules, |i, j| overlaps[i * columns + j]);
    ctx.set_output(0, numbers(&chosen, 0)?);
    Ok(())
}
