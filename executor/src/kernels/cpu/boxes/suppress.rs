//! Non-maximum suppression: boxes in the order of their scores, without those that overlap one chosen before.

use crate::error::{Error, Result};
use crate::kernel::KernelContext;
use crate::kernels::cpu::wide::{narrowed, widened};
use graph::{DType, Element, Shape, Tensor};
use half::f16;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// A box that may be chosen.
#[derive(PartialEq)]
struct Candidate {
    number: usize,
    score: f32,
    /// Boxes chosen so far with which it has been compared.
    compared: usize,
}

impl Eq for Candidate {}

impl Ord for Candidate {
    /// By score; of equal ones, the first box is the greater.
    fn cmp(&self, other: &Candidate) -> Ordering {
        self.score.total_cmp(&other.score).then(other.number.cmp(&self.number))
    }
}

impl PartialOrd for Candidate {
    fn partial_cmp(&self, other: &Candidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

pub(in crate::kernels) struct Rules {
    pub(in crate::kernels) most: usize,
    /// Overlap from which on a box is left out.
    pub(in crate::kernels) overlap: f32,
    pub(in crate::kernels) score: f32,
    /// How wide overlaps lower scores; 0 where they leave out altogether.
    sigma: f32,
    /// Numbers are as wide as the scores' type.
    rounded: fn(f32) -> f32,
}

impl Rules {
    /// What an op is given behind its boxes and scores of type `dtype`: how many boxes at most, the overlap from which on
    /// they are left out, and, as later ops have them, the score that they are above and how wide overlaps lower scores.
    pub(in crate::kernels) fn of(dtype: DType, given: &[&Tensor]) -> Result<Rules> {
        let [most, overlap, others @ ..] = given else {
            return Err(Error::internal("no thresholds"));
        };
        let sigma = others.get(1).map_or(Ok(0.0), |sigma| number(sigma, "soft_nms_sigma"))?;
        if sigma < 0.0 || sigma.is_nan() {
            crate::invalid!("soft_nms_sigma_ must be non-negative.");
        }
        let overlap = part(number(overlap, "iou_threshold")?)?;
        let most = count(most)?;
        let score = others.first().map_or(Ok(f32::MIN), |score| number(score, "score_threshold"))?;
        Ok(Rules { most, overlap, score, sigma, rounded: rounding(dtype) })
    }

    /// Of the square of an overlap, in the exponent of what it lowers scores by; 0 where it leaves out altogether.
    pub(in crate::kernels) fn scale(&self) -> f32 {
        if self.sigma > 0.0 { (self.rounded)(-0.5 / self.sigma) } else { 0.0 }
    }
}

/// How numbers of a type are rounded.
fn rounding(dtype: DType) -> fn(f32) -> f32 {
    if dtype == DType::Half { |v| f16::from_f32(v).to_f32() } else { |v| v }
}

/// Numbers and scores of the boxes that are chosen.
fn choose(scores: &[f32], rules: &Rules, overlap: impl Fn(usize, usize) -> f32) -> Vec<(usize, f32)> {
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
            // Scores fall with overlap; where they do not, the weight is 1, or 0 if the overlap is no number.
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

/// The area that two boxes have in common, of what both cover. Corners may be given in any order; each result is
/// rounded. Of boxes with a corner that is no number, the overlap is none either.
fn intersection_over_union(a: &[f32; 4], b: &[f32; 4], rounded: fn(f32) -> f32) -> f32 {
    let min = |a: f32, b: f32| if b < a { b } else { a };
    let max = |a: f32, b: f32| if a < b { b } else { a };
    let sorted = |r: &[f32; 4]| [min(r[0], r[2]), min(r[1], r[3]), max(r[0], r[2]), max(r[1], r[3])];
    let (a, b) = (sorted(a), sorted(b));
    let area = |r: [f32; 4]| rounded(rounded(r[2] - r[0]) * rounded(r[3] - r[1]));
    let (of_a, of_b) = (area(a), area(b));
    if of_a <= 0.0 || of_b <= 0.0 {
        return 0.0;
    }
    let height = max(rounded(min(a[2], b[2]) - max(a[0], b[0])), 0.0);
    let width = max(rounded(min(a[3], b[3]) - max(a[1], b[1])), 0.0);
    let common = rounded(height * width);
    rounded(common / rounded(rounded(of_a + of_b) - common))
}

/// A tensor of `float` or `half` as `f32`.
fn single(x: &Tensor) -> Result<Tensor> {
    if x.dtype() == DType::Half { widened::<f16>(x) } else { Ok(x.clone()) }
}

/// A number that is an input.
fn number(given: &Tensor, name: &str) -> Result<f32> {
    if given.shape().rank() != 0 {
        crate::invalid!("{name} must be 0-D, got shape {}", given.shape());
    }
    Ok(single(given)?.item()?)
}

/// The overlap from which on a box is left out, which is a part.
fn part(value: f32) -> Result<f32> {
    if !(0.0..=1.0).contains(&value) {
        crate::invalid!("iou_threshold must be in [0, 1]");
    }
    Ok(value)
}

fn count(given: &Tensor) -> Result<usize> {
    if given.shape().rank() != 0 {
        crate::invalid!("max_output_size must be 0-D, got shape {}", given.shape());
    }
    let most: i32 = given.item()?;
    usize::try_from(most).map_err(|_| Error::invalid("max_output_size must be non-negative"))
}

fn check_scores(scores: &Shape, count: usize) -> Result<()> {
    if scores.rank() != 1 {
        crate::invalid!("scores must be 1-D{scores}");
    }
    if scores.num_elements() != count {
        crate::invalid!("scores has incompatible shape: {} scores for {count} boxes", scores.num_elements());
    }
    Ok(())
}

/// How many boxes there are, each of which has a score.
pub(in crate::kernels) fn among(boxes: &Shape, scores: &Shape) -> Result<usize> {
    let &[count, 4] = boxes.dims() else {
        crate::invalid!("boxes must be 2-D with 4 columns, got shape {boxes}");
    };
    check_scores(scores, count)?;
    Ok(count)
}

fn among_boxes(ctx: &KernelContext<'_>, rules: &Rules) -> Result<Vec<(usize, f32)>> {
    let (boxes, scores) = (ctx.input(0)?, ctx.input(1)?);
    among(boxes.shape(), scores.shape())?;
    let (boxes, scores) = (single(boxes)?, single(scores)?);
    let (boxes, _) = boxes.values::<f32>()?.as_chunks::<4>();
    let overlap = |i: usize, j: usize| intersection_over_union(&boxes[i], &boxes[j], rules.rounded);
    Ok(choose(scores.values::<f32>()?, rules, overlap))
}

/// One value of each chosen box, followed by zeros up to `length`.
fn followed_by_zeros<T: Element>(
    chosen: &[(usize, f32)],
    length: usize,
    value: impl Fn(&(usize, f32)) -> T,
) -> Result<Tensor> {
    let mut out = Tensor::zeros(T::DTYPE, Shape::new(&[length.max(chosen.len())])?)?;
    out.values_mut::<T>()?.iter_mut().zip(chosen).for_each(|(o, c)| *o = value(c));
    Ok(out)
}

fn numbers(chosen: &[(usize, f32)], length: usize) -> Result<Tensor> {
    followed_by_zeros(chosen, length, |c| c.0 as i32)
}

pub(super) fn first(ctx: &mut KernelContext<'_>, threshold: f32) -> Result<()> {
    let rules = Rules {
        most: count(ctx.input(2)?)?,
        overlap: part(threshold)?,
        score: f32::MIN,
        sigma: 0.0,
        rounded: rounding(DType::Float),
    };
    let chosen = among_boxes(ctx, &rules)?;
    ctx.set_output(0, numbers(&chosen, 0)?);
    Ok(())
}

/// Boxes that are left, and how many there may be.
fn suppressed(ctx: &KernelContext<'_>) -> Result<(Vec<(usize, f32)>, usize)> {
    let rules = Rules::of(ctx.input(1)?.dtype(), &ctx.inputs_from(2)?)?;
    Ok((among_boxes(ctx, &rules)?, rules.most))
}

/// The second one, and the third, which has a threshold of scores.
pub(super) fn second(ctx: &mut KernelContext<'_>) -> Result<()> {
    let (chosen, _) = suppressed(ctx)?;
    ctx.set_output(0, numbers(&chosen, 0)?);
    Ok(())
}

/// The least length of the outputs: as many as may be chosen, if they are padded.
fn length(padded: bool, most: usize) -> usize {
    if padded { most } else { 0 }
}

pub(super) fn fourth(ctx: &mut KernelContext<'_>, padded: bool) -> Result<()> {
    let (chosen, most) = suppressed(ctx)?;
    ctx.set_output(0, numbers(&chosen, length(padded, most))?);
    ctx.set_output(1, Tensor::scalar(chosen.len() as i32));
    Ok(())
}

pub(super) fn fifth(ctx: &mut KernelContext<'_>, padded: bool) -> Result<()> {
    let (chosen, most) = suppressed(ctx)?;
    let length = length(padded, most);
    let scores = followed_by_zeros(&chosen, length, |c| c.1)?;
    let scores = if ctx.input(1)?.dtype() == DType::Half { narrowed::<f16>(scores)? } else { scores };
    ctx.set_output(0, numbers(&chosen, length)?);
    ctx.set_output(1, scores);
    ctx.set_output(2, Tensor::scalar(chosen.len() as i32));
    Ok(())
}

pub(super) fn with_overlaps(ctx: &mut KernelContext<'_>) -> Result<()> {
    let overlaps = ctx.input(0)?;
    let columns = match *overlaps.shape().dims() {
        [rows, columns] if rows == columns => columns,
        _ => crate::invalid!("overlaps must be square, got shape {}", overlaps.shape()),
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
    let chosen = choose(scores.values::<f32>()?, &rules, |i, j| overlaps[i * columns + j]);
    ctx.set_output(0, numbers(&chosen, 0)?);
    Ok(())
}
