//! Kernels that update some rows or slices of a variable or a tensor.

use super::gather::ignores_bad_indices;
use crate::numeric::dispatch::{ANY, INDEX, NUMBERS, REALS, dispatch};
use crate::numeric::scalar::{Arithmetic, Semiring as _, Stored};
use crate::numeric::threads::{BLOCK, is_parallel_under_lock, join};
use crate::plan::scatter::{check_nothing_for_empty, check_slices, one_for_each, pass_reference};
use bytes::Bytes;
use device::kernel::{Kernel, KernelDef, KernelInit};
use device::variable::VariableInput;
use device::{Error, Result};
use graph::{DType, Shape, Tensor};

/// The operation that combines an element with its update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Update {
    Replace,
    Add,
    Sub,
    Mul,
    Div,
    Min,
    Max,
}

/// The way in which indices address parts of a variable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Indexing {
    /// Each index is a row: an index into the first axis.
    Rows,
    /// The last axis of the indices addresses a slice through the variable's first axes.
    Slices,
}

macro_rules! kernels {
    (@make $name:literal $types:expr, Tensor $update:ident) => {
        KernelDef::of($name, $types, |init| on_tensor(init, Update::$update))
    };
    (@make $name:literal $types:expr, TensorRows $update:ident) => {
        KernelDef::of($name, $types, |init| on_rows(init, Update::$update))
    };
    (@make $name:literal $types:expr, $indexing:ident $update:ident) => {
        KernelDef::of($name, $types, |init| kernel(init, Indexing::$indexing, Update::$update))
    };
    ($($name:literal $types:expr, $indexing:ident $update:ident;)*) => {
        &[$(kernels!(@make $name $types, $indexing $update)),*]
    };
}

/// The types of elements that are replaced, not computed with.
const REPLACED: &[DType] = &[
    DType::Float,
    DType::Double,
    DType::Half,
    DType::BFloat16,
    DType::Bool,
    DType::Int8,
    DType::Int16,
    DType::Int32,
    DType::Int64,
    DType::UInt8,
    DType::UInt16,
    DType::UInt32,
    DType::UInt64,
    DType::Complex64,
    DType::Complex128,
    DType::String,
];

pub(super) const KERNELS: &[KernelDef] = kernels! {
    "ScatterAdd" &[("T", NUMBERS), ("Tindices", INDEX)], Rows Add;
    "ScatterSub" &[("T", NUMBERS), ("Tindices", INDEX)], Rows Sub;
    "ScatterMul" &[("T", NUMBERS), ("Tindices", INDEX)], Rows Mul;
    "ScatterDiv" &[("T", NUMBERS), ("Tindices", INDEX)], Rows Div;
    "ScatterMin" &[("T", REALS), ("Tindices", INDEX)], Rows Min;
    "ScatterMax" &[("T", REALS), ("Tindices", INDEX)], Rows Max;
    "ScatterUpdate" &[("Tindices", INDEX)], Rows Replace;
    "ResourceScatterAdd" &[("dtype", NUMBERS), ("Tindices", INDEX)], Rows Add;
    "ResourceScatterSub" &[("dtype", NUMBERS), ("Tindices", INDEX)], Rows Sub;
    "ResourceScatterMul" &[("dtype", NUMBERS), ("Tindices", INDEX)], Rows Mul;
    "ResourceScatterDiv" &[("dtype", NUMBERS), ("Tindices", INDEX)], Rows Div;
    "ResourceScatterMin" &[("dtype", REALS), ("Tindices", INDEX)], Rows Min;
    "ResourceScatterMax" &[("dtype", REALS), ("Tindices", INDEX)], Rows Max;
    "ResourceScatterUpdate" &[("Tindices", INDEX)], Rows Replace;
    "ScatterNdUpdate" &[("Tindices", INDEX)], Slices Replace;
    "ScatterNdAdd" &[("T", NUMBERS), ("Tindices", INDEX)], Slices Add;
    "ScatterNdSub" &[("T", NUMBERS), ("Tindices", INDEX)], Slices Sub;
    "ScatterNdMax" &[("T", REALS), ("Tindices", INDEX)], Slices Max;
    "ScatterNdMin" &[("T", REALS), ("Tindices", INDEX)], Slices Min;
    "ResourceScatterNdUpdate" &[("Tindices", INDEX)], Slices Replace;
    "ResourceScatterNdAdd" &[("T", ANY), ("Tindices", INDEX)], Slices Add;
    "ResourceScatterNdSub" &[("T", ANY), ("Tindices", INDEX)], Slices Sub;
    "ResourceScatterNdMax" &[("T", REALS), ("Tindices", INDEX)], Slices Max;
    "ResourceScatterNdMin" &[("T", REALS), ("Tindices", INDEX)], Slices Min;
    "TensorScatterUpdate" &[("Tindices", INDEX)], Tensor Replace;
    "TensorScatterAdd" &[("T", NUMBERS), ("Tindices", INDEX)], Tensor Add;
    "TensorScatterSub" &[("T", NUMBERS), ("Tindices", INDEX)], Tensor Sub;
    "TensorScatterMax" &[("T", REALS), ("Tindices", INDEX)], Tensor Max;
    "TensorScatterMin" &[("T", REALS), ("Tindices", INDEX)], Tensor Min;
    "ScatterNdNonAliasingAdd" &[("T", ANY), ("Tindices", INDEX)], Tensor Add;
    "InplaceUpdate" &[("T", REPLACED)], TensorRows Replace;
    "InplaceAdd" &[("T", NUMBERS)], TensorRows Add;
    "InplaceSub" &[("T", NUMBERS)], TensorRows Sub;
};

