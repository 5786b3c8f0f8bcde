//! Inputs for ops that move elements, such as SpaceToBatch, MatrixDiag, DynamicPartition and ReverseSequence.

use super::{Fallible, Random, WithInt, numbers};
use graph::{DType, Shape, Tensor};

pub(super) fn inputs(name: &str, types: &[DType], random: &mut Random) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    let t = types.first().copied().unwrap_or(DType::Float);
    let second = types.get(1).copied().unwrap_or(t);
    let pairs = |values: &[i32], dtype| -> Fallible<Tensor> {
        Tensor::from_slice(values, Shape::new(&[values.len() / 2, 2])?)?.with_int(dtype)
    };
    let diagonals = [numbers(&[0])?, numbers(&[1])?, numbers(&[-1, 1])?];
    let one = Tensor::scalar(-1i32);
    Ok(Some(match name {
        "SpaceToDepth" => {
            vec![vec![random.tensor(t, &[2, 4, 6, 3])?], vec![random.tensor(t, &[0, 4, 6, 3])?]]
        }
        "DepthToSpace" => vec![vec![random.tensor(t, &[2, 2, 3, 8])?]],
        "SpaceToBatchND" => {
            let paddings = pairs(&[1, 1, 0, 1], types[2])?;
            vec![vec![random.tensor(t, &[2, 4, 5, 3])?, numbers(&[2, 3])?.with_int(second)?, paddings]]
        }
        "BatchToSpaceND" => {
            let crops = pairs(&[1, 1, 0, 1], types[2])?;
            vec![vec![random.tensor(t, &[12, 3, 2, 3])?, numbers(&[2, 3])?.with_int(second)?, crops]]
        }
        "SpaceToBatch" => vec![vec![random.tensor(t, &[2, 4, 5, 3])?, pairs(&[0, 0, 0, 1], second)?]],
        "BatchToSpace" => vec![vec![random.tensor(t, &[8, 2, 3, 3])?, pairs(&[0, 1, 1, 0], second)?]],
        "Reverse" => {
            let which = Tensor::bools(&[true, false, true], Shape::new(&[3])?)?;
            vec![vec![random.tensor(t, &[2, 3, 4])?, which]]
        }
        "MirrorPad" => vec![
            vec![random.tensor(t, &[3, 4])?, pairs(&[1, 2, 0, 3], second)?],
            vec![random.tensor(t, &[2, 3, 2, 5])?, pairs(&[0, 1, 2, 0, 1, 1, 3, 4], second)?],
            vec![random.tensor(t, &[3])?, pairs(&[0, 0], second)?],
        ],
        "MirrorPadGrad" => vec![
            vec![random.tensor(t, &[6, 7])?, pairs(&[1, 2, 0, 3], second)?],
            vec![random.tensor(t, &[3, 5, 4, 12])?, pairs(&[0, 1, 2, 0, 1, 1, 3, 4], second)?],
        ],
        "Roll" => {
            let of = |values: &[i32], dtype| numbers(values)?.with_int(dtype);
            vec![
                vec![random.tensor(t, &[7])?, of(&[3], second)?, of(&[0], types[2])?],
                vec![random.tensor(t, &[3, 4, 5])?, of(&[-1, 7, 2], second)?, of(&[0, 2, 2], types[2])?],
                vec![random.tensor(t, &[0, 4])?, of(&[1], second)?, of(&[1], types[2])?],
            ]
        }
        "Cross" => vec![
            vec![random.tensor(t, &[3])?, random.tensor(t, &[3])?],
            vec![random.tensor(t, &[2, 4, 3])?, random.tensor(t, &[2, 4, 3])?],
            vec![random.tensor(t, &[0, 3])?, random.tensor(t, &[0, 3])?],
        ],
        "Diag" => vec![vec![random.tensor(t, &[3])?], vec![random.tensor(t, &[2, 3])?]],
        "DiagPart" => vec![vec![random.tensor(t, &[3, 3])?], vec![random.tensor(t, &[2, 3, 2, 3])?]],
        "MatrixBandPart" => {
            let of = |value: i32| Tensor::scalar(value).with_int(second);
            let x = random.tensor(t, &[2, 4, 5])?;
            vec![vec![x.clone(), of(1)?, of(-1)?], vec![x, of(0)?, of(2)?]]
        }
        "MatrixDiag" | "BatchMatrixDiag" => vec![vec![random.tensor(t, &[2, 3])?]],
        "MatrixDiagPart" | "BatchMatrixDiagPart" => vec![vec![random.tensor(t, &[2, 3, 4])?]],
        "MatrixSetDiag" | "BatchMatrixSetDiag" => {
            vec![vec![random.tensor(t, &[2, 3, 4])?, random.tensor(t, &[2, 3])?]]
        }
        "MatrixDiagV2" | "MatrixDiagV3" => {
            let mut all = Vec::new();
            for k in diagonals {
                let dims: &[usize] = if k.num_elements() == 2 { &[2, 3, 3] } else { &[2, 3] };
                let padding = random.tensor(t, &[])?;
                all.push(vec![random.tensor(t, dims)?, k, one.clone(), one.clone(), padding]);
            }
            all
        }
        "MatrixDiagPartV2" | "MatrixDiagPartV3" => {
            let mut all = Vec::new();
            for k in diagonals {
                all.push(vec![random.tensor(t, &[2, 3, 4])?, k, random.tensor(t, &[])?]);
            }
            all
        }
        "MatrixSetDiagV2" | "MatrixSetDiagV3" => {
            let mut all = Vec::new();
            for k in diagonals {
                let dims: &[usize] = if k.num_elements() == 2 { &[2, 3, 3] } else { &[2, 3] };
                all.push(vec![random.tensor(t, &[2, 3, 4])?, random.tensor(t, dims)?, k]);
            }
            all
        }
        "ReverseSequence" => {
            vec![vec![random.tensor(t, &[3, 2, 5, 2])?, numbers(&[5, 0, 3])?.with_int(second)?]]
        }
        "DynamicPartition" => vec![
            vec![random.tensor(t, &[6, 3])?, random.indices(second, &[6], 2)?],
            vec![random.tensor(t, &[6])?, numbers(&[1, 1, 1, 1, 1, 1])?],
        ],
        "DynamicStitch" | "ParallelDynamicStitch" => {
            let data = types.get(2).copied().unwrap_or(t);
            // The index 0 occurs twice, and the indices 1 and 3 do not occur.
            let second = numbers(&[5, 0])?.reshaped(Shape::new(&[2, 1])?)?;
            let rows = [random.tensor(data, &[3, 2])?, random.tensor(data, &[2, 1, 2])?];
            let [first_rows, second_rows] = rows;
            vec![vec![numbers(&[4, 0, 2])?, second, first_rows, second_rows]]
        }
        "TensorStridedSliceUpdate" => {
            let of = |values: &[i32]| numbers(values)?.with_int(second);
            let x = random.tensor(t, &[6, 5])?;
            let bounds = [of(&[4, 0])?, of(&[0, 4])?, of(&[-2, 3])?];
            let with =
                |value| vec![x.clone(), bounds[0].clone(), bounds[1].clone(), bounds[2].clone(), value];
            vec![with(random.tensor(t, &[2, 2])?), with(random.tensor(t, &[2])?)]
        }
        "Unique" | "UniqueWithCounts" => vec![vec![random.tensor(t, &[9])?]],
        "UniqueV2" | "UniqueWithCountsV2" => {
            vec![vec![random.tensor(t, &[5, 2])?, numbers(&[0])?.with_int(second)?]]
        }
        "FakeParam" => vec![vec![]],
        "ToBool" => vec![vec![random.tensor(t, &[])?]],
        "Where" => vec![vec![random.tensor(t, &[3, 4])?]],
        "SparseToDense" => {
            let of = |values: &[i32], dims: &[usize]| -> Fallible<Tensor> {
                Tensor::from_slice(values, Shape::new(dims)?)?.with_int(t)
            };
            let value = types.get(2).copied().unwrap_or(DType::Float);
            let (indices, shape) = (of(&[0, 1, 1, 0, 2, 2], &[3, 2])?, of(&[3, 3], &[2])?);
            let default = random.tensor(value, &[])?;
            vec![
                vec![indices.clone(), shape.clone(), random.tensor(value, &[3])?, default.clone()],
                vec![indices, shape, random.tensor(value, &[])?, default],
            ]
        }
        _ => return Ok(None),
    }))
}
