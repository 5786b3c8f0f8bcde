//! Sums, means, products and extremes over segments: rows with the same segment id.

use super::gather::INDICES;
use crate::numeric::dispatch::{INDEX, NUMBERS, REALS, dispatch};
use crate::numeric::scalar::{Arithmetic, Semiring as _, Stored as _};
use crate::plan::gather::position;
use crate::plan::segment::sorted_ids;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result, invalid};
use graph::{DType, Shape, Tensor};
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

fn unsorted(init: &KernelInit<'_>, reduction: Reduction) -> Result<Kernel> {
    if matches!(reduction, Sum | Mean | Prod) {
        return dispatch!(number, init.output_type(0), T => Kernel::sync(move |ctx| match reduction {
            Prod => unsorted_segments::<T>(ctx, T::ONE, T::times),
            _ => unsorted_segments::<T>(ctx, T::ZERO, T::plus),
        }));
    }
    dispatch!(real, init.output_type(0), T => Kernel::sync(move |ctx| {
        match reduction {
            Max => unsorted_segments::<T>(ctx, T::LEAST, |out, v| if v < out { out } else { v }),
            _ => unsorted_segments::<T>(ctx, T::GREATEST, |out, v| if out < v { out } else { v }),
        }
    }))
}

fn greater<T: PartialOrd>(a: T, b: T) -> T {
    if b > a { b } else { a }
}

fn less<T: PartialOrd>(a: T, b: T) -> T {
    if b < a { b } else { a }
}

fn combine<T: Copy>(out: &mut [T], row: &[T], op: &impl Fn(T, T) -> T) {
    for (o, &v) in out.iter_mut().zip(row) {
        *o = op(*o, v);
    }
}

fn unsorted_segments<T: Arithmetic>(
    ctx: &mut KernelContext<'_>,
    start: T,
    op: impl Fn(T, T) -> T,
) -> Result<()> {
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
    let row: usize = dims[1..].iter().product();
    let mut out = ctx.allocate(T::DTYPE, Shape::new(&dims)?)?;
    let sums = out.values_mut::<T>()?;
    sums.fill(start);
    let values = data.values::<T>()?;
    // If rows have no elements, their ids are not checked.
    let ids_of_elements = if values.is_empty() { vec![] } else { ids.to_i64s()? };
    for (i, &id) in ids_of_elements.iter().enumerate() {
        if id < 0 {
            continue;
        }
        let id = id as usize;
        if id >= segments {
            let at = position("segment_ids", ids.shape(), i);
            invalid!("{at} = {id} is out of range [0, {segments})");
        }
        combine(&mut sums[id * row..(id + 1) * row], &values[i * row..(i + 1) * row], &op);
    }
    ctx.set_output(0, out);
    Ok(())
}

fn sorted(init: &KernelInit<'_>, reduction: Reduction) -> Result<Kernel> {
    if matches!(reduction, Sum | Mean | Prod) {
        return dispatch!(number, init.output_type(0), T => Kernel::sync(move |ctx| match reduction {
            Sum => sorted_segments::<T>(ctx, T::ZERO, false, T::plus),
            Mean => sorted_segments::<T>(ctx, T::ZERO, true, T::plus),
            _ => sorted_segments::<T>(ctx, T::ONE, false, T::times),
        }));
    }
    dispatch!(real, init.output_type(0), T => Kernel::sync(move |ctx| {
        match reduction {
            Max => sorted_segments::<T>(ctx, T::ZERO, false, greater),
            _ => sorted_segments::<T>(ctx, T::ZERO, false, less),
        }
    }))
}

/// Reduces sorted segments with `op`; `empty` is the value of a segment without rows.
fn sorted_segments<T: Arithmetic>(
    ctx: &mut KernelContext<'_>,
    empty: T,
    mean: bool,
    op: impl Fn(T, T) -> T,
) -> Result<()> {
    let (ids, shape) = sorted_ids(ctx)?;
    let data = ctx.input(0)?;
    let row: usize = shape[1..].iter().product();
    let mut out: Tensor = ctx.allocate(T::DTYPE, shape)?;
    let sums = out.values_mut::<T>()?;
    sums.fill(empty);
    let values = data.values::<T>()?;
    let mut begin = 0;
    for group in ids.chunk_by(|a, b| a == b) {
        let id = usize::try_from(group[0]).map_err(|_| Error::internal("a segment id is negative"))?;
        let target = &mut sums[id * row..(id + 1) * row];
        target.copy_from_slice(&values[begin * row..(begin + 1) * row]);
        for i in begin + 1..begin + group.len() {
            combine(target, &values[i * row..(i + 1) * row], &op);
        }
        if mean {
            target.iter_mut().for_each(|v| *v = v.over_count(group.len()));
        }
        begin += group.len();
    }
    ctx.set_output(0, out);
    Ok(())
}
