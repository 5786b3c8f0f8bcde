//! Inputs for ops of images.

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
        "LRN" => vec![vec![random.tensor(t, &[2, 3, 4, 15])?]],
        "LRNGrad" => {
            let mut of = || random.tensor(t, &[2, 3, 4, 15]);
            vec![vec![of()?, of()?, of()?]]
        }
        _ => return Ok(None),
    }))
}

/// Within an image, beyond its edges, and upside down.
fn boxes() -> Fallible<Tensor> {
    let sides = [0.1f32, 0.2, 0.8, 0.9, -0.3, 0.0, 1.2, 1.0, 0.9, 0.7, 0.1, 0.3];
    Ok(Tensor::from_slice(&sides, graph::Shape::new(&[3, 4])?)?)
}
