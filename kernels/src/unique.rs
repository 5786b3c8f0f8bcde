//! Distinct elements, and elements that another list does not contain.

use super::sparse::picked;
use crate::numeric::copied::{CopiedElement, copied};
use crate::numeric::dispatch::{INDEX, INTEGERS};
use crate::numeric::strided::{Layout, copy, pack, permuted};
use bytes::Bytes;
use device::Result;
use device::invalid;
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use graph::shape::resolve_axis;
use graph::{DType, Shape, Tensor};
use rustc_hash::{FxHashMap, FxHashSet};
use std::hash::Hash;

/// The dtypes whose elements can be compared for equality.
const DISTINCT: &[DType] = {
    use DType::*;
    &[Float, Double, Half, BFloat16, Bool, String, Int8, Int16, Int32, Int64, UInt8, UInt16, UInt32, UInt64]
};
const _: () = assert!(DISTINCT.len() == INTEGERS.len() + 6);

const TYPES: &[(&str, &[DType])] = &[("T", DISTINCT), ("out_idx", INDEX)];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Unique", TYPES, unique),
    KernelDef::of("UniqueV2", TYPES, unique),
    KernelDef::of("UniqueWithCounts", TYPES, unique),
    KernelDef::of("UniqueWithCountsV2", TYPES, unique),
    KernelDef::of("ListDiff", TYPES, |init| {
        let out_idx = init.output_type(1);
        Kernel::sync(move |ctx| list_diff(ctx, out_idx))
    }),
];

fn unique(init: &KernelInit<'_>) -> Result<Kernel> {
    let out_idx = init.output_type(1);
    Kernel::sync(move |ctx| unique_of(ctx, out_idx))
}

/// The keys of a tensor's elements; two keys are equal if their elements are equal.
enum Keys<'a> {
    Numbers(Vec<Key>),
    Strings(&'a [Bytes]),
}

/// The bits of an element. NaNs are numbered, because no NaN equals another.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    bits: u64,
    nan: u32,
}

fn keys(tensor: &Tensor) -> Result<Keys<'_>> {
    if tensor.dtype() == DType::String {
        return Ok(Keys::Strings(tensor.as_strings()?));
    }
    let mut nans = 0u32;
    let mut float = |bits: u64, sign: u64, infinity: u64| {
        let magnitude = bits & !sign;
        if magnitude > infinity {
            nans = nans.wrapping_add(1);
            return Key { bits, nan: nans };
        }
        Key { bits: if magnitude == 0 { 0 } else { bits }, nan: 0 }
    };
    let plain = |bits: u64| Key { bits, nan: 0 };
    Ok(Keys::Numbers(match tensor.dtype() {
        DType::Double => u64::view(tensor)?.iter().map(|&b| float(b, 1 << 63, 0x7ff << 52)).collect(),
        DType::Float => u32::view(tensor)?.iter().map(|&b| float(b.into(), 1 << 31, 0x7f80_0000)).collect(),
        DType::Half => u16::view(tensor)?.iter().map(|&b| float(b.into(), 1 << 15, 0x7c00)).collect(),
        DType::BFloat16 => u16::view(tensor)?.iter().map(|&b| float(b.into(), 1 << 15, 0x7f80)).collect(),
        dtype => match dtype.size() {
            Some(1) => u8::view(tensor)?.iter().map(|&b| plain(b.into())).collect(),
            Some(2) => u16::view(tensor)?.iter().map(|&b| plain(b.into())).collect(),
            Some(4) => u32::view(tensor)?.iter().map(|&b| plain(b.into())).collect(),
            _ => u64::view(tensor)?.iter().map(|&b| plain(b)).collect(),
        },
    }))
}

/// Groups equal items into classes: returns the position of the first item of each class, and the class of each item.
fn classes<K: Hash + Eq>(items: impl Iterator<Item = K>) -> (Vec<usize>, Vec<usize>) {
    let mut places: FxHashMap<K, usize> = FxHashMap::default();
    let (mut firsts, mut classes) = (Vec::new(), Vec::with_capacity(items.size_hint().0));
    for (i, item) in items.enumerate() {
        let place = *places.entry(item).or_insert_with(|| {
            firsts.push(i);
            firsts.len() - 1
        });
        classes.push(place);
    }
    (firsts, classes)
}

fn indices(dtype: DType, values: &[usize]) -> Result<Tensor> {
    Ok(match dtype {
        DType::Int64 => Tensor::vector(&values.iter().map(|&v| v as i64).collect::<Vec<_>>())?,
        _ => {
            if values.len() > i32::MAX as usize {
                invalid!("unique does not support input tensors larger than {} elements", i32::MAX);
            }
            Tensor::vector(&values.iter().map(|&v| v as i32).collect::<Vec<_>>())?
        }
    })
}

