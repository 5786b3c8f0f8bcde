//! Histograms with exponential buckets, whose limits grow by 10 % each.

use crate::numeric::dispatch::dispatch;
use checkpoint::proto::Writer;
use device::Result;
use graph::{Bool8, DType, Tensor};
use num_traits::ToPrimitive;
use std::sync::OnceLock;

/// Returns the upper limits of the buckets, ascending and symmetric around zero, with magnitudes from 1e-12 to 1e20.
fn limits() -> &'static [f64] {
    static LIMITS: OnceLock<Vec<f64>> = OnceLock::new();
    LIMITS.get_or_init(|| {
        let mut positive = Vec::new();
        let mut limit = 1e-12;
        while limit < 1e20 {
            positive.push(limit);
            limit *= 1.1;
        }
        positive.push(f64::MAX);
        positive.iter().rev().map(|l| -l).chain([0.0]).chain(positive.iter().copied()).collect()
    })
}

/// A histogram, with the fields of `HistogramProto`.
#[derive(Debug)]
pub(crate) struct Histogram {
    min: f64,
    max: f64,
    count: f64,
    sum: f64,
    sum_squares: f64,
    buckets: Vec<f64>,
}

/// The names of a histogram in error messages.
pub(crate) struct HistogramLabel<'a> {
    pub(crate) name: &'a str,
    /// The name used if a value is infinite.
    pub(crate) infinite: &'a str,
}

/// Returns the histogram of a tensor's elements.
///
/// # Errors
/// `InvalidArgument` for NaN and infinite values.
pub(crate) fn of(values: &Tensor, label: &HistogramLabel<'_>) -> Result<Histogram> {
    let mut histogram = Histogram::default();
    if values.dtype() == DType::Bool {
        histogram.add_all(values.values::<Bool8>()?.iter().map(|v| f64::from(v.get())), label)?;
        return Ok(histogram);
    }
    dispatch!(real, values.dtype(), T => {
        histogram.add_all(values.values::<T>()?.iter().map(|v| v.to_f64().unwrap_or(f64::NAN)), label)
    })?;
    Ok(histogram)
}

impl Default for Histogram {
    /// Returns the histogram of no values.
    fn default() -> Histogram {
        Histogram {
            min: f64::MAX,
            max: -f64::MAX,
            count: 0.0,
            sum: 0.0,
            sum_squares: 0.0,
            buckets: vec![0.0; limits().len()],
        }
    }
}

impl Histogram {
    /// Adds a finite value.
    pub(crate) fn push(&mut self, value: f64) {
        self.add(value, limits());
    }

    fn add_all(&mut self, values: impl Iterator<Item = f64>, label: &HistogramLabel<'_>) -> Result<()> {
        let limits = limits();
        let HistogramLabel { name, infinite } = label;
        for value in values {
            if value.is_nan() {
                device::invalid!("Nan in summary histogram for: {name}");
            }
            if value.is_infinite() {
                device::invalid!("Infinity in {infinite} for: {name}");
            }
            self.add(value, limits);
        }
        Ok(())
    }

    fn add(&mut self, value: f64, limits: &[f64]) {
        // The largest finite number belongs to the last bucket.
        let bucket = limits.partition_point(|&limit| limit <= value).min(limits.len() - 1);
        self.buckets[bucket] += 1.0;
        self.min = self.min.min(value);
        self.max = self.max.max(value);
        self.count += 1.0;
        self.sum += value;
        self.sum_squares += value * value;
    }

    /// Writes the histogram as a `HistogramProto`; each run of empty buckets is merged to one.
    pub(crate) fn write(&self, proto: &mut Writer) {
        proto.double(1, self.min).double(2, self.max).double(3, self.count);
        proto.double(4, self.sum).double(5, self.sum_squares);
        let (mut ends, mut counts): (Vec<f64>, Vec<f64>) = (Vec::new(), Vec::new());
        let mut was_empty = false;
        for (&limit, &count) in limits().iter().zip(&self.buckets) {
            let is_empty = count <= 0.0;
            if is_empty && was_empty {
                if let Some(end) = ends.last_mut() {
                    *end = limit;
                }
            } else {
                ends.push(limit);
                counts.push(count);
            }
            was_empty = is_empty;
        }
        proto.packed_doubles(6, &ends).packed_doubles(7, &counts);
    }
}