fn kernel(init: &KernelInit<'_>, indexing: Indexing, update: Update) -> Result<Kernel> {
    let variable = VariableInput::new(init, 0);
    let dtype = init.input_type(2);
    let ignore_bad = indexing == Indexing::Slices && ignores_bad_indices(init)?;
    let apply = apply(update, dtype)?;
    // Division by zero is refused for resource variables of every dtype, like in TensorFlow.
    let refuses_zeros = update == Update::Div && !variable.is_ref();
    Kernel::sync(move |ctx| {
        let target = variable.get(ctx)?;
        let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
        if refuses_zeros && has_zero(updates)? {
            device::invalid!("updates must not contain 0");
        }
        let mut locked = target.lock();
        let params = locked.as_ref().ok_or_else(|| target.uninitialized())?;
        if params.dtype() != dtype {
            device::invalid!("Trying to scatter {dtype} into a variable of {}", params.dtype());
        }
        let places = match indexing {
            Indexing::Rows => rows(params.shape(), indices, updates.shape(), variable.is_ref())?,
            Indexing::Slices => {
                check_nothing_for_empty(params.shape(), indices.shape(), updates.shape())?;
                slices(params.shape(), indices, &one_for_each(indices.shape()), updates.shape(), ignore_bad)?
            }
        };
        if let Some(params) = locked.slices_mut(places.valid_numbers(), places.len)? {
            apply(params, &places, updates, update)?;
        }
        drop(locked);
        pass_reference(ctx, &variable, target);
        Ok(())
    })
}

/// Returns whether any element of a numeric tensor is 0.
pub(super) fn has_zero(tensor: &Tensor) -> Result<bool> {
    dispatch!(any, tensor.dtype(), T => Ok(tensor.values::<T>()?.contains(&T::ZERO)))
}

/// Makes the kernel that outputs a tensor with some slices updated; the update is in place if the buffer is not shared.
fn on_tensor(init: &KernelInit<'_>, update: Update) -> Result<Kernel> {
    let ignore_bad = ignores_bad_indices(init)?;
    let apply = apply(update, init.input_type(2))?;
    let is_as_variable = init.node.op.name() == "ScatterNdNonAliasingAdd";
    Kernel::sync(move |ctx| {
        let mut params = ctx.take_input(0)?;
        let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
        let at = if is_as_variable { one_for_each(indices.shape()) } else { indices.shape()[..].into() };
        check_nothing_for_empty(params.shape(), indices.shape(), updates.shape())?;
        let places = slices(params.shape(), indices, &at, updates.shape(), ignore_bad)?;
        apply(&mut params, &places, updates, update)?;
        ctx.set_output(0, params);
        Ok(())
    })
}

