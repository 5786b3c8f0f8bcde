//! Sums, means, products and extremes over segments: rows with the same segment id.

use super::gather::INDICES;
use super::reduce::Modular;
use crate::numeric::dispatch::{INDEX, NUMBERS, REALS, dispatch};
use crate::numeric::scalar::{Arithmetic, Semiring as _, Stored};
use crate::plan::gather::position;
use crate::plan::segment::sorted_ids;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::{Result, invalid};
use graph::{DType, Element, Shape, Tensor};
use smallvec::SmallVec;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reduction {
    Sum,
    Mean,
    Prod,
    Max,
    Min,
}
use Reduction::{Max, Mean, Min, Prod, Sum};

const UNSORTED: &[(&str, &[DType])] = &[("T", REALS), ("Tindices", INDICES), ("Tnumsegments", INDEX)];
const SORTED: &[(&str, &[DType])] = &[("T", REALS), ("Tindices", INDEX)];
const UNSORTED_NUMBERS: &[(&str, &[DType])] =
    &[("T", NUMBERS), ("Tindices", INDICES), ("Tnumsegments", INDEX)];
const SORTED_NUMBERS: &[(&str, &[DType])] = &[("T", NUMBERS), ("Tindices", INDEX)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("UnsortedSegmentSum", UNSORTED_NUMBERS, |init| unsorted(init, Sum)),
    KernelDef::of("UnsortedSegmentProd", UNSORTED_NUMBERS, |init| unsorted(init, Prod)),
    KernelDef::of("UnsortedSegmentMax", UNSORTED, |init| unsorted(init, Max)),
    KernelDef::of("UnsortedSegmentMin", UNSORTED, |init| unsorted(init, Min)),
    KernelDef::of("SegmentSum", SORTED_NUMBERS, |init| sorted(init, Sum)),
    KernelDef::of("SegmentMean", SORTED_NUMBERS, |init| sorted(init, Mean)),
    KernelDef::of("SegmentProd", SORTED_NUMBERS, |init| sorted(init, Prod)),
    KernelDef::of("SegmentMax", SORTED, |init| sorted(init, Max)),
    KernelDef::of("SegmentMin", SORTED, |init| sorted(init, Min)),
];

/// The rows of a tensor, with the segment of each row.
struct Rows<'a> {
    /// Rows with a negative id belong to no segment.
    ids: &'a [i64],
    /// The number of elements per row.
    len: usize,
    /// True if the ids ascend; the result of a segment then starts from its first row, not from the value of an empty
    /// segment.
    sorted: bool,
}

