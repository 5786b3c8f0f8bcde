//! Inputs for image ops.

use super::{Fallible, Random, numbers};
use graph::{DType, Tensor};

pub(super) fn inputs(name: &str, types: &[DType], random: &mut Random) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    let t = types.first().copied().unwrap_or(DType::Float);
    let second = types.get(1).copied().unwrap_or(t);
    Ok(Some(match name {
        "ResizeBilinear" | "ResizeNearestNeighbor" | "ResizeBicubic" | "ResizeArea" => {
            let mut all = Vec::new();
            for size in [[7, 3], [4, 5], [1, 11]] {
                all.push(vec![random.tensor(t, &[2, 4, 5, 3])?, numbers(&size)?]);
            }
            all
        }
        "ResizeBilinearGrad" | "ResizeBicubicGrad" => {
            vec![vec![random.tensor(t, &[2, 7, 3, 3])?, random.tensor(second, &[2, 4, 5, 3])?]]
        }
        "CropAndResize" => {
            let (boxes, of) = (boxes()?, numbers(&[1, 0, 1])?);
            let mut all = Vec::new();
            for size in [[3, 4], [1, 6]] {
                all.push(vec![random.tensor(t, &[2, 4, 5, 3])?, boxes.clone(), of.clone(), numbers(&size)?]);
            }
            all
        }
        "CropAndResizeGradImage" => vec![vec![
            random.tensor(DType::Float, &[3, 3, 1, 2])?,
            boxes()?,
            numbers(&[1, 0, 1])?,
            numbers(&[2, 4, 5, 2])?,
        ]],
        "CropAndResizeGradBoxes" => vec![vec![
            random.tensor(DType::Float, &[3, 3, 1, 2])?,
            random.tensor(second, &[2, 4, 5, 2])?,
            boxes()?,
            numbers(&[1, 0, 1])?,
        ]],
        "ResizeNearestNeighborGrad" => vec![vec![random.tensor(t, &[2, 7, 3, 3])?, numbers(&[4, 5])?]],
        "AdjustContrastv2" | "AdjustHue" | "AdjustSaturation" => {
            vec![vec![random.tensor(t, &[2, 4, 5, 3])?, Tensor::scalar(0.3f32)]]
        }
        "ExtractImagePatches" => {
            vec![vec![random.tensor(t, &[2, 6, 5, 3])?], vec![random.tensor(t, &[0, 6, 5, 3])?]]
        }
        "ExtractVolumePatches" => vec![vec![random.tensor(t, &[2, 4, 5, 6, 2])?]],
        "RGBToHSV" | "HSVToRGB" => vec![vec![random.tensor(t, &[4, 5, 3])?]],
        "NonMaxSuppressionV2" | "NonMaxSuppressionV3" | "NonMaxSuppressionV4" | "NonMaxSuppressionV5" => {
            let sets = [(0, 3, 0.0), (1, 3, 0.0), (40, 0, 0.0), (40, 7, 0.0), (300, 400, 0.0), (40, 9, 0.5)];
            let mut all = Vec::new();
            for (count, most, sigma) in sets {
                if sigma > 0.0 && types.len() < 6 {
                    continue;
                }
                let [boxes, scores] = overlapping(t, count, random)?;
                let mut set = vec![boxes, scores, Tensor::scalar(most)];
                // The inputs are the overlap threshold, the score threshold, and the sigma of soft non-maximum
                // suppression.
                for (&dtype, value) in types[3..].iter().zip([0.25, -2.0, sigma]) {
                    set.push(random.cast(&Tensor::scalar(value), dtype)?);
                }
                all.push(set);
            }
            all
        }
        "LRN" => vec![vec![random.tensor(t, &[2, 3, 4, 15])?]],
        "LRNGrad" => {
            let mut of = || random.tensor(t, &[2, 3, 4, 15]);
            vec![vec![of()?, of()?, of()?]]
        }
        _ => return Ok(None),
    }))
}

/// Returns three boxes: one inside the image, one that extends beyond its edges, and one that is upside down.
fn boxes() -> Fallible<Tensor> {
    let sides = [0.1f32, 0.2, 0.8, 0.9, -0.3, 0.0, 1.2, 1.0, 0.9, 0.7, 0.1, 0.3];
    Ok(Tensor::from_slice(&sides, graph::Shape::new(&[3, 4])?)?)
}

/// Returns boxes and their scores. Many boxes overlap, their corners are in any order and some are NaN; many
/// scores are equal.
fn overlapping(t: DType, count: usize, random: &mut Random) -> Fallible<[Tensor; 2]> {
    let mut boxes = random.tensor(DType::Double, &[count, 4])?;
    for sides in boxes.values_mut::<f64>()?.chunks_exact_mut(4).skip(9).step_by(17) {
        sides[1] = f64::NAN;
    }
    let levels = random.indices(DType::Double, &[count], 20)?;
    let scores: Vec<f64> = levels.values::<f64>()?.iter().map(|level| level / 4.0 - 2.5).collect();
    Ok([random.cast(&boxes, t)?, random.cast(&Tensor::vector(&scores)?, t)?])
}