/// Makes the kernel that outputs a tensor with some rows updated, in turn; the update is in place if the buffer is not
/// shared. A row number outside of the tensor is taken modulo the number of rows.
fn on_rows(init: &KernelInit<'_>, update: Update) -> Result<Kernel> {
    let apply = apply(update, init.input_type(2))?;
    Kernel::sync(move |ctx| {
        let mut x = ctx.take_input(0)?;
        let (indices, updates) = (ctx.input(1)?, ctx.input(2)?);
        if indices.shape().rank() != 1 {
            device::invalid!("i must be a vector. {}", indices.shape());
        }
        let (shape, given) = (x.shape(), updates.shape());
        if shape.rank() != given.rank() {
            device::invalid!("x and v shape doesn't match (ranks differ): {shape} vs. {given}");
        }
        let Some((&count, row)) = shape.split_first() else {
            device::invalid!("x must have rows, but it is a scalar");
        };
        if let Some(axis) = (1..shape.rank()).find(|&axis| shape[axis] != given[axis]) {
            device::invalid!("x and v shape doesn't match at index {axis} : {shape} vs. {given}");
        }
        if given[0] != indices.num_elements() {
            device::invalid!("i and x shape doesn't match at index 0: {} vs. {given}", indices.shape());
        }
        if count > 0 {
            let numbers =
                indices.values::<i32>()?.iter().map(|&i| i64::from(i).rem_euclid(count as i64) as usize);
            let places = SliceNumbers { numbers: numbers.collect(), len: row.iter().product() };
            apply(&mut x, &places, updates, update)?;
        }
        ctx.set_output(0, x);
        Ok(())
    })
}

fn apply(update: Update, dtype: DType) -> Result<Apply> {
    match (update, dtype) {
        (Update::Replace, DType::String) => Ok(replace_strings),
        (Update::Replace, _) => Ok(replace_plain),
        (Update::Min | Update::Max, dtype) => {
            dispatch!(real, dtype, T => Ok(combine::<T, Extremes> as Apply))
        }
        (_, dtype) => dispatch!(any, dtype, T => Ok(combine::<T, Sums> as Apply)),
    }
}

/// The indices of the slices to update; each slice has `len` elements.
struct SliceNumbers {
    numbers: Vec<usize>,
    len: usize,
}

impl SliceNumbers {
    fn valid_numbers(&self) -> impl Iterator<Item = usize> + Clone {
        self.numbers.iter().copied().filter(|&number| number != OUT_OF_RANGE)
    }
}

/// The slice index that marks an index out of range, whose update is skipped.
const OUT_OF_RANGE: usize = usize::MAX;

fn rows(params: &Shape, indices: &Tensor, updates: &Shape, is_ref: bool) -> Result<SliceNumbers> {
    let at = indices.shape();
    let Some((&count, row)) = params.split_first() else {
        device::invalid!("params must be at least 1-D, got shape {params}");
    };
    let wanted = [&at[..], row].concat();
    // Without indices, a resource variable accepts updates of any size.
    let has_no_indices = !is_ref && at.num_elements() == 0;
    let fits = updates[..] == wanted || (has_no_indices && updates.rank() == wanted.len());
    if updates.rank() > 0 && !fits {
        if !is_ref && !has_no_indices && !updates.starts_with(at) {
            device::invalid!(
                "The shape of indices ({at}) must be a prefix of the shape of updates ({updates})"
            );
        }
        device::invalid!(
            "Must have updates.shape = indices.shape + params.shape[1:] or updates.shape = [], got updates.shape \
             {updates}, indices.shape {at}, params.shape {params}"
        );
    }
    Ok(SliceNumbers { numbers: row_numbers(indices, count)?, len: row.iter().product() })
}

/// Returns the indices, after checking that each is below `count`.
pub(super) fn row_numbers(indices: &Tensor, count: usize) -> Result<Vec<usize>> {
    let check = |(i, index): (usize, i64)| match usize::try_from(index) {
        Ok(row) if row < count => Ok(row),
        _ => device::invalid!("indices{} = {index} is not in [0, {count})", position(indices.shape(), i)),
    };
    match indices.dtype() {
        DType::Int32 => indices.values::<i32>()?.iter().map(|&v| v.into()).enumerate().map(check).collect(),
        _ => indices.values::<i64>()?.iter().copied().enumerate().map(check).collect(),
    }
}

