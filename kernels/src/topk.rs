//! TopK, NthElement and InTopK: the largest elements along the last axis.

mod heap;

use super::gather::INDICES;
use crate::numeric::copied::{CopiedElement, copied};
use crate::numeric::dispatch::{INDEX, REALS};
use crate::plan::topk::{prediction_sizes, top_shape};
use device::kernel::{Kernel, KernelContext, KernelDef};
use device::{Error, Result, invalid};
use graph::DType::{self, *};
use graph::{Bool8, Shape, Tensor};
use std::cmp::Ordering;
use std::ops::Range;

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("NthElement", &[("T", REALS)], |init| {
        let reverse = init.attr("reverse")?;
        Kernel::sync(move |ctx| nth(ctx, reverse))
    }),
    KernelDef::of("TopKV2", &[("T", REALS), ("Tk", INDICES), ("index_type", INDICES)], |init| {
        let index = init.output_type(1);
        let sorted = init.attr("sorted")?;
        Kernel::sync(move |ctx| {
            let k = ctx.input(1)?;
            if k.shape().rank() != 0 {
                invalid!("k must be scalar, got shape {}", k.shape());
            }
            let k = k.to_i64s()?[0];
            top(ctx, k, sorted, index)
        })
    }),
    KernelDef::of("TopK", &[("T", REALS)], |init| {
        let k: i64 = init.attr("k")?;
        let sorted = init.attr("sorted")?;
        Kernel::sync(move |ctx| top(ctx, k, sorted, DType::Int32))
    }),
    KernelDef::of("ApproxTopK", &[("T", REALS)], |init| {
        let k: i64 = init.attr("k")?;
        if init.attr::<i64>("reduction_dimension")? != -1 || !init.attr::<bool>("is_max_k")? {
            return Err(Error::new(
                graph::Code::NotFound,
                "ApproxTopK has a CPU kernel only for the largest elements along the last axis".to_owned(),
            ));
        }
        Kernel::sync(move |ctx| top(ctx, k, true, DType::Int32))
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

/// The key of NaN, below the keys of all numbers.
const NAN: u64 = 0;

/// The elements of a row as unsigned integers in the same order, so that one selection algorithm serves all dtypes.
#[derive(Default)]
struct Keys {
    keys: Vec<u64>,
    /// True if the elements are floats, for which the key [`NAN`] means NaN and not the least integer.
    are_floats: bool,
}

impl Keys {
    /// Sets the keys to the keys of the elements of `tensor` in `range`.
    fn set(&mut self, tensor: &Tensor, range: Range<usize>) -> Result<()> {
        self.keys.clear();
        self.are_floats = tensor.dtype().is_floating();
        let keys = &mut self.keys;
        match tensor.dtype() {
            Float => {
                let float = |v: &u32| float_key(u64::from(*v), 1 << 31, 0x7f80_0000);
                keys.extend(u32::view(tensor)?[range].iter().map(float));
            }
            Double => {
                keys.extend(u64::view(tensor)?[range].iter().map(|&v| float_key(v, 1 << 63, 0x7ff << 52)))
            }
            Half => {
                keys.extend(u16::view(tensor)?[range].iter().map(|&v| float_key(v.into(), 1 << 15, 0x7c00)))
            }
            BFloat16 => {
                keys.extend(u16::view(tensor)?[range].iter().map(|&v| float_key(v.into(), 1 << 15, 0x7f80)));
            }
            Int8 => keys.extend(tensor.values::<i8>()?[range].iter().map(|&v| signed_key(v.into()))),
            Int16 => keys.extend(tensor.values::<i16>()?[range].iter().map(|&v| signed_key(v.into()))),
            Int32 => keys.extend(tensor.values::<i32>()?[range].iter().map(|&v| signed_key(v.into()))),
            Int64 => keys.extend(tensor.values::<i64>()?[range].iter().map(|&v| signed_key(v))),
            UInt8 => keys.extend(tensor.values::<u8>()?[range].iter().map(|&v| u64::from(v))),
            UInt16 => keys.extend(tensor.values::<u16>()?[range].iter().map(|&v| u64::from(v))),
            UInt32 => keys.extend(tensor.values::<u32>()?[range].iter().map(|&v| u64::from(v))),
            _ => keys.extend_from_slice(&tensor.values::<u64>()?[range]),
        }
        Ok(())
    }

    fn has_nan(&self) -> bool {
        self.are_floats && self.keys.contains(&NAN)
    }

    /// Returns the order of elements `a` and `b`: larger before smaller, NaN last, equal elements by position.
    fn compare_descending(&self, a: usize, b: usize) -> Ordering {
        self.keys[b].cmp(&self.keys[a]).then(a.cmp(&b))
    }

    /// Returns whether element `a` precedes `b` in TensorFlow's comparison: a NaN is neither larger nor smaller than
    /// another element, so the positions decide.
    fn is_before(&self, a: usize, b: usize) -> bool {
        let (x, y) = (self.keys[a], self.keys[b]);
        if x == y || (self.are_floats && (x == NAN || y == NAN)) { a < b } else { x > y }
    }
}

/// Returns the key of a float, given its bits, the sign bit and the bits of infinity; equal for both zeros.
fn float_key(bits: u64, sign: u64, infinity: u64) -> u64 {
    let magnitude = bits & !sign;
    match bits & sign {
        _ if magnitude > infinity => NAN,
        0 => sign + magnitude,
        _ => sign - magnitude,
    }
}

fn signed_key(value: i64) -> u64 {
    value as u64 ^ 1 << 63
}

/// Sets `places` to the positions of the `wanted` largest elements; in descending order if `sorted`, otherwise in the
/// order of the heap.
fn select(keys: &Keys, wanted: usize, sorted: bool, places: &mut Vec<usize>) {
    let columns = keys.keys.len();
    places.clear();
    if wanted == 1 {
        let best = (1..columns).fold(0, |best, i| if keys.keys[i] > keys.keys[best] { i } else { best });
        places.push(best);
    } else if wanted < columns && (!sorted || keys.has_nan()) {
        places.extend(heap::best(columns, wanted, |a, b| keys.is_before(a, b), sorted));
    } else {
        places.extend(0..columns);
        if wanted < columns {
            places.select_nth_unstable_by(wanted - 1, |&a, &b| keys.compare_descending(a, b));
            places.truncate(wanted);
        }
        places.sort_unstable_by(|&a, &b| keys.compare_descending(a, b));
    }
}

/// Outputs the `k` largest elements and their positions; in descending order if `sorted`, otherwise in the order of
/// the heap.
fn top(ctx: &mut KernelContext<'_>, k: i64, sorted: bool, index: DType) -> Result<()> {
    let (columns, shape) = top_shape(ctx.shape(0)?, k)?;
    let (input, wanted) = (ctx.input(0)?, shape[shape.rank() - 1]);
    let mut values = ctx.allocate(input.dtype(), shape.clone())?;
    let mut found: Vec<usize> = Vec::with_capacity(shape.num_elements());
    if let Some(rows) = shape.num_elements().checked_div(wanted) {
        let (mut keys, mut places) = (Keys::default(), Vec::with_capacity(columns));
        for row in 0..rows {
            keys.set(input, row * columns..(row + 1) * columns)?;
            select(&keys, wanted, sorted, &mut places);
            found.extend_from_slice(&places);
        }
        copied!(input.dtype(), E => E::edit(&mut values, |out| {
            let rows = E::view(input)?.chunks_exact(columns);
            let places = found.chunks_exact(wanted);
            for ((out, row), places) in out.chunks_exact_mut(wanted).zip(rows).zip(places) {
                out.iter_mut().zip(places).for_each(|(o, &i)| o.clone_from(&row[i]));
            }
            Ok(())
        }))?;
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
    let [rows, classes] = prediction_sizes(ctx)?;
    let (predictions, targets) = (ctx.input(0)?, ctx.input(1)?);
    let values = predictions.values::<f32>()?;
    let mut out = Vec::with_capacity(rows);
    for (i, &target) in targets.to_i64s()?.iter().enumerate() {
        let row = &values[i * classes..(i + 1) * classes];
        let target = usize::try_from(target).ok().and_then(|t| row.get(t));
        // In a row with values that are not finite, no element is among the `k` largest.
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
fn nth(ctx: &mut KernelContext<'_>, reverse: bool) -> Result<()> {
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
    let mut out = ctx.allocate(input.dtype(), Shape::new(rows)?)?;
    let place = if reverse { n } else { columns - 1 - n };
    let (mut keys, mut places) = (Keys::default(), Vec::with_capacity(columns));
    let mut found = Vec::with_capacity(out.num_elements());
    for row in 0..out.num_elements() {
        let start = row * columns;
        keys.set(input, start..start + columns)?;
        places.clear();
        places.extend(0..columns);
        let (_, &mut at, _) = places.select_nth_unstable_by(place, |&a, &b| keys.compare_descending(a, b));
        found.push(start + at);
    }
    copied!(input.dtype(), E => E::edit(&mut out, |out| {
        let values = E::view(input)?;
        out.iter_mut().zip(&found).for_each(|(o, &i)| o.clone_from(&values[i]));
        Ok(())
    }))?;
    ctx.set_output(0, out);
    Ok(())
}
