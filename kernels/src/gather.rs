//! Kernels that gather and scatter elements by index.

use crate::numeric::copied::{COPIED, CopiedElement, copied};
use crate::numeric::dispatch::{ANY, INDEX, dispatch};
use crate::numeric::scalar::Semiring;
use crate::plan::gather::position;
use bytes::{Bytes, BytesMut};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result, invalid};
use graph::DType::{self, Int16, Int32, Int64};
use graph::shape::resolve_axis;
use graph::{Element, Shape, Tensor};
use smallvec::SmallVec;

pub(super) const INDICES: &[DType] = &[Int16, Int32, Int64];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("Gather", &[("Tparams", COPIED), ("Tindices", INDEX)], |_| {
        Kernel::sync(|ctx| gather(ctx, 0))
    }),
    KernelDef::of("GatherV2", &[("Tparams", COPIED), ("Tindices", INDICES), ("Taxis", INDEX)], |init| {
        let batch_dims: i64 = init.attr("batch_dims")?;
        Kernel::sync(move |ctx| gather(ctx, batch_dims))
    }),
    KernelDef::of("GatherNd", &[("Tparams", COPIED), ("Tindices", INDICES)], |init| {
        let ignore = ignores_bad_indices(init)?;
        Kernel::sync(move |ctx| {
            let out = gather_nd(ctx.input(0)?, ctx.input(1)?, ignore, &ctx.node().name)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("ScatterNd", &[("T", ANY), ("Tindices", INDICES)], |init| {
        let ignore = ignores_bad_indices(init)?;
        let dtype = init.output_type(0);
        let add = dispatch!(any, dtype, T => Ok(add_slices::<T> as AddSlices))?;
        Kernel::sync(move |ctx| {
            let (slices, shape) = scatter_slices(ctx, ignore)?;
            let updates = ctx.input(1)?;
            let mut out = Tensor::zeros(dtype, shape)?;
            add(&slices, updates, &mut out)?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
    KernelDef::of("ScatterNd", &[("T", &[DType::String]), ("Tindices", INDICES)], |init| {
        let ignore = ignores_bad_indices(init)?;
        Kernel::sync(move |ctx| {
            let (slices, shape) = scatter_slices(ctx, ignore)?;
            let updates = ctx.input(1)?;
            let out = Bytes::build(DType::String, shape, |out| {
                scatter(&slices, updates.as_strings()?, out, |o, v| {
                    let mut both = BytesMut::from(&o[..]);
                    both.extend_from_slice(v);
                    *o = both.freeze();
                });
                Ok(())
            })?;
            ctx.set_output(0, out);
            Ok(())
        })
    }),
];

/// Returns the indices as unsigned numbers, checked to be below `limit`.
fn checked(indices: &Tensor, limit: usize) -> Result<Vec<usize>> {
    fn all<I: Element + Into<i64>>(indices: &Tensor, limit: usize) -> Result<Vec<usize>> {
        let values = indices.values::<I>()?;
        let mut out = Vec::with_capacity(values.len());
        for (i, &index) in values.iter().enumerate() {
            let index: i64 = index.into();
            match usize::try_from(index) {
                Ok(index) if index < limit => out.push(index),
                _ => {
                    let at = position("indices", indices.shape(), i);
                    invalid!("{at} = {index} is not in [0, {limit})")
                }
            }
        }
        Ok(out)
    }
    match indices.dtype() {
        Int16 => all::<i16>(indices, limit),
        Int32 => all::<i32>(indices, limit),
        _ => all::<i64>(indices, limit),
    }
}

/// `Gather` and `GatherV2`: copies the slices at the given indices of an axis.
fn gather(ctx: &mut KernelContext<'_>, batch_dims: i64) -> Result<()> {
    let (params, indices) = (ctx.input(0)?, ctx.input(1)?);
    let (rank, indices_rank) = (params.shape().rank(), indices.shape().rank());
    if rank == 0 {
        invalid!("params must be at least 1 dimensional");
    }
    let axis = if ctx.num_inputs() > 2 {
        let axis = ctx.scalar(2, "axis")?.to_i64s()?[0];
        resolve_axis(axis, rank).ok_or_else(|| {
            let at_least = if axis < 0 { axis.saturating_neg() } else { axis.saturating_add(1) };
            Error::invalid(format!("Shape must be at least rank {at_least} but is rank {rank}"))
        })?
    } else {
        0
    };
    let batch = if batch_dims < 0 { batch_dims + indices_rank as i64 } else { batch_dims };
    let Some(batch) = usize::try_from(batch).ok().filter(|&b| b <= indices_rank) else {
        invalid!("Expected batch_dims in the range [-{indices_rank}, {indices_rank}], but got {batch_dims}");
    };
    if batch > axis {
        invalid!("batch_dims ({batch}) must be less than or equal to axis ({axis}).");
    }
    for i in 0..batch {
        let (p, q) = (params.shape()[i], indices.shape()[i]);
        if p != q {
            invalid!("params.shape[{i}]: {p} should be equal to indices.shape[{i}]: {q}");
        }
    }
    let dims = params.shape();
    let mut sizes: SmallVec<[usize; 6]> = dims[..axis].into();
    sizes.extend_from_slice(&indices.shape()[batch..]);
    sizes.extend_from_slice(&dims[axis + 1..]);
    let limit = dims[axis];
    let batches: usize = dims[..batch].iter().product();
    let outer: usize = dims[batch..axis].iter().product();
    let inner: usize = dims[axis + 1..].iter().product();
    // If slices are empty nothing is copied, so the indices need no check.
    let rows = if inner == 0 { Vec::new() } else { checked(indices, limit)? };
    let count = rows.len() / batches.max(1);
    let (dtype, shape) = (params.dtype(), Shape::new(&sizes)?);
    let out = copied!(dtype, E => E::build(dtype, shape, |out| {
        if inner == 0 || count == 0 {
            return Ok(());
        }
        let values = E::view(params)?;
        let tables = values.chunks_exact((limit * inner).max(1));
        for (n, (table, block)) in tables.zip(out.chunks_exact_mut(count * inner)).enumerate() {
            let b = n / outer;
            copy_rows(table, inner, &rows[b * count..(b + 1) * count], block);
        }
        Ok(())
    }))?;
    ctx.set_output(0, out);
    Ok(())
}

/// Copies rows of `inner` elements from `table` to `out`.
fn copy_rows<E: CopiedElement>(table: &[E], inner: usize, rows: &[usize], out: &mut [E]) {
    if inner == 1 {
        for (o, &i) in out.iter_mut().zip(rows) {
            o.clone_from(&table[i]);
        }
        return;
    }
    for (o, &i) in out.chunks_exact_mut(inner).zip(rows) {
        o.clone_from_slice(&table[i * inner..(i + 1) * inner]);
    }
}

/// Returns whether indices out of range are skipped, instead of being an error.
pub(super) fn ignores_bad_indices(init: &KernelInit<'_>) -> Result<bool> {
    match init.attr::<String>("bad_indices_policy")?.as_str() {
        "" | "DEFAULT" | "ERROR" => Ok(false),
        "IGNORE" => Ok(true),
        other => invalid!("{} has no bad_indices_policy '{other}'", init.node.op.name()),
    }
}

/// The slices of a tensor that index vectors select: the first element of each, `None` for an index out of range,
/// and the common length.
struct SliceStarts {
    starts: Vec<Option<usize>>,
    length: usize,
}

/// Returns the slices of a tensor of shape `shape` that the index vectors along the last axis of `indices` select. An
/// index out of range is skipped if `ignore` is set, else an error whose message `bad` makes.
fn slice_starts(
    indices: &Tensor,
    shape: &Shape,
    ignore: bool,
    bad: &dyn Fn(String) -> String,
) -> Result<SliceStarts> {
    let depth = indices.shape().last().copied().unwrap_or(0);
    let strides = shape.strides();
    let length = shape[depth..].iter().product();
    let count: usize = indices.shape().iter().rev().skip(1).product();
    let wide = indices.to_i64s()?;
    let mut starts = Vec::with_capacity(count);
    for n in 0..count {
        let vector = &wide[n * depth..(n + 1) * depth];
        let mut start = Some(0usize);
        for (i, &index) in vector.iter().enumerate() {
            let index = usize::try_from(index).ok().filter(|&index| index < shape[i]);
            start = start.zip(index).map(|(s, index)| s + index * strides[i]);
        }
        if start.is_none() && !ignore {
            let text = vector.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
            let at = position("indices", &indices.shape()[..indices.shape().rank() - 1], n);
            invalid!("{}", bad(format!("{at} = [{text}] does not index into")));
        }
        starts.push(start);
    }
    Ok(SliceStarts { starts, length })
}

/// Returns the slices of `params` that index vectors select. Slices of indices out of range are zero if `ignore` is set;
/// else such an index is an error that names the node.
pub(super) fn gather_nd(params: &Tensor, indices: &Tensor, ignore: bool, node: &str) -> Result<Tensor> {
    let Some((&depth, outer)) = indices.shape().split_last() else {
        invalid!("indices must be at least a vector");
    };
    let rank = params.shape().rank();
    if depth > rank {
        invalid!("index innermost dimension length must be <= params rank; saw: {depth} vs. {rank}");
    }
    let mut dims: SmallVec<[usize; 6]> = outer.into();
    dims.extend_from_slice(&params.shape()[depth..]);
    let shape = Shape::new(&dims)?;
    if outer.iter().all(|&size| size > 0) && params.num_elements() == 0 {
        invalid!("Requested more than 0 entries, but params is empty.  Params shape: {}", params.shape());
    }
    let slices = slice_starts(indices, params.shape(), ignore, &|fact| {
        format!("{fact} param shape {}, node name: {node}", params.shape())
    })?;
    let dtype = params.dtype();
    copied!(dtype, E => E::build(dtype, shape, |out| {
        let values = E::view(params)?;
        if slices.length == 0 {
            return Ok(());
        }
        for (o, start) in out.chunks_exact_mut(slices.length).zip(&slices.starts) {
            match start {
                Some(start) => o.clone_from_slice(&values[*start..start + slices.length]),
                None => o.fill(E::zero()),
            }
        }
        Ok(())
    }))
}

/// Returns the slices and the shape of the output of `ScatterNd`.
fn scatter_slices(ctx: &KernelContext<'_>, ignore: bool) -> Result<(SliceStarts, Shape)> {
    let (indices, updates, sizes) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    if sizes.shape().rank() != 1 {
        invalid!("Shape must be a vector");
    }
    let shape = Shape::from_i64(&sizes.to_i64s()?)?;
    let Some((&depth, outer)) = indices.shape().split_last() else {
        invalid!("Indices shape must have rank at least one. Found:{}", indices.shape());
    };
    if updates.shape().rank() == 0 && indices.shape().rank() > 1 {
        invalid!("Updates shape must have rank at least one. Found:{}", updates.shape());
    }
    if shape.num_elements() == 0 && (indices.num_elements() > 0 || updates.num_elements() > 0) {
        invalid!("Indices and updates specified for empty output.  indices shape: {}", indices.shape());
    }
    let (count, updates_shape) = (outer.len(), updates.shape());
    if updates_shape.get(..count) != Some(outer) {
        invalid!(
            "Dimensions [0,{count}) of indices[shape={}] must match dimensions [0,{count}) of updates[shape={updates_shape}]",
            indices.shape()
        );
    }
    if depth > shape.rank() || updates_shape[count..] != shape[depth..] {
        invalid!(
            "Dimensions [{depth},{}) of input[shape={shape}] must match dimensions [{count},{}) of updates[shape={updates_shape}]",
            shape.rank(),
            updates_shape.rank()
        );
    }
    let slices = slice_starts(indices, &shape, ignore, &|fact| format!("{fact} shape {shape}"))?;
    Ok((slices, shape))
}

/// A function `(slices, updates, out)` that adds each update to the slice of `out` that its index vector selects.
type AddSlices = fn(&SliceStarts, &Tensor, &mut Tensor) -> Result<()>;

fn add_slices<T: Semiring>(slices: &SliceStarts, updates: &Tensor, out: &mut Tensor) -> Result<()> {
    scatter(slices, updates.values::<T>()?, out.values_mut::<T>()?, |o, v| *o = o.plus(*v));
    Ok(())
}

/// Combines each update with the slice of `out` that its index vector selects, calling `add` for each element.
fn scatter<T>(slices: &SliceStarts, updates: &[T], out: &mut [T], add: impl Fn(&mut T, &T)) {
    if slices.length == 0 {
        return;
    }
    for (update, start) in updates.chunks_exact(slices.length).zip(&slices.starts) {
        if let Some(start) = *start {
            for (o, v) in out[start..start + slices.length].iter_mut().zip(update) {
                add(o, v);
            }
        }
    }
}