/// A function `(out, data, rows)` that sets each row of `out` to the combination of the rows of `data` that form a
/// segment.
type Combine = fn(&mut Tensor, &Tensor, &Rows<'_>) -> Result<()>;

fn unsorted(init: &KernelInit<'_>, reduction: Reduction) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let combine = match reduction {
        Sum | Mean | Prod => dispatch!(number, dtype, T => Ok(sums::<T>(reduction))),
        Max | Min => dispatch!(real, dtype, T => Ok(unsorted_extremes::<T>(reduction))),
    }?;
    Kernel::sync(move |ctx| {
        let (data, ids, count) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        if count.shape().rank() != 0 {
            invalid!("num_segments should be a scalar, not shape {}", count.shape());
        }
        let count = count.to_i64s()?[0];
        let Ok(segments) = usize::try_from(count) else {
            invalid!("Input num_segments == {count} must not be negative.");
        };
        let rank = ids.shape().rank();
        if data.shape().get(..rank) != Some(ids.shape().dims()) {
            invalid!("data.shape = {} does not start with segment_ids.shape = {}", data.shape(), ids.shape());
        }
        let mut dims: SmallVec<[usize; 6]> = SmallVec::from_slice(&[segments]);
        dims.extend_from_slice(&data.shape()[rank..]);
        let len = dims[1..].iter().product();
        let mut out = ctx.allocate(dtype, Shape::new(&dims)?)?;
        // If rows have no elements, their ids are not checked.
        let numbers = if data.num_elements() == 0 { vec![] } else { ids.to_i64s()? };
        if let Some(i) = numbers.iter().position(|&id| id >= count) {
            let at = position("segment_ids", ids.shape(), i);
            invalid!("{at} = {} is out of range [0, {segments})", numbers[i]);
        }
        combine(&mut out, data, &Rows { ids: &numbers, len, sorted: false })?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn sorted(init: &KernelInit<'_>, reduction: Reduction) -> Result<Kernel> {
    let dtype = init.output_type(0);
    let combine = match reduction {
        Sum | Mean | Prod => dispatch!(number, dtype, T => Ok(sums::<T>(reduction))),
        Max | Min => dispatch!(real, dtype, T => Ok(sorted_extremes::<T>(reduction))),
    }?;
    Kernel::sync(move |ctx| {
        let (ids, shape) = sorted_ids(ctx)?;
        let data = ctx.input(0)?;
        let len = shape[1..].iter().product();
        let mut out: Tensor = ctx.allocate(dtype, shape)?;
        combine(&mut out, data, &Rows { ids: &ids, len, sorted: true })?;
        ctx.set_output(0, out);
        Ok(())
    })
}

fn sums<T: Modular>(reduction: Reduction) -> Combine {
    match reduction {
        Mean => |out, data, rows| {
            combine_bits::<T>(out, data, rows, T::Bits::ZERO, T::Bits::plus)?;
            divide::<T>(out.values_mut()?, rows);
            Ok(())
        },
        Prod => |out, data, rows| combine_bits::<T>(out, data, rows, T::Bits::ONE, T::Bits::times),
        _ => |out, data, rows| combine_bits::<T>(out, data, rows, T::Bits::ZERO, T::Bits::plus),
    }
}

fn unsorted_extremes<T: Stored>(reduction: Reduction) -> Combine {
    match reduction {
        Max => |out, data, rows| {
            let greater = |out, v| if v < out { out } else { v };
            combine::<T>(out.values_mut()?, data.values()?, rows, T::LEAST, greater);
            Ok(())
        },
        _ => |out, data, rows| {
            let less = |out, v| if out < v { out } else { v };
            combine::<T>(out.values_mut()?, data.values()?, rows, T::GREATEST, less);
            Ok(())
        },
    }
}

fn sorted_extremes<T: Stored>(reduction: Reduction) -> Combine {
    match reduction {
        Max => |out, data, rows| {
            let greater = |out, v| if v > out { v } else { out };
            combine::<T>(out.values_mut()?, data.values()?, rows, T::ZERO, greater);
            Ok(())
        },
        _ => |out, data, rows| {
            let less = |out, v| if v < out { v } else { out };
            combine::<T>(out.values_mut()?, data.values()?, rows, T::ZERO, less);
            Ok(())
        },
    }
}

/// Combines rows like [`combine`], but computes in the type `T::Bits`, in which the operation gives the same bits.
fn combine_bits<T: Modular>(
    out: &mut Tensor,
    data: &Tensor,
    rows: &Rows<'_>,
    empty: T::Bits,
    op: impl Fn(T::Bits, T::Bits) -> T::Bits,
) -> Result<()> {
    let (out, data) = (out.values_mut::<T>()?, data.values::<T>()?);
    combine(bytemuck::cast_slice_mut(out), bytemuck::cast_slice(data), rows, empty, op);
    Ok(())
}

/// Combines the rows of each segment with `op`; `empty` is the value of a segment without rows.
fn combine<T: Element>(out: &mut [T], data: &[T], rows: &Rows<'_>, empty: T, op: impl Fn(T, T) -> T) {
    out.fill(empty);
    if data.is_empty() {
        return;
    }
    let mut before = None;
    for (&id, row) in rows.ids.iter().zip(data.chunks_exact(rows.len)) {
        let Ok(id) = usize::try_from(id) else { continue };
        let out = &mut out[id * rows.len..(id + 1) * rows.len];
        if rows.sorted && before != Some(id) {
            out.copy_from_slice(row);
        } else {
            out.iter_mut().zip(row).for_each(|(o, &v)| *o = op(*o, v));
        }
        before = Some(id);
    }
}

/// Divides the sum of each segment by the number of its rows.
fn divide<T: Arithmetic>(sums: &mut [T], rows: &Rows<'_>) {
    for group in rows.ids.chunk_by(|a, b| a == b) {
        let id = group[0] as usize;
        let sums = &mut sums[id * rows.len..(id + 1) * rows.len];
        sums.iter_mut().for_each(|v| *v = v.over_count(group.len()));
    }
}
