//! Sums and means, over segments, of rows selected by index.

use crate::numeric::dispatch::{FLOATS, INDEX, REALS, dispatch};
use crate::numeric::scalar::{Arithmetic, Semiring as _};
use crate::numeric::widen::{Lane, narrowed};
use crate::plan::sparse_segment::{GradientRows, selected_rows, sorted_segments};
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::{DType, Element as _, Shape, Tensor};

/// The divisor of a segment's sum.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Divisor {
    One,
    Count,
    RootOfCount,
}
use Divisor::{Count, One, RootOfCount};

const SUM: &[(&str, &[DType])] = &[("T", REALS), ("Tidx", INDEX), ("Tsegmentids", INDEX)];
const MEAN: &[(&str, &[DType])] = &[("T", FLOATS), ("Tidx", INDEX), ("Tsegmentids", INDEX)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("SparseSegmentSum", SUM, |i| forward(i, One)),
    KernelDef::of("SparseSegmentMean", MEAN, |i| forward(i, Count)),
    KernelDef::of("SparseSegmentSqrtN", MEAN, |i| forward(i, RootOfCount)),
    KernelDef::of("SparseSegmentSumWithNumSegments", SUM, |i| forward(i, One)),
    KernelDef::of("SparseSegmentMeanWithNumSegments", MEAN, |i| forward(i, Count)),
    KernelDef::of("SparseSegmentSqrtNWithNumSegments", MEAN, |i| forward(i, RootOfCount)),
    KernelDef::of("SparseSegmentSumGrad", MEAN, |i| backward(i, One)),
    KernelDef::of("SparseSegmentMeanGrad", MEAN, |i| backward(i, Count)),
    KernelDef::of("SparseSegmentSqrtNGrad", MEAN, |i| backward(i, RootOfCount)),
    KernelDef::of("SparseSegmentSumGradV2", MEAN, |i| backward(i, One)),
    KernelDef::of("SparseSegmentMeanGradV2", MEAN, |i| backward(i, Count)),
    KernelDef::of("SparseSegmentSqrtNGradV2", MEAN, |i| backward(i, RootOfCount)),
];

impl Divisor {
    /// Returns the divisor of the sum of `count` rows; `None` for 1.
    fn of(self, count: usize) -> Option<f64> {
        match self {
            One => None,
            Count => Some(count as f64),
            RootOfCount => Some((count as f64).sqrt()),
        }
    }
}

