//! Gathering and scattering of elements by index.

use super::constant::scalar;
use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope, SliceIndex};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape, resolve_axis};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Gather",
        inputs: &["params: Tparams", "indices: Tindices"],
        outputs: &["output: Tparams"],
        attrs: &["validate_indices: bool = true", "Tparams: type", "Tindices: {int32, int64}"],
        infer: |infer| gather(infer, Some(0), 0),
        gradient: Gradient::Defined(|scope, forward, dz| {
            let dx = dz[0].map(|dz| scatter_back(scope, forward, dz, 0, 0)).transpose()?;
            Ok(first_only(forward, dx))
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "GatherV2",
        inputs: &["params: Tparams", "indices: Tindices", "axis: Taxis"],
        outputs: &["output: Tparams"],
        attrs: &[
            "batch_dims: int = 0",
            "Tparams: type",
            "Tindices: {int16, int32, int64}",
            "Taxis: {int32, int64}",
        ],
        infer: |infer| {
            let (axis, batch_dims) = (scalar(infer, 2)?, infer.attr("batch_dims")?);
            gather(infer, axis, batch_dims)
        },
        gradient: Gradient::Defined(gather_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "GatherNd",
        inputs: &["params: Tparams", "indices: Tindices"],
        outputs: &["output: Tparams"],
        attrs: &["Tparams: type", "Tindices: {int16, int32, int64}", "bad_indices_policy: string = ''"],
        infer: gather_nd,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
            let (dtype, indices) = wide_indices(scope, forward.input(1));
            let shape = scope.shape_of_as(forward.input(0), dtype);
            let policy = forward.attr::<bytes::Bytes>("bad_indices_policy")?;
            let call = scope.op("ScatterNd").input(indices).input(dz).input(shape);
            Ok(first_only(forward, Some(call.attr("bad_indices_policy", policy).output())))
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "ScatterNd",
        inputs: &["indices: Tindices", "updates: T", "shape: Tindices"],
        outputs: &["output: T"],
        attrs: &["T: type", "Tindices: {int16, int32, int64}", "bad_indices_policy: string = ''"],
        infer: scatter_nd,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let Some(dz) = dz[0] else { return Ok(vec![None; 3]) };
            let policy = forward.attr::<bytes::Bytes>("bad_indices_policy")?;
            let call = scope.op("GatherNd").input(dz).input(forward.input(0));
            Ok(vec![None, Some(call.attr("bad_indices_policy", policy).output()), None])
        }),
        ..OpDef::NEW
    },
];

/// Returns dimensions `from..to` of a shape, or `from..` if `to` is `None`. Returns `None` if the rank is unknown.
fn dims_between(shape: &PartialShape, from: usize, to: Option<usize>) -> Option<Vec<Dim>> {
    let dims = shape.dims()?;
    Some(dims.get(from..to.unwrap_or(dims.len())).unwrap_or_default().to_vec())
}

fn gather(infer: &mut Infer<'_>, axis: Option<i64>, batch_dims: i64) -> Result<()> {
    let (params, indices) = (infer.input(0), infer.input(1));
    let (Some(params_rank), Some(indices_rank)) = (params.rank(), indices.rank()) else { return Ok(()) };
    let batch = if batch_dims < 0 { batch_dims + indices_rank as i64 } else { batch_dims };
    let batch = usize::try_from(batch).ok().filter(|&b| b <= indices_rank).ok_or_else(|| {
        Error::invalid(format!(
            "Expected batch_dims in the range [-{indices_rank}, {indices_rank}], but got {batch_dims}"
        ))
    })?;
    if params_rank == 0 {
        crate::invalid!("params must be at least 1 dimensional");
    }
    let Some(axis) = axis else {
        infer.set(0, PartialShape::of_rank((params_rank - 1 + indices_rank).saturating_sub(batch)));
        return Ok(());
    };
    let Some(at) = resolve_axis(axis, params_rank) else {
        let at_least = if axis < 0 { -axis } else { axis.saturating_add(1) };
        crate::invalid!("Shape must be at least rank {at_least} but is rank {params_rank}");
    };
    if batch > at {
        crate::invalid!("batch_dims ({batch}) must be less than or equal to axis ({at}).");
    }
    let mut out = Vec::new();
    for i in 0..batch {
        let both = PartialShape::vector(params.dim(i)).merge(&PartialShape::vector(indices.dim(i)))?;
        out.push(both.dim(0));
    }
    out.extend(dims_between(&params, batch, Some(at)).unwrap_or_default());
    out.extend(dims_between(&indices, batch, None).unwrap_or_default());
    out.extend(dims_between(&params, at + 1, None).unwrap_or_default());
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

fn gather_nd(infer: &mut Infer<'_>) -> Result<()> {
    let params = infer.input(0);
    gather_nd_shape(infer, &params)
}

/// Infers the shape of slices of a tensor of the shape `params`, which the index vectors in input 1 select.
pub(super) fn gather_nd_shape(infer: &mut Infer<'_>, params: &PartialShape) -> Result<()> {
    let indices = infer.input(1);
    let (Some(params_rank), Some(indices_rank)) = (params.rank(), indices.rank()) else { return Ok(()) };
    let Some(last) = indices_rank.checked_sub(1) else {
        crate::invalid!("indices must be at least a vector");
    };
    let Some(depth) = indices.dim(last) else { return Ok(()) };
    if depth > params_rank {
        crate::invalid!("indices.shape[-1] must be <= params.rank, but saw {depth} vs. {params_rank}");
    }
    let mut out = dims_between(&indices, 0, Some(last)).unwrap_or_default();
    out.extend(dims_between(params, depth, None).unwrap_or_default());
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

fn scatter_nd(infer: &mut Infer<'_>) -> Result<()> {
    if infer.input(0).rank() == Some(0) {
        crate::invalid!("indices must be at least a vector");
    }
    infer.input_of_rank(2, 1)?;
    let shape = infer.value_as_shape(2)?;
    infer.set(0, shape);
    Ok(())
}

fn wide_indices(scope: &Scope, indices: Output) -> (DType, Output) {
    match scope.dtype(indices) {
        DType::Int16 => {
            let call = scope.op("Cast").input(indices).attr("SrcT", DType::Int16);
            (DType::Int32, call.attr("DstT", DType::Int32).output())
        }
        dtype => (dtype, indices),
    }
}

fn gather_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(first_only(forward, None)) };
    let axis = scope.value(forward.input(2)).map(|axis| axis.to_i64s()).transpose()?;
    let Some(&[axis]) = axis.as_deref() else {
        return Err(Error::unimplemented("the gradient of GatherV2 needs a constant axis"));
    };
    let batch: i64 = forward.attr("batch_dims")?;
    let dx = match (axis, batch) {
        (0, 0) => scatter_back(scope, forward, dz, 0, 0)?,
        _ => {
            let ranks = (scope.shape(forward.input(0)).rank(), scope.shape(forward.input(1)).rank());
            let (Some(params), Some(indices)) = ranks else {
                return Err(Error::unimplemented("the gradient of GatherV2 needs known ranks"));
            };
            let batch = if batch < 0 { batch + indices as i64 } else { batch };
            match (resolve_axis(axis, params), usize::try_from(batch)) {
                (Some(axis), Ok(batch)) => scatter_back(scope, forward, dz, axis, batch)?,
                _ => crate::invalid!("axis {axis} or batch_dims {batch} is out of range"),
            }
        }
    };
    Ok(first_only(forward, Some(dx)))
}

