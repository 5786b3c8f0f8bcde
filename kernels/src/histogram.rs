//! Histograms, bucketing, counting, and binary search among sorted values.

use crate::numeric::dispatch::{INDEX, REALS, dispatch};
use crate::numeric::scalar::Arithmetic;
use crate::plan::histogram::{BincountInputs, Bins, boundaries, number, widths};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::DType::{self, *};
use graph::{Element, Shape, Tensor};
use num_traits::ToPrimitive;
use std::cmp::Ordering;

const FOUR: &[DType] = &[Int32, Int64, Float, Double];
const BOUNDS: &[(&str, &[DType])] = &[("T", REALS), ("out_type", INDEX)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Bucketize", &[("T", FOUR)], |init| {
        let bounds = boundaries(init)?;
        dispatch!(real, init.input_type(0), T => Kernel::sync(move |ctx| bucketize::<T>(ctx, &bounds)))
    }),
    KernelDef::of("HistogramFixedWidth", &[("T", FOUR), ("dtype", INDEX)], |init| {
        let dtype = init.output_type(0);
        dispatch!(real, init.input_type(0), T => Kernel::sync(move |ctx| fixed_width::<T>(ctx, dtype)))
    }),
    KernelDef::of(
        "Bincount",
        &[("T", FOUR)],
        |init| dispatch!(real, init.output_type(0), T => Kernel::sync(|ctx| bincount::<T>(ctx, false))),
    ),
    KernelDef::of("DenseBincount", &[("T", FOUR), ("Tidx", INDEX)], |init| {
        let binary: bool = init.attr("binary_output")?;
        dispatch!(real, init.output_type(0), T => Kernel::sync(move |ctx| bincount::<T>(ctx, binary)))
    }),
    KernelDef::of("LowerBound", BOUNDS, |init| bound(init, false)),
    KernelDef::of("UpperBound", BOUNDS, |init| bound(init, true)),
];

fn bucketize<T: Element + ToPrimitive>(ctx: &mut KernelContext<'_>, bounds: &[f32]) -> Result<()> {
    let input = ctx.input(0)?;
    let mut out = ctx.allocate(Int32, input.shape().clone())?;
    for (o, v) in out.values_mut::<i32>()?.iter_mut().zip(input.values::<T>()?) {
        // NaN falls into the last bucket, because it is less than no bound.
        let value = number(*v);
        let is_below = |bound: &f32| {
            let order = value.partial_cmp(&f64::from(*bound));
            order != Some(Ordering::Less)
        };
        *o = bounds.partition_point(is_below) as i32;
    }
    ctx.set_output(0, out);
    Ok(())
}

/// Returns counts as a vector of type `dtype`.
fn counts(dtype: DType, counts: &[i64]) -> Result<Tensor> {
    Ok(match dtype {
        Int64 => Tensor::vector(counts)?,
        _ => Tensor::vector(&counts.iter().map(|&c| c as i32).collect::<Vec<_>>())?,
    })
}

/// `HistogramFixedWidth`: counts the values in each bin.
fn fixed_width<T: Element + ToPrimitive>(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let (values, bins) = (ctx.input(0)?.values::<T>()?, Bins::of(ctx)?);
    // A single bin takes all values, NaN included.
    if bins.count > 1 && values.iter().any(|&v| number(v).is_nan()) {
        invalid!("Histogram values must not contain NaN");
    }
    let mut all = Tensor::zeros(Int64, Shape::new(&[bins.count])?)?;
    let bin_counts = all.values_mut::<i64>()?;
    for &v in values {
        let bin = ((number(v) - bins.low) / bins.width).floor();
        // Values outside the range count towards the first or the last bin.
        let bin = if bin > 0.0 { (bin as usize).min(bins.count - 1) } else { 0 };
        bin_counts[bin] += 1;
    }
    let out = counts(dtype, bin_counts)?;
    ctx.set_output(0, out);
    Ok(())
}

/// `Bincount` and `DenseBincount`: sums the weights (1 without weights) of each number, row by row for a matrix.
/// `binary`: 1 for every number that occurs.
fn bincount<T: Arithmetic>(ctx: &mut KernelContext<'_>, binary: bool) -> Result<()> {
    let counted = BincountInputs::of(ctx)?;
    let mut out = Tensor::zeros(T::DTYPE, counted.shape()?)?;
    let (sums, weights) = (out.values_mut::<T>()?, ctx.input(2)?.values::<T>()?);
    for (i, &number) in ctx.input(0)?.to_i64s()?.iter().enumerate() {
        let Ok(bin) = usize::try_from(number) else { invalid!("Input arr must be non-negative!") };
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
    ctx.set_output(0, out);
    Ok(())
}

fn bound(init: &KernelInit<'_>, upper: bool) -> Result<Kernel> {
    let dtype = init.output_type(0);
    dispatch!(real, init.input_type(0), T => Kernel::sync(move |ctx| bound_of::<T>(ctx, upper, dtype)))
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

/// `LowerBound` and `UpperBound`: for each value of a row, the first position of a sorted input that is not less
/// than the value, or greater than it if `upper`.
fn bound_of<T: Element + PartialOrd>(ctx: &mut KernelContext<'_>, upper: bool, dtype: DType) -> Result<()> {
    let [width, count] = widths(ctx, dtype)?;
    let (sorted, values) = (ctx.input(0)?, ctx.input(1)?);
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
    let out = counts(dtype, &positions)?.reshaped(values.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}