fn forward(init: &KernelInit<'_>, divisor: Divisor) -> Result<Kernel> {
    let (dtype, types) = (init.output_type(0), [init.input_type(1), init.input_type(2)]);
    let sum = dispatch!(real, dtype, T => Ok(sums::<T> as Sums))?;
    Kernel::sync(move |ctx| {
        let (segments, shape) = sorted_segments(ctx, types)?;
        let (data, indices) = (ctx.input(0)?, ctx.input(1)?.to_i64s()?);
        let (count, row) = (data.shape()[0], shape[1..].iter().product::<usize>());
        let mut out = Tensor::zeros(dtype, shape)?;
        if let Some(i) = indices.iter().position(|&i| !(0..count as i64).contains(&i)) {
            invalid!("indices[{i}] == {} out of range [0, {count})", indices[i]);
        }
        sum(&mut out, data, row, [&segments, &indices], divisor)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// A function `(out, data, row, [segments, indices], divisor)` that sets the rows of `out`, which have `row` elements,
/// to the sums of the rows of `data` at `indices` by segment, divided by `divisor`.
type Sums = fn(&mut Tensor, &Tensor, usize, [&[i64]; 2], Divisor) -> Result<()>;

fn sums<T: Lane<Wide: Arithmetic + num_traits::NumCast>>(
    out: &mut Tensor,
    data: &Tensor,
    row: usize,
    [segments, indices]: [&[i64]; 2],
    divisor: Divisor,
) -> Result<()> {
    let (values, results) = (data.values::<T>()?, out.values_mut::<T>()?);
    let mut wide = vec![T::Wide::ZERO; row];
    let mut start = 0;
    for group in segments.chunk_by(|a, b| a == b) {
        wide.fill(T::Wide::ZERO);
        for &index in &indices[start..start + group.len()] {
            let index = index as usize;
            for (sum, v) in wide.iter_mut().zip(&values[index * row..(index + 1) * row]) {
                *sum = sum.plus(v.to_wide());
            }
        }
        let by = divisor.of(group.len()).and_then(num_traits::cast::<_, T::Wide>);
        let segment = group[0] as usize;
        for (o, &sum) in results[segment * row..(segment + 1) * row].iter_mut().zip(&wide) {
            *o = T::of_wide(by.map_or(sum, |by| sum.over(by)));
        }
        start += group.len();
    }
    Ok(())
}

/// Makes the kernel that computes the gradient of each row of the data: the sum of the scaled gradients of its
/// segments. If there is a second output, output 0 has only the selected rows, and output 1 their row numbers.
fn backward(init: &KernelInit<'_>, divisor: Divisor) -> Result<Kernel> {
    let compact = init.outputs.len() > 1;
    let spread = dispatch!(float, init.output_type(0), T => Ok(spread::<T> as Spread))?;
    Kernel::sync(move |ctx| {
        let (GradientRows { segments, counts, rows }, picked) = selected_rows(ctx)?;
        let grad = ctx.input(0)?;
        let (out_rows, targets) = match compact {
            true => (picked.rows.len(), &picked.places),
            false => (rows, &picked.indices),
        };
        let mut dims = vec![out_rows];
        dims.extend_from_slice(&grad.shape()[1..]);
        let scale = |&count: &usize| 1.0 / divisor.of(count.max(1)).unwrap_or(1.0);
        let scales: Vec<f64> = counts.iter().map(scale).collect();
        let out = spread(grad, Shape::new(&dims)?, [targets, &segments], &scales)?;
        let dtype = ctx.input(1)?.dtype();
        ctx.set_output(0, out);
        if compact {
            ctx.set_output(1, crate::plan::shape::integers(dtype, &picked.rows)?);
        }
        Ok(())
    })
}

type Spread = fn(&Tensor, Shape, [&[i64]; 2], &[f64]) -> Result<Tensor>;

/// Returns a tensor of `shape` in which the gradient of segment `segments[i]`, times the segment's scale, is added to
/// row `targets[i]` for each `i`.
fn spread<T: Lane<Wide: Arithmetic + num_traits::NumCast>>(
    grad: &Tensor,
    shape: Shape,
    [targets, segments]: [&[i64]; 2],
    scales: &[f64],
) -> Result<Tensor> {
    let row: usize = shape[1..].iter().product();
    let mut wide = Tensor::zeros(T::Wide::DTYPE, shape)?;
    let (values, sums) = (grad.values::<T>()?, wide.values_mut::<T::Wide>()?);
    for (&target, &segment) in targets.iter().zip(segments) {
        let (target, segment) = (target as usize, segment as usize);
        let scale = num_traits::cast::<_, T::Wide>(scales[segment]).unwrap_or(T::Wide::ONE);
        let from = &values[segment * row..(segment + 1) * row];
        for (sum, v) in sums[target * row..(target + 1) * row].iter_mut().zip(from) {
            *sum = sum.plus(v.to_wide().times(scale));
        }
    }
    narrowed::<T>(wide)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::run_op;

    #[test]
    fn the_number_of_rows_must_fit_the_index_dtypes() -> Result<()> {
        let said = |last: i64, indices: Tensor, types: [DType; 2]| -> Result<String> {
            let attrs =
                [("T", DType::Float.into()), ("Tidx", types[0].into()), ("Tsegmentids", types[1].into())];
            let segments = match types[1] {
                DType::Int64 => Tensor::vector(&[last])?,
                _ => Tensor::vector(&[last as i32])?,
            };
            let out = run_op("SparseSegmentSum", &[Tensor::vector(&[1f32])?, indices, segments], &attrs);
            Ok(out.err().map(|e| e.to_string()).unwrap_or_default())
        };
        let (short, long) = (Tensor::vector(&[0i32])?, Tensor::vector(&[0i64])?);
        let limit = "Last segment id must be < kintmax, got 1099511627776 limit 2147483647";
        assert_eq!(said(1 << 40, short, [DType::Int32, DType::Int64])?, limit);
        let most = i64::from(i32::MAX);
        assert_eq!(said(most, long, [DType::Int64, DType::Int32])?, "segment ids must be >= 0");
        Ok(())
    }

    #[test]
    fn a_gradient_without_rows_ignores_the_indices() -> Result<()> {
        let inputs = [
            Tensor::vector(&[1f32, 2.0])?,
            Tensor::vector(&[4i32, 1])?,
            Tensor::vector(&[0i32, 1])?,
            Tensor::from(0i32),
        ];
        let attrs = [("T", DType::Float.into())];
        let out = run_op("SparseSegmentSumGrad", &inputs, &attrs)?;
        assert_eq!(out, [Tensor::vector::<f32>(&[])?]);
        let [grad, indices, segments, rows] = inputs;
        let rows = rows.reshaped(Shape::new(&[1])?)?;
        assert!(run_op("SparseSegmentSumGrad", &[grad, indices, segments, rows], &attrs).is_err());
        Ok(())
    }
}