/// Gradient of Gather with respect to `params`: sums `dz` by index. The gathered axes of `dz` are moved to the front
/// and flattened to one axis, over which an unsorted segment sum runs.
fn scatter_back(scope: &Scope, forward: &Forward, dz: Output, axis: usize, batch: usize) -> Result<Output> {
    let (params, indices) = (forward.input(0), forward.input(1));
    let sizes = scope.shape_of(params);
    let between = |from: usize, to: Option<usize>| {
        scope.strided_slice(sizes, &[SliceIndex::Range(Some(from as i64), to.map(|t| t as i64), 1)])
    };
    let size = |at: usize| scope.strided_slice(sizes, &[SliceIndex::At(at as i64)]);
    let count = scope.reshape(scope.size_of(indices), &[1]);
    if axis == 0 && batch == 0 {
        let wanted = scope.concat(&[count, between(1, None)], 0);
        let values = scope.op("Reshape").input(dz).input(wanted).output();
        let ids = scope.reshape(indices, &[-1]);
        return Ok(scope.unsorted_segment_sum(values, ids, size(0)));
    }
    let (Some(dz_rank), Some(params_rank)) = (scope.shape(dz).rank(), scope.shape(params).rank()) else {
        return Err(Error::unimplemented("the gradient of GatherV2 needs known ranks"));
    };
    let gathered = dz_rank + 1 - params_rank;
    // The permutation puts the axes of `dz` in the order: batch axes, gathered axes, `params` axes before `axis`,
    // `params` axes after `axis`.
    let perm = (0..batch).chain(axis..axis + gathered).chain(batch..axis).chain(axis + gathered..dz_rank);
    let front = scope.transpose(dz, &perm.collect::<Vec<_>>());
    let (outer, inner) = (between(batch, Some(axis)), between(axis + 1, None));
    let wanted = scope.concat(&[count, outer, inner], 0);
    let values = scope.op("Reshape").input(front).input(wanted).output();
    let (dtype, mut ids) = wide_indices(scope, indices);
    let mut segments = size(axis);
    if batch > 0 {
        // Each batch element has its own range of segment ids, so that the sums of different batch elements stay
        // separate.
        let (zero, one, axes) = (scope.constant(0i32), scope.constant(1i32), scope.constant([0i32]));
        let batches = scope.op("Prod").input(between(0, Some(batch))).input(axes).output();
        let first = scope.mul(scope.range(zero, batches, one), segments);
        let first = match dtype {
            DType::Int32 => first,
            _ => scope.op("Cast").input(first).attr("SrcT", DType::Int32).attr("DstT", dtype).output(),
        };
        let rows = scope.pack(&[batches, scope.constant(-1i32)], 0);
        ids = scope.op("Reshape").input(ids).input(rows).output();
        ids = scope.add(ids, scope.expand_dims(first, 1));
        segments = scope.mul(segments, batches);
    }
    let summed = scope.unsorted_segment_sum(values, scope.reshape(ids, &[-1]), segments);
    let own = scope.reshape(size(axis), &[1]);
    let wanted = scope.concat(&[between(0, Some(batch)), own, outer, inner], 0);
    let summed = scope.op("Reshape").input(summed).input(wanted).output();
    let back = (0..params_rank).map(|i| match i {
        i if i == axis => batch,
        i if i >= batch && i < axis => i + 1,
        i => i,
    });
    Ok(scope.transpose(summed, &back.collect::<Vec<_>>()))
}