/// Returns the coordinates of element `i` as text, such as `[1,2]`; an empty string for a scalar.
fn position(shape: &[usize], i: usize) -> String {
    let mut rest = i;
    let mut parts: Vec<String> = Vec::with_capacity(shape.len());
    for &d in shape.iter().rev() {
        parts.push((rest % d.max(1)).to_string());
        rest /= d.max(1);
    }
    parts.reverse();
    if parts.is_empty() { String::new() } else { format!("[{}]", parts.join(",")) }
}

fn slices(
    params: &Shape,
    indices: &Tensor,
    read_in: &[usize],
    updates: &Shape,
    ignore_bad: bool,
) -> Result<SliceNumbers> {
    let depth = check_slices(params, indices.shape(), read_in, updates)?;
    let batch = &read_in[..read_in.len() - 1];
    let len = params[depth..].iter().product();
    if depth == 0 && len == 0 {
        // The slices are not listed, because neither indices nor updates have elements, so the number of slices is
        // unbounded.
        return Ok(SliceNumbers { numbers: Vec::new(), len });
    }
    let flat = indices.to_i64s()?;
    let mut numbers = Vec::with_capacity(batch.iter().product());
    for i in 0..batch.iter().product() {
        let index = &flat[i * depth..(i + 1) * depth];
        let number = index.iter().zip(params.iter()).try_fold(0, |number, (&k, &d)| {
            usize::try_from(k).ok().filter(|&k| k < d).map(|k| number * d + k)
        });
        match number {
            Some(number) => numbers.push(number),
            None if ignore_bad => numbers.push(OUT_OF_RANGE),
            None => {
                let index: Vec<String> = index.iter().map(i64::to_string).collect();
                device::invalid!(
                    "indices{} = [{}] does not index into shape {params}",
                    position(batch, i),
                    index.join(", ")
                );
            }
        }
    }
    Ok(SliceNumbers { numbers, len })
}

type Apply = fn(&mut Tensor, &SliceNumbers, &Tensor, Update) -> Result<()>;

fn replace_strings(params: &mut Tensor, places: &SliceNumbers, updates: &Tensor, _: Update) -> Result<()> {
    let from = updates.as_strings()?;
    let mut all: Vec<Bytes> = params.as_strings()?.to_vec();
    each(places, all.len(), from.len(), |to, source| {
        for (k, to) in to.enumerate() {
            all[to] = from[source(k)].clone();
        }
    });
    *params = Tensor::strings(all, params.shape().clone())?;
    Ok(())
}

fn replace_plain(params: &mut Tensor, places: &SliceNumbers, updates: &Tensor, _: Update) -> Result<()> {
    let Some(size) = params.dtype().size() else {
        return Err(Error::unimplemented(format!("scatter into a variable of {}", params.dtype())));
    };
    let (total, given) = (params.num_elements(), updates.num_elements());
    let from = updates.bytes()?;
    let all = params.bytes_mut()?;
    each(places, total, given, |to, source| {
        if given == 1 && to.len() != 1 {
            for to in to {
                all[to * size..(to + 1) * size].copy_from_slice(from);
            }
        } else {
            let at = source(0) * size;
            all[to.start * size..to.end * size].copy_from_slice(&from[at..at + to.len() * size]);
        }
    });
    Ok(())
}

/// Calls `apply` for each valid slice, with the slice's range of elements and a function that maps `k` to the index of
/// the update of the slice's `k`-th element.
fn each(
    places: &SliceNumbers,
    total: usize,
    given: usize,
    mut apply: impl FnMut(std::ops::Range<usize>, &dyn Fn(usize) -> usize),
) {
    let len = places.len;
    let scalar = given == 1 && places.numbers.len() * len != 1;
    for (i, &number) in places.numbers.iter().enumerate() {
        if number == OUT_OF_RANGE || len == 0 || total == 0 {
            continue;
        }
        let source = |k: usize| if scalar { 0 } else { i * len + k };
        apply(number * len..(number + 1) * len, &source);
    }
}

