//! Inputs for ops on rows: segments, scatter updates, cumulative sums, sparse matrices, largest elements.

use super::{Fallible, Random, WithInt, numbers};
use graph::{DType, Shape, Tensor};

pub(super) fn inputs(name: &str, types: &[DType], random: &mut Random) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    let t = types.first().copied().unwrap_or(DType::Float);
    let second = types.get(1).copied().unwrap_or(t);
    let third = types.get(2).copied().unwrap_or(t);
    Ok(Some(match name {
        "UnsortedSegmentSum" | "UnsortedSegmentProd" | "UnsortedSegmentMax" | "UnsortedSegmentMin" => {
            let count = Tensor::scalar(4i32).with_int(third)?;
            // The last segment has no rows.
            vec![vec![random.tensor(t, &[6, 2])?, random.indices(second, &[6], 3)?, count]]
        }
        "SegmentSum" | "SegmentMean" | "SegmentProd" | "SegmentMax" | "SegmentMin" => {
            let ids = numbers(&[0, 0, 1, 3, 3, 3])?.with_int(second)?;
            vec![
                vec![random.tensor(t, &[6, 2])?, ids],
                vec![random.tensor(t, &[0, 2])?, numbers(&[])?.with_int(second)?],
            ]
        }
        "SparseSegmentSum" | "SparseSegmentMean" | "SparseSegmentSqrtN" => {
            let ids = numbers(&[0, 0, 1, 3])?.with_int(third)?;
            vec![vec![random.tensor(t, &[5, 2])?, random.indices(second, &[4], 5)?, ids]]
        }
        name if name.starts_with("SparseSegment") && name.ends_with("WithNumSegments") => {
            let ids = numbers(&[0, 0, 1, 3])?.with_int(third)?;
            let count = Tensor::scalar(6i32).with_int(types[3])?;
            vec![vec![random.tensor(t, &[5, 2])?, random.indices(second, &[4], 5)?, ids, count]]
        }
        name if name.starts_with("SparseSegment") && name.contains("Grad") => {
            let of = |values: &[i32], dtype| numbers(values)?.with_int(dtype);
            let mut all = Vec::new();
            for (indices, ids, rows) in [
                (&[3, 0, 3, 1][..], &[0, 1, 1, 2][..], 5),
                (&[4, 4, 4, 4, 4, 0], &[2, 2, 2, 0, 0, 0], 6),
                (&[], &[], 4),
                (&[0, 1], &[0, 1], 0),
            ] {
                // Only the V2 ops accept an output without rows, because every row index of the other ops would be
                // out of range.
                if rows == 0 && !name.ends_with("V2") {
                    continue;
                }
                let (indices, ids) = (of(indices, second)?, of(ids, third)?);
                all.push(vec![random.tensor(t, &[3, 2])?, indices, ids, Tensor::scalar(rows)]);
            }
            all
        }
        "TensorScatterUpdate" => {
            let indices = numbers(&[4, 0, 2])?.reshaped(Shape::new(&[3, 1])?)?.with_int(second)?;
            vec![vec![random.tensor(t, &[5, 2])?, indices, random.tensor(t, &[3, 2])?]]
        }
        "TensorScatterAdd"
        | "TensorScatterSub"
        | "TensorScatterMin"
        | "TensorScatterMax"
        | "ScatterNdNonAliasingAdd" => {
            let indices = random.indices(second, &[4, 2], 3)?;
            vec![vec![random.tensor(t, &[3, 3, 2])?, indices, random.tensor(t, &[4, 2])?]]
        }
        "Multinomial" | "StatelessMultinomial" => {
            let mut all = Vec::new();
            for (dims, samples) in [([3, 5], 7i32), ([2, 700], 300), ([0, 4], 2)] {
                let mut set = vec![random.tensor(t, &dims)?, Tensor::scalar(samples)];
                if types.len() > 2 {
                    set.push(numbers(&[3, 4])?.with_int(types[2])?);
                }
                all.push(set);
            }
            all
        }
        "FakeQuantWithMinMaxVars" | "FakeQuantWithMinMaxVarsGradient" => {
            let mut all = Vec::new();
            for (ends, dims) in [([-1.0f32, 2.0], &[3, 400][..]), ([0.0, 0.0], &[7]), ([0.5, 2.0], &[0, 3])] {
                let mut set = vec![random.tensor(t, dims)?, Tensor::scalar(ends[0]), Tensor::scalar(ends[1])];
                if name.ends_with("Gradient") {
                    set.insert(0, random.tensor(t, dims)?);
                }
                all.push(set);
            }
            all
        }
        "FakeQuantWithMinMaxVarsPerChannel" | "FakeQuantWithMinMaxVarsPerChannelGradient" => {
            let ends = |values: [f32; 3]| Tensor::vector(&values);
            let mut all = Vec::new();
            for dims in [&[3][..], &[70, 3], &[2, 4, 3], &[0, 3]] {
                let mut set = vec![random.tensor(t, dims)?, ends([-1.0, 0.0, 0.5])?, ends([2.0, 0.0, 1.5])?];
                if name.ends_with("Gradient") {
                    set.insert(0, random.tensor(t, dims)?);
                }
                all.push(set);
            }
            all
        }
        "FakeQuantWithMinMaxArgsGradient" => {
            vec![vec![random.tensor(t, &[3, 90])?, random.tensor(t, &[3, 90])?]]
        }
        "Cumsum" | "Cumprod" => {
            let mut all = Vec::new();
            for (dims, axis) in
                [(&[7][..], 0), (&[3, 5], -1), (&[1, 300, 2], 1), (&[0, 3], 0), (&[1, 1000], 1)]
            {
                // `Cumprod` is skipped for long inputs, because products of many numbers overflow each floating-point
                // dtype.
                let x = match name {
                    "Cumprod" if dims.contains(&300) || dims.contains(&1000) => continue,
                    // Long sums have positive terms, which do not cancel each other, because the allowed difference
                    // is relative to the sum.
                    _ if dims.contains(&1000) => random.positive(t, dims)?,
                    _ => random.tensor(t, dims)?,
                };
                all.push(vec![x, Tensor::scalar::<i32>(axis).with_int(second)?]);
            }
            all
        }
        "SparseTensorDenseMatMul" => {
            let indices = numbers(&[0, 1, 2, 3, 1, 0, 2, 0])?.reshaped(Shape::new(&[4, 2])?)?.with_int(t)?;
            let shape = numbers(&[3, 4])?.with_int(DType::Int64)?;
            vec![vec![indices, random.tensor(second, &[4])?, shape, random.tensor(second, &[4, 5])?]]
        }
        "SparseReorder" => {
            let [indices, shape] = sparse(&[2, 1, 0, 3, 0, 1, 1, 2])?;
            vec![vec![indices, random.tensor(second, &[4])?, shape]]
        }
        "SparseReshape" => {
            let [indices, shape] = sparse(&[0, 1, 0, 3, 1, 2, 2, 1])?;
            vec![vec![indices, shape, Tensor::vector(&[2i64, -1])?]]
        }
        "SparseSlice" => {
            let [indices, shape] = sparse(&[0, 1, 0, 3, 1, 2, 2, 1])?;
            let (start, size) = (Tensor::vector(&[0i64, 1])?, Tensor::vector(&[2i64, 2])?);
            vec![vec![indices, random.tensor(second, &[4])?, shape, start, size]]
        }
        "SparseSplit" => {
            let [indices, shape] = sparse(&[0, 1, 0, 3, 1, 2, 2, 1])?;
            vec![vec![Tensor::scalar(1i64), indices, random.tensor(third, &[4])?, shape]]
        }
        "SparseConcat" => {
            let [indices, shape] = sparse(&[0, 1, 0, 3, 1, 2, 2, 1])?;
            let values = types[types.len() / 3];
            let mut set = vec![indices; types.len() / 3];
            for _ in 0..set.len() {
                set.push(random.tensor(values, &[4])?);
            }
            set.extend(vec![shape; types.len() / 3]);
            vec![set]
        }
        "SparseFillEmptyRows" => {
            let [indices, shape] = sparse(&[0, 1, 0, 3, 2, 2, 2, 1])?;
            vec![vec![indices, random.tensor(second, &[4])?, shape, random.tensor(second, &[])?]]
        }
        "SparseFillEmptyRowsGrad" => {
            vec![vec![Tensor::vector(&[0i64, 2, 3])?, random.tensor(second, &[5])?]]
        }
        "TopKV2" => {
            let mut all = Vec::new();
            for (dims, k) in [(&[3, 40][..], 5), (&[1000], 1), (&[2, 2, 7], 7), (&[3, 4], 0)] {
                all.push(vec![random.tensor(t, dims)?, Tensor::scalar::<i32>(k).with_int(second)?]);
            }
            all
        }
        "Bincount" | "DenseBincount" => {
            let size = Tensor::scalar(4i32).with_int(second)?;
            let shapes: &[&[usize]] =
                if name == "Bincount" { &[&[], &[40], &[0]] } else { &[&[40], &[3, 20], &[3, 0]] };
            let mut all = Vec::new();
            for dims in shapes {
                // The values 4 and 5 have no bin.
                let numbers = random.indices(t, dims, 6)?;
                all.push(vec![numbers.clone(), size.clone(), random.tensor(third, dims)?]);
                all.push(vec![numbers, size.clone(), random.tensor(third, &[0])?]);
            }
            all
        }
        "HistogramFixedWidth" => {
            let of = |values: &[i32], dtype| numbers(values)?.with_int(dtype);
            let mut all = Vec::new();
            for bins in [1i32, 3, 700] {
                all.push(vec![random.tensor(t, &[3, 400])?, of(&[-2, 1], t)?, Tensor::scalar(bins)]);
            }
            all.push(vec![random.edges(t)?, of(&[-2, 1], t)?, Tensor::scalar(1i32)]);
            all.push(vec![random.tensor(t, &[0])?, of(&[-2, 1], t)?, Tensor::scalar(4i32)]);
            all
        }
        "LowerBound" | "UpperBound" => {
            let sorted = numbers(&[0, 0, 1, 2, 2, 2, 3, -2, -1, -1, 0, 1, 1, 1])?;
            let sorted = sorted.reshaped(Shape::new(&[2, 7])?)?.with_int(t)?;
            let edges = random.edges(t)?;
            let count = edges.num_elements();
            let edges = edges.reshaped(Shape::new(&[1, count])?)?;
            vec![
                vec![sorted.clone(), random.tensor(t, &[2, 9])?],
                vec![sorted, random.tensor(t, &[2, 0])?],
                vec![random.tensor(t, &[2, 0])?, random.tensor(t, &[2, 3])?],
                vec![edges.clone(), edges],
            ]
        }
        "TopK" => vec![vec![random.tensor(t, &[3, 40])?]],
        "InTopK" => vec![vec![random.tensor(t, &[6, 5])?, random.indices(second, &[6], 5)?]],
        "InTopKV2" => {
            let k = Tensor::scalar(2i32).with_int(third)?;
            vec![vec![random.tensor(t, &[6, 5])?, random.indices(second, &[6], 6)?, k]]
        }
        _ => return Ok(None),
    }))
}

/// Returns the indices of a sparse 3x4 matrix, from a list of row and column indices, and its dense shape.
fn sparse(places: &[i64]) -> Fallible<[Tensor; 2]> {
    let indices = Tensor::from_slice(places, Shape::new(&[places.len() / 2, 2])?)?;
    Ok([indices, Tensor::vector(&[3i64, 4])?])
}
