//! The bins of histograms, and the inputs of the ops that count values per bin.

use crate::numeric::dispatch::dispatch;
use device::kernel::{KernelContext, KernelInit};
use device::{Result, invalid};
use graph::DType::{self, *};
use graph::Shape;
use num_traits::ToPrimitive;

/// Returns the attribute `boundaries`, which must be sorted.
pub fn boundaries(init: &KernelInit<'_>) -> Result<Vec<f32>> {
    let bounds: Vec<f32> = init.attr("boundaries")?;
    if bounds.windows(2).any(|w| w[1] < w[0]) {
        invalid!("Expected sorted boundaries");
    }
    Ok(bounds)
}

pub(crate) fn number<T: ToPrimitive>(value: T) -> f64 {
    value.to_f64().unwrap_or(f64::NAN)
}

/// The bins of a histogram, which have equal width.
#[derive(Debug)]
pub struct Bins {
    pub count: usize,
    /// The lower bound of the first bin.
    pub low: f64,
    pub width: f64,
}

impl Bins {
    /// Reads the range of values that all bins cover from input 1, and the number of bins from input 2.
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

/// The sizes of the inputs of `Bincount`; each row of a matrix is counted separately.
#[derive(Debug)]
pub struct BincountInputs {
    /// The number of rows of the input matrix; `None` if all elements of the input are counted together.
    pub(crate) rows: Option<usize>,
    /// The number of elements per row of the input, each of which adds to a bin.
    pub columns: usize,
    /// The number of bins for each row, or for the whole input.
    pub bins: usize,
    /// Set if each counted element has a weight.
    pub is_weighted: bool,
}

impl BincountInputs {
    /// Checks the inputs of `Bincount` or `DenseBincount`, and returns their sizes.
    pub fn of(ctx: &KernelContext<'_>) -> Result<BincountInputs> {
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
        Ok(BincountInputs { rows, columns, bins, is_weighted })
    }

    /// Returns the output's shape: one count per bin, for each row if rows are counted separately.
    pub fn shape(&self) -> Result<Shape> {
        Ok(match self.rows {
            Some(rows) => Shape::new(&[rows, self.bins])?,
            None => Shape::new(&[self.bins])?,
        })
    }
}

/// Returns the number of elements per row of the sorted sequences in input 0, and of the values in input 1.
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
