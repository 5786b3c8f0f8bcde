//! TopK, NthElement and InTopK: the largest elements along the last axis.

mod heap;

use super::gather::INDICES;
use crate::numeric::dispatch::{INDEX, REALS, dispatch};
use crate::plan::topk::{classified, top_shape};
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result, invalid};
use graph::{Bool8, DType, Element, Shape, Tensor};
use std::cmp::Ordering;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("NthElement", &[("T", REALS)], |init| {
        let reverse = init.attr("reverse")?;
        dispatch!(real, init.input_type(0), T => Kernel::sync(move |ctx| nth::<T>(ctx, reverse)))
    }),
    KernelDef::of("TopKV2", &[("T", REALS), ("Tk", INDICES), ("index_type", INDICES)], |init| {
        let index = init.output_type(1);
        let sorted = init.attr("sorted")?;
        dispatch!(real, init.input_type(0), T => Kernel::sync(move |ctx| {
            let k = ctx.input(1)?;
            if k.shape().rank() != 0 {
                invalid!("k must be scalar, got shape {}", k.shape());
            }
            let k = k.to_i64s()?[0];
            top::<T>(ctx, k, sorted, index)
        }))
    }),
    KernelDef::of("TopK", &[("T", REALS)], |init| {
        let k: i64 = init.attr("k")?;
        let sorted = init.attr("sorted")?;
        dispatch!(real, init.input_type(0), T => Kernel::sync(move |ctx| top::<T>(ctx, k, sorted, DType::Int32)))
    }),
    KernelDef::of("InTopK", &[("T", INDEX)], |init| {
        let k: i64 = init.attr("k")?;
        Kernel::sync(move |ctx| in_top(ctx, k))
    }),
    KernelDef::of("InTopKV2", &[("T", INDEX)], |_| {
        Kernel::sync(|ctx| {
            let k = ctx.scalar(2, "k")?.to_i64s()?[0];
            in_top(ctx, k)
        })
    }),
];

/// The order of elements `a` and `b`: larger before smaller, NaN last, equal elements by position.
fn compare_descending<T: PartialOrd>(row: &[T], a: usize, b: usize) -> Ordering {
    let (x, y) = (&row[a], &row[b]);
    let by_value = y.partial_cmp(x).unwrap_or_else(|| {
        let nan = |v: &T| v.partial_cmp(v).is_none();
        nan(x).cmp(&nan(y))
    });
    by_value.then(a.cmp(&b))
}

/// Returns whether element `a` precedes `b` in TensorFlow's comparison: a NaN is neither larger nor smaller, so its
/// position decides.
fn is_before<T: PartialOrd>(row: &[T], a: usize, b: usize) -> bool {
    match row[a].partial_cmp(&row[b]) {
        Some(Ordering::Greater) => true,
        Some(Ordering::Less) => false,
        _ => a < b,
    }
}

/// Outputs the `k` largest elements and their positions; in descending order if `sorted`, otherwise in the order of
/// the heap.
fn top<T: Element + PartialOrd>(
    ctx: &mut KernelContext<'_>,
    k: i64,
    sorted: bool,
    index: DType,
) -> Result<()> {
    let (columns, shape) = top_shape(ctx.shape(0)?, k)?;
    let (input, wanted) = (ctx.input(0)?, shape[shape.rank() - 1]);
    let mut values = ctx.allocate(T::DTYPE, shape.clone())?;
    let mut found: Vec<usize> = Vec::with_capacity(shape.num_elements());
    if wanted > 0 {
        let rows = input.values::<T>()?.chunks_exact(columns);
        let mut places: Vec<usize> = Vec::with_capacity(columns);
        for (row, out) in rows.zip(values.values_mut::<T>()?.chunks_exact_mut(wanted)) {
            places.clear();
            if wanted == 1 {
                let best = (1..columns).fold(0, |best, i| {
                    if compare_descending(row, i, best) == Ordering::Less { i } else { best }
                });
                places.push(best);
            } else if wanted < columns && (!sorted || row.iter().any(|v| v.partial_cmp(v).is_none())) {
                places.extend(heap::best(columns, wanted, |a, b| is_before(row, a, b), sorted));
            } else {
                places.extend(0..columns);
                if wanted < columns {
                    places.select_nth_unstable_by(wanted - 1, |&a, &b| compare_descending(row, a, b));
                    places.truncate(wanted);
                }
                places.sort_unstable_by(|&a, &b| compare_descending(row, a, b));
            }
            for (o, &i) in out.iter_mut().zip(&places) {
                *o = row[i];
            }
            found.extend_from_slice(&places);
        }
    }
    ctx.set_output(0, values);
    let too_large = |_| Error::invalid(format!("an index does not fit {index}"));
    let indices = match index {
        DType::Int64 => {
            let all: Vec<i64> = found.iter().map(|&i| i as i64).collect();
            Tensor::from_slice(&all, shape)?
        }
        DType::Int16 => {
            let all: Result<Vec<i16>, _> = found.iter().map(|&i| i16::try_from(i)).collect();
            Tensor::from_slice(&all.map_err(too_large)?, shape)?
        }
        _ => {
            let all: Result<Vec<i32>, _> = found.iter().map(|&i| i32::try_from(i)).collect();
            Tensor::from_slice(&all.map_err(too_large)?, shape)?
        }
    };
    ctx.set_output(1, indices);
    Ok(())
}

fn in_top(ctx: &mut KernelContext<'_>, k: i64) -> Result<()> {
    let [rows, classes] = classified(ctx)?;
    let (predictions, targets) = (ctx.input(0)?, ctx.input(1)?);
    let values = predictions.values::<f32>()?;
    let mut out = Vec::with_capacity(rows);
    for (i, &target) in targets.to_i64s()?.iter().enumerate() {
        let row = &values[i * classes..(i + 1) * classes];
        let target = usize::try_from(target).ok().and_then(|t| row.get(t));
        // A row with values that are not finite has no ranking.
        out.push(match target {
            Some(&own) if row.iter().all(|v| v.is_finite()) => {
                Bool8::from((row.iter().filter(|&&v| v > own).count() as i64) < k)
            }
            _ => Bool8::FALSE,
        });
    }
    let out = Tensor::vector(&out)?;
    ctx.set_output(0, out);
    Ok(())
}

/// Outputs the element of rank `n` of each row, counted from the smallest or, if `reverse`, from the largest.
fn nth<T: Element + PartialOrd>(ctx: &mut KernelContext<'_>, reverse: bool) -> Result<()> {
    let (input, n) = (ctx.input(0)?, ctx.input(1)?);
    if n.shape().rank() != 0 {
        invalid!("N must be scalar but has rank {}", n.shape().rank());
    }
    let n: i32 = n.item()?;
    let Ok(n) = usize::try_from(n) else { invalid!("n must be non-negative but is {n}") };
    let Some((&columns, rows)) = input.shape().split_last() else {
        invalid!("Input must be at least rank 1 but is rank 0");
    };
    if n >= columns {
        invalid!("Input must have at least n+1 columns");
    }
    let mut out = ctx.allocate(T::DTYPE, Shape::new(rows)?)?;
    let place = if reverse { n } else { columns - 1 - n };
    let mut places: Vec<usize> = Vec::with_capacity(columns);
    for (row, out) in input.values::<T>()?.chunks_exact(columns).zip(out.values_mut::<T>()?) {
        places.clear();
        places.extend(0..columns);
        *out = row[*places.select_nth_unstable_by(place, |&a, &b| compare_descending(row, a, b)).1];
    }
    ctx.set_output(0, out);
    Ok(())
}