/// Returns the axis along which slices are compared.
fn axis(ctx: &KernelContext<'_>) -> Result<usize> {
    let shape = ctx.input(0)?.shape();
    let given = match ctx.num_inputs() {
        1 => Vec::new(),
        _ => {
            let given = ctx.input(1)?;
            if given.shape().rank() != 1 {
                invalid!("axis expects a 1D vector.");
            }
            given.to_i64s()?
        }
    };
    match *given {
        [] if shape.rank() != 1 => invalid!("unique expects a 1D vector."),
        [] => Ok(0),
        [axis] => match resolve_axis(axis, shape.rank()) {
            Some(at) => Ok(at),
            None => invalid!("axis has to be between [0, {})", shape.rank()),
        },
        _ => invalid!("axis does not support input tensors larger than 1 elements"),
    }
}

fn unique_of(ctx: &mut KernelContext<'_>, out_idx: DType) -> Result<()> {
    let at = axis(ctx)?;
    let input = ctx.input(0)?;
    let shape = input.shape();
    // The axis is moved to the front, so that its slices are rows.
    let perm: Vec<usize> = std::iter::once(at).chain((0..shape.rank()).filter(|&i| i != at)).collect();
    let dims: Vec<usize> = perm.iter().map(|&i| shape[i]).collect();
    let front = if at == 0 {
        input.clone()
    } else {
        let from = permuted(shape, &perm);
        copied!(input.dtype(), E => {
            E::build(input.dtype(), Shape::new(&dims)?, |out| pack(&dims, E::view(input)?, &from, out))
        })?
    };
    let row: usize = dims[1..].iter().product();
    let rows = |i: usize| i * row..(i + 1) * row;
    let (firsts, classes) = match (keys(&front)?, row) {
        (Keys::Numbers(keys), 1) => classes(keys.into_iter()),
        (Keys::Strings(keys), 1) => classes(keys.iter()),
        (Keys::Numbers(keys), _) => classes((0..dims[0]).map(|i| &keys[rows(i)])),
        (Keys::Strings(keys), _) => classes((0..dims[0]).map(|i| &keys[rows(i)])),
    };
    let mut sizes = shape.to_vec();
    sizes[at] = firsts.len();
    let (dtype, sizes) = (input.dtype(), Shape::new(&sizes)?);
    let to = permuted(&sizes, &perm);
    let y = copied!(dtype, E => E::build(dtype, sizes, |out| {
        copy_rows(&dims, E::view(&front)?, &firsts, out, &to)
    }))?;
    if ctx.num_outputs() > 2 {
        let mut counts = vec![0usize; firsts.len()];
        for &class in &classes {
            counts[class] += 1;
        }
        ctx.set_output(2, indices(out_idx, &counts)?);
    }
    ctx.set_output(0, y);
    ctx.set_output(1, indices(out_idx, &classes)?);
    Ok(())
}

/// Copies the rows numbered `rows` of a packed tensor of sizes `dims` to consecutive positions of the layout `to`.
fn copy_rows<E: CopiedElement>(
    dims: &[usize],
    values: &[E],
    rows: &[usize],
    out: &mut [E],
    to: &Layout,
) -> Result<()> {
    let packed = Layout::packed(dims);
    let row: usize = dims[1..].iter().product();
    for (n, &number) in rows.iter().enumerate() {
        let from = Layout { offset: (number * row) as isize, strides: packed.strides[1..].into() };
        let to = Layout { offset: n as isize * to.strides[0], strides: to.strides[1..].into() };
        copy(&dims[1..], values, &from, out, &to)?;
    }
    Ok(())
}

fn list_diff(ctx: &mut KernelContext<'_>, out_idx: DType) -> Result<()> {
    let (x, y) = (ctx.input(0)?, ctx.input(1)?);
    for (name, shape) in [("x", x.shape()), ("y", y.shape())] {
        if shape.rank() != 1 {
            invalid!("{name} should be a 1D vector.");
        }
    }
    fn missing_positions<K: Hash + Eq>(x: impl Iterator<Item = K>, y: impl Iterator<Item = K>) -> Vec<usize> {
        let taken: FxHashSet<K> = y.collect();
        x.enumerate().filter(|(_, k)| !taken.contains(k)).map(|(i, _)| i).collect()
    }
    let kept = match (keys(x)?, keys(y)?) {
        (Keys::Strings(x), Keys::Strings(y)) => missing_positions(x.iter(), y.iter()),
        (Keys::Numbers(x), Keys::Numbers(y)) => {
            missing_positions(x.into_iter(), y.into_iter().filter(|key| key.nan == 0))
        }
        _ => invalid!("x and y are of different types"),
    };
    let out = picked(x, &kept)?;
    ctx.set_output(0, out);
    ctx.set_output(1, indices(out_idx, &kept)?);
    Ok(())
}
