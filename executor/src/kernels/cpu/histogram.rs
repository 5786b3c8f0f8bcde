//! Counting and placing values among bounds and bins.

use super::dispatch::{INDEX, REALS, dispatch};
use super::scalar::Arithmetic;
use crate::error::Result;
use crate::invalid;
use crate::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
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

/// The bounds of buckets, in order.
pub(in crate::kernels) fn boundaries(init: &KernelInit<'_>) -> Result<Vec<f32>> {
    let bounds: Vec<f32> = init.attr("boundaries")?;
    if bounds.windows(2).any(|w| w[1] < w[0]) {
        invalid!("Expected sorted boundaries");
    }
    Ok(bounds)
}

fn bucketize<T: Element + ToPrimitive>(ctx: &mut KernelContext<'_>, bounds: &[f32]) -> Result<()> {
    let input = ctx.input(0)?;
    let mut out = ctx.allocate(Int32, input.shape().clone())?;
    for (o, v) in out.values_mut::<i32>()?.iter_mut().zip(input.values::<T>()?) {
        // A value that is no number is above all bounds, as none is above it.
        let value = v.to_f64().unwrap_or(f64::NAN);
        let is_below = |bound: &f32| {
            let order = value.partial_cmp(&f64::from(*bound));
            order != Some(Ordering::Less)
        };
        *o = bounds.partition_point(is_below) as i32;
    }
    ctx.set_output(0, out);
    Ok(())
}

fn counts(dtype: DType, counts: &[i64]) -> Result<Tensor> {
    Ok(match dtype {
        Int64 => Tensor::vector(counts)?,
        _ => Tensor::vector(&counts.iter().map(|&c| c as i32).collect::<Vec<_>>())?,
    })
}

fn fixed_width<T: Element + ToPrimitive>(ctx: &mut KernelContext<'_>, dtype: DType) -> Result<()> {
    let (values, range, bins) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if range.shape().rank() != 1 || range.num_elements() != 2 {
        invalid!("value_range should be a vector of 2 elements, got shape {}", range.shape());
    }
    if bins.shape().rank() != 0 {
        invalid!("nbins should be a scalar, got shape {}", bins.shape());
    }
    let bins = bins.item::<i32>()?;
    if bins <= 0 {
        invalid!("nbins should be a positive number, but got '{bins}'");
    }
    let number = |v: T| v.to_f64().unwrap_or(f64::NAN);
    let (low, high) = (number(range.values::<T>()?[0]), number(range.values::<T>()?[1]));
    if low >= high || low.is_nan() || high.is_nan() {
        invalid!("value_range should satisfy value_range[0] < value_range[1], but got '[{low}, {high}]'");
    }
    // Into a single bin everything goes.
    if bins > 1 && values.values::<T>()?.iter().any(|&v| number(v).is_nan()) {
        invalid!("Histogram values must not contain NaN");
    }
    let mut all = Tensor::zeros(Int64, Shape::new(&[bins as usize])?)?;
    let found = all.values_mut::<i64>()?;
    let step = (high - low) / f64::from(bins);
    for &v in values.values::<T>()? {
        let bin = ((number(v) - low) / step).floor();
        // What is outside counts to the first or the last bin.
        let bin = if bin > 0.0 { (bin as usize).min(bins as usize - 1) } else { 0 };
        found[bin] += 1;
    }
    let out = counts(dtype, found)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Sums of weights (ones, where there are none) by number; of a matrix, row by row.
fn bincount<T: Arithmetic>(ctx: &mut KernelContext<'_>, binary: bool) -> Result<()> {
    let (input, size, weights) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    let dense = ctx.node().op.name() == "DenseBincount";
    if dense && input.shape().rank() > 2 {
        invalid!("Shape must be at most rank 2 but is rank {}", input.shape().rank());
    }
    if size.shape().rank() != 0 {
        invalid!("Shape must be rank 0 but is rank {}", size.shape().rank());
    }
    let size = size.to_i64s()?[0];
    let Ok(bins) = usize::try_from(size) else { invalid!("size ({size}) must be non-negative") };
    let weighted = weights.num_elements() > 0;
    let alike =
        if dense { weights.shape() == input.shape() } else { weights.num_elements() == input.num_elements() };
    if weighted && !alike {
        invalid!(
            "`weights` must be the same shape as `arr` or a length-0 `Tensor`, in which case it acts as all \
            weights equal to 1. Received {}",
            weights.shape()
        );
    }
    let (rows, columns) = match (dense, input.shape().dims()) {
        (true, &[rows, columns]) => (Some(rows), columns),
        _ => (None, input.num_elements()),
    };
    let shape = rows.map_or_else(|| vec![bins], |rows| vec![rows, bins]);
    let mut out = Tensor::zeros(T::DTYPE, Shape::new(&shape)?)?;
    let (sums, weights, numbers) = (out.values_mut::<T>()?, weights.values::<T>()?, input.to_i64s()?);
    for (i, &number) in numbers.iter().enumerate() {
        let Ok(bin) = usize::try_from(number) else { invalid!("Input arr must be non-negative!") };
        if bin >= bins {
            continue;
        }
        let place = &mut sums[rows.map_or(0, |_| i / columns) * bins + bin];
        *place = match (binary, weighted) {
            (true, _) => T::ONE,
            (_, true) => place.plus(weights[i]),
            _ => place.plus(T::ONE),
        };
    }
    ctx.set_output(0, out);
    Ok(())
}

fn bound(init: &KernelInit<'_>, upper: bool) -> Result<Kernel> {
    let dtype = init.output_type(0);
    dispatch!(real, init.input_type(0), T => Kernel::sync(move |ctx| bound_of::<T>(ctx, upper, dtype)))
}

/// How many lead, found by halves: of inputs that are not sorted, as the C++ library's search finds it.
fn halved<T>(inputs: &[T], is_before: impl Fn(&T) -> bool) -> usize {
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

/// Row by row, the first place among sorted inputs that is not less than the value, or that is greater.
fn bound_of<T: Element + PartialOrd>(ctx: &mut KernelContext<'_>, upper: bool, dtype: DType) -> Result<()> {
    let (sorted, values) = (ctx.input(0)?, ctx.input(1)?);
    let (&[rows, width], &[value_rows, count]) = (sorted.shape().dims(), values.shape().dims()) else {
        invalid!("sorted input and values must be matrices, got {} and {}", sorted.shape(), values.shape());
    };
    if rows != value_rows {
        invalid!("Leading dim_size of both tensors must match.");
    }
    if dtype == Int32 && width >= i32::MAX as usize {
        invalid!("width of sorted inputs must be below {}", i32::MAX);
    }
    let (inputs, wanted) = (sorted.values::<T>()?, values.values::<T>()?);
    let mut places = Vec::with_capacity(rows * count);
    for row in 0..rows {
        let inputs = &inputs[row * width..(row + 1) * width];
        for value in &wanted[row * count..(row + 1) * count] {
            // No value is less than one that is no number.
            let is_before =
                |x: &T| if upper { value.partial_cmp(x) != Some(Ordering::Less) } else { x < value };
            places.push(halved(inputs, is_before) as i64);
        }
    }
    let out = counts(dtype, &places)?.reshaped(values.shape().clone())?;
    ctx.set_output(0, out);
    Ok(())
}
