//! Histograms, bucketing, counting, and binary search among sorted values.

mod rows;

use crate::numeric::dispatch::{INDEX, REALS, dispatch};
use crate::numeric::scalar::Arithmetic;
use crate::plan::histogram::{BincountInputs, Bins, boundaries, number, widths};
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::{Error, Result, invalid};
use graph::DType::{self, *};
use graph::{Element, Shape, Tensor};
use num_traits::ToPrimitive;
use std::cmp::Ordering;

const FOUR: &[DType] = &[Int32, Int64, Float, Double];
const COUNT: &[(&str, &[DType])] = &[("T", INDEX), ("output_type", FOUR)];
const BOUNDS: &[(&str, &[DType])] = &[("T", REALS), ("out_type", INDEX)];

/// Evaluates an expression with `$T` bound to the Rust type of a dtype, like [`dispatch!`], but only for the dtypes in
/// [`FOUR`].
macro_rules! dispatch_four {
    ($dtype:expr, $T:ident => $body:expr) => {
        match $dtype {
            Float => Ok({
                type $T = f32;
                $body
            }),
            Double => Ok({
                type $T = f64;
                $body
            }),
            dtype => dispatch!(index, dtype, $T => Ok($body)),
        }
    };
}

use dispatch_four;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Bucketize", &[("T", FOUR)], |init| {
        let bounds = boundaries(init)?;
        let bucketize = dispatch_four!(init.input_type(0), T => bucketize::<T> as Bucketize)?;
        Kernel::sync(move |ctx| {
            let input = ctx.input(0)?;
            let mut out = ctx.allocate(Int32, input.shape().clone())?;
            bucketize(out.values_mut()?, input, &bounds)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("HistogramFixedWidth", &[("T", FOUR), ("dtype", INDEX)], |init| {
        let dtype = init.output_type(0);
        let count = dispatch_four!(init.input_type(0), T => count_in_bins::<T> as CountInBins)?;
        Kernel::sync(move |ctx| {
            let (values, bins) = (ctx.input(0)?, Bins::of(ctx)?);
            let out = counts(dtype, count(values, &bins)?.values()?)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("Bincount", &[("T", FOUR)], |init| count_numbers(init, false)),
    KernelDef::of("DenseBincount", &[("T", FOUR), ("Tidx", INDEX)], |init| {
        count_numbers(init, init.attr::<bool>("binary_output")?)
    }),
    KernelDef::of("SparseBincount", &[("T", FOUR), ("Tidx", INDEX)], rows::sparse_bins),
    KernelDef::of("RaggedBincount", &[("T", FOUR), ("Tidx", INDEX)], rows::ragged_bins),
    KernelDef::of("DenseCountSparseOutput", COUNT, |init| rows::sparse_counts(init, rows::dense_rows)),
    KernelDef::of("SparseCountSparseOutput", COUNT, |init| rows::sparse_counts(init, rows::rows_of_indices)),
    KernelDef::of("RaggedCountSparseOutput", COUNT, |init| rows::sparse_counts(init, rows::ragged_rows)),
    KernelDef::of("LowerBound", BOUNDS, |init| bound(init, false)),
    KernelDef::of("UpperBound", BOUNDS, |init| bound(init, true)),
];

type Bucketize = fn(&mut [i32], &Tensor, &[f32]) -> Result<()>;

fn bucketize<T: Element + ToPrimitive>(out: &mut [i32], input: &Tensor, bounds: &[f32]) -> Result<()> {
    for (o, v) in out.iter_mut().zip(input.values::<T>()?) {
        // NaN belongs to the last bucket, because it is below no boundary.
        let value = number(*v);
        let is_below = |bound: &f32| {
            let order = value.partial_cmp(&f64::from(*bound));
            order != Some(Ordering::Less)
        };
        *o = bounds.partition_point(is_below) as i32;
    }
    Ok(())
}

/// Returns `counts` as a vector of type `dtype`.
fn counts(dtype: DType, counts: &[i64]) -> Result<Tensor> {
    Ok(match dtype {
        Int64 => Tensor::vector(counts)?,
        _ => Tensor::vector(&counts.iter().map(|&c| c as i32).collect::<Vec<_>>())?,
    })
}

type CountInBins = fn(&Tensor, &Bins) -> Result<Tensor>;

/// Returns the number of values in each bin as a tensor.
fn count_in_bins<T: Element + ToPrimitive>(values: &Tensor, bins: &Bins) -> Result<Tensor> {
    let values = values.values::<T>()?;
    // If there is a single bin, it takes all values, NaN included.
    if bins.count > 1 && values.iter().any(|&v| number(v).is_nan()) {
        return Err(Error::invalid("Histogram values must not contain NaN"));
    }
    let mut all = Tensor::zeros(Int64, Shape::new(&[bins.count])?)?;
    let bin_counts = all.values_mut::<i64>()?;
    for &v in values {
        let bin = ((number(v) - bins.low) / bins.width).floor();
        // Values outside the range count towards the first or the last bin.
        let bin = if bin > 0.0 { (bin as usize).min(bins.count - 1) } else { 0 };
        bin_counts[bin] += 1;
    }
    Ok(all)
}

/// Makes the kernel of `Bincount` and `DenseBincount`: for each integer, the sum of the weights of its occurrences (1
/// each if there are no weights), row by row for a matrix; if `binary`, 1 for every integer that occurs.
fn count_numbers(init: &KernelInit<'_>, binary: bool) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let sum = dispatch_four!(dtype, T => sum_weights::<T> as SumWeights)?;
    Kernel::sync(move |ctx| {
        let counted = BincountInputs::of(ctx)?;
        let mut out = Tensor::zeros(dtype, counted.shape()?)?;
        let numbers = ctx.input(0)?.to_i64s()?;
        if numbers.iter().any(|&number| number < 0) {
            invalid!("Input arr must be non-negative!");
        }
        sum(&mut out, &numbers, ctx.input(2)?, &counted, binary)?;
        ctx.set_output(0, out);
        Ok(())
    })
}

type SumWeights = fn(&mut Tensor, &[i64], &Tensor, &BincountInputs, bool) -> Result<()>;

fn sum_weights<T: Arithmetic>(
    out: &mut Tensor,
    numbers: &[i64],
    weights: &Tensor,
    counted: &BincountInputs,
    binary: bool,
) -> Result<()> {
    let (sums, weights) = (out.values_mut::<T>()?, weights.values::<T>()?);
    for (i, &number) in numbers.iter().enumerate() {
        let bin = number as usize;
        if bin >= counted.bins {
            continue;
        }
        let sum = &mut sums[i / counted.columns * counted.bins + bin];
        *sum = match (binary, counted.is_weighted) {
            (true, _) => T::ONE,
            (_, true) => sum.plus(weights[i]),
            _ => sum.plus(T::ONE),
        };
    }
    Ok(())
}

/// Makes the kernel of `LowerBound` and `UpperBound`: for each value of a row, the position of the first element of the
/// sorted row that is not less than the value or, if `upper` is set, greater than the value.
fn bound(init: &KernelInit<'_>, upper: bool) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let find = dispatch!(real, init.input_type(0), T => Ok(bounds_of_rows::<T> as FindBounds))?;
    Kernel::sync(move |ctx| {
        let widths = widths(ctx, dtype)?;
        let (sorted, values) = (ctx.input(0)?, ctx.input(1)?);
        let positions = find(sorted, values, widths, upper)?;
        let out = counts(dtype, &positions)?.reshaped(values.shape().clone())?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Returns the number of leading elements for which `is_before` holds, by binary search. The order of the
/// comparisons is that of the C++ library, so that unsorted inputs give the same result.
fn partition_point<T>(inputs: &[T], is_before: impl Fn(&T) -> bool) -> usize {
    let (mut first, mut len) = (0, inputs.len());
    while len > 0 {
        let half = len / 2;
        if is_before(&inputs[first + half]) {
            first += half + 1;
            len -= half + 1;
        } else {
            len = half;
        }
    }
    first
}

/// A function `(sorted inputs, values, [row length of the inputs, row length of the values], upper)` that returns the
/// position of the lower or upper bound of each value.
type FindBounds = fn(&Tensor, &Tensor, [usize; 2], bool) -> Result<Vec<i64>>;

fn bounds_of_rows<T: Element + PartialOrd>(
    sorted: &Tensor,
    values: &Tensor,
    [width, count]: [usize; 2],
    upper: bool,
) -> Result<Vec<i64>> {
    let rows = values.shape()[0];
    let (inputs, values_to_find) = (sorted.values::<T>()?, values.values::<T>()?);
    let mut positions = Vec::with_capacity(rows * count);
    for row in 0..rows {
        let inputs = &inputs[row * width..(row + 1) * width];
        for value in &values_to_find[row * count..(row + 1) * count] {
            // Comparisons with NaN are false: the lower bound of a NaN value is position 0, its upper bound the end.
            let is_before =
                |x: &T| if upper { value.partial_cmp(x) != Some(Ordering::Less) } else { x < value };
            positions.push(partition_point(inputs, is_before) as i64);
        }
    }
    Ok(positions)
}