fn combine<T: Arithmetic, C: Combine<T>>(
    params: &mut Tensor,
    places: &SliceNumbers,
    updates: &Tensor,
    update: Update,
) -> Result<()> {
    let from = updates.values::<T>()?;
    if update == Update::Div && T::IS_INTEGER && !places.numbers.is_empty() && from.contains(&T::ZERO) {
        return Err(Error::invalid("Integer division by zero"));
    }
    let elements = bytemuck::cast_slice_mut(params.values_mut::<T>()?);
    in_bands(elements, places, size_of::<T>(), &|first, band| {
        combine_band::<T, C>(bytemuck::cast_slice_mut(band), first, places, from, update);
    });
    Ok(())
}

/// Calls `work(index of the first slice, band)` for bands of consecutive slices, in parallel if there are many updates.
/// `elements` has `size` bytes per element.
fn in_bands(
    elements: &mut [u8],
    places: &SliceNumbers,
    size: usize,
    work: &(dyn Fn(usize, &mut [u8]) + Sync),
) {
    let updated = places.numbers.len() * places.len;
    let bands =
        if is_parallel_under_lock(updated) && places.len >= 16 { rayon::current_num_threads() } else { 1 };
    split_bands(elements, 0, places.len * size, bands, work);
}

/// Splits `band`, whose first slice has index `first`, into up to `bands` bands of slices, and calls `work` for them in
/// parallel.
fn split_bands(
    band: &mut [u8],
    first: usize,
    slice: usize,
    bands: usize,
    work: &(dyn Fn(usize, &mut [u8]) + Sync),
) {
    let count = band.len().checked_div(slice).unwrap_or(0);
    if bands > 1 && count > 1 {
        let middle = count / 2;
        let (left, right) = band.split_at_mut(middle * slice);
        join(
            || split_bands(left, first, slice, bands / 2, work),
            || split_bands(right, first + middle, slice, bands - bands / 2, work),
        );
        return;
    }
    work(first, band);
}

/// Applies all updates of the slices in `band`, of which the first has index `first`. Within a slice, updates are
/// applied in order, so that the result does not depend on the number of threads.
fn combine_band<T: Arithmetic, C: Combine<T>>(
    band: &mut [T],
    first: usize,
    places: &SliceNumbers,
    from: &[T],
    update: Update,
) {
    let len = places.len;
    let count = band.len().checked_div(len).unwrap_or(0);
    // A single update element applies to all elements of the slices, unless there is one slice of one element.
    let scalar = from.len() == 1 && places.numbers.len() * len != 1;
    let repeated = if scalar { vec![from[0]; len.min(BLOCK)] } else { Vec::new() };
    for (i, &number) in places.numbers.iter().enumerate() {
        if number == OUT_OF_RANGE || number < first || number >= first + count {
            continue;
        }
        let to = &mut band[(number - first) * len..][..len];
        if scalar {
            to.chunks_mut(BLOCK).for_each(|to| C::slice(to, &repeated[..to.len()], update));
        } else {
            C::slice(to, &from[i * len..][..len], update);
        }
    }
}

/// A group of update operations on the elements of a slice.
trait Combine<T> {
    fn slice(to: &mut [T], from: &[T], update: Update);
}

/// Arithmetic updates, for all numbers.
struct Sums;

/// Minimum and maximum updates, for ordered numbers.
struct Extremes;

impl<T: Arithmetic> Combine<T> for Sums {
    fn slice(to: &mut [T], from: &[T], update: Update) {
        let pairs = to.iter_mut().zip(from);
        match update {
            Update::Add => pairs.for_each(|(to, &by)| *to = to.plus(by)),
            Update::Sub => pairs.for_each(|(to, &by)| *to = to.minus(by)),
            Update::Mul => pairs.for_each(|(to, &by)| *to = to.times(by)),
            Update::Div => pairs.for_each(|(to, &by)| *to = to.over(by)),
            Update::Replace | Update::Min | Update::Max => pairs.for_each(|(to, &by)| *to = by),
        }
    }
}

impl<T: Stored> Combine<T> for Extremes {
    fn slice(to: &mut [T], from: &[T], update: Update) {
        let pairs = to.iter_mut().zip(from);
        match update {
            Update::Min => pairs.for_each(|(to, &by)| *to = if by < *to { by } else { *to }),
            _ => pairs.for_each(|(to, &by)| *to = if *to < by { by } else { *to }),
        }
    }
}

#[cfg(test)]
mod tests;
