//! Histograms, bucketing, counting, and binary search among sorted values.

use crate::numeric::dispatch::{INDEX, REALS, dispatch};
use crate::numeric::scalar::Arithmetic;
use device::Result;
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
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

/// Returns the attribute `boundaries`, which must be sorted.
pub fn boundaries(init: &KernelInit<'_>) -> Result<Vec<f32>> {
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

fn number<T: ToPrimitive>(value: T) -> f64 {
    value.to_f64().unwrap_or(f64::NAN)
}

/// Bins of equal width.
#[derive(Debug)]
pub struct Bins {
    pub count: usize,
    /// The lower bound of the first bin.
    pub low: f64,
    pub width: f64,
}

impl Bins {
    /// Reads the number of bins in input 2 and their range in input 1.
    pub fn of(ctx: &KernelContext<'_>) -> Result<Bins> {
        let (range, bins) = (ctx.input(1)?, ctx.input(2)?);
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
        let [low, high] = dispatch!(real, range.dtype(), T => {
            let ends = range.values::<T>()?;
            Ok([number(ends[0]), number(ends[1])])
        })?;
        if low >= high || low.is_nan() || high.is_nan() {
            invalid!("value_range should satisfy value_range[0] < value_range[1], but got '[{low}, {high}]'");
        }
        Ok(Bins { count: bins as usize, low, width: (high - low) / f64::from(bins) })
    }
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

/// The numbers that `Bincount` counts, row by row if they are a matrix.
#[derive(Debug)]
pub struct Counted {
    /// The number of rows of a matrix; `None` if there is a single row.
    pub(crate) rows: Option<usize>,
    /// Numbers in a row.
    pub columns: usize,
    /// The number of bins of a row.
    pub bins: usize,
    /// Set if the numbers have weights.
    pub is_weighted: bool,
}

impl Counted {
    /// Checks the inputs of `Bincount` or `DenseBincount`.
    pub fn of(ctx: &KernelContext<'_>) -> Result<Counted> {
        let (input, size, weights) = (ctx.shape(0)?, ctx.input(1)?, ctx.shape(2)?);
        let dense = ctx.node().op.name() == "DenseBincount";
        if dense && input.rank() > 2 {
            invalid!("Shape must be at most rank 2 but is rank {}", input.rank());
        }
        if size.shape().rank() != 0 {
            invalid!("Shape must be rank 0 but is rank {}", size.shape().rank());
        }
        let size = size.to_i64s()?[0];
        let Ok(bins) = usize::try_from(size) else { invalid!("size ({size}) must be non-negative") };
        let is_weighted = weights.num_elements() > 0;
        let has_matching_shape =
            if dense { weights == input } else { weights.num_elements() == input.num_elements() };
        if is_weighted && !has_matching_shape {
            invalid!(
                "`weights` must be the same shape as `arr` or a length-0 `Tensor`, in which case it acts as all \
                weights equal to 1. Received {weights}"
            );
        }
        let (rows, columns) = match (dense, input.dims()) {
            (true, &[rows, columns]) => (Some(rows), columns),
            _ => (None, input.num_elements()),
        };
        Ok(Counted { rows, columns, bins, is_weighted })
    }

    /// Returns the shape of the result.
    pub fn shape(&self) -> Result<Shape> {
        Ok(match self.rows {
            Some(rows) => Shape::new(&[rows, self.bins])?,
            None => Shape::new(&[self.bins])?,
        })
    }
}

/// `Bincount` and `DenseBincount`: sums the weights (1 without weights) of each number, row by row for a matrix.
/// `binary`: 1 for every number that occurs.
fn bincount<T: Arithmetic>(ctx: &mut KernelContext<'_>, binary: bool) -> Result<()> {
    let counted = Counted::of(ctx)?;
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

/// Returns the elements per row of the sorted inputs and of the values, which must have equally many rows.
pub fn widths(ctx: &KernelContext<'_>, dtype: DType) -> Result<[usize; 2]> {
    let (sorted, values) = (ctx.shape(0)?, ctx.shape(1)?);
    let (&[rows, width], &[value_rows, count]) = (sorted.dims(), values.dims()) else {
        invalid!("sorted input and values must be matrices, got {sorted} and {values}");
    };
    if rows != value_rows {
        invalid!("Leading dim_size of both tensors must match.");
    }
    if dtype == Int32 && width >= i32::MAX as usize {
        invalid!("width of sorted inputs must be below {}", i32::MAX);
    }
    Ok([width, count])
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
