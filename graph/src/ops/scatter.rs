//! Scatter updates of rows or slices of a variable (by reference or by handle), or of a tensor.

use super::resource::value_shape;
use super::{Gradient, OpDef, Traits};
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};
use smallvec::SmallVec;

/// Builds the op table row of an op on a reference variable.
macro_rules! by_reference {
    ($name:literal, $types:literal, $infer:ident, $($attr:literal),*) => {
        OpDef {
            name: $name,
            inputs: &["ref: Ref(T)", "indices: Tindices", "updates: T"],
            outputs: &["output_ref: Ref(T)"],
            attrs: &[$types, "Tindices: {int32, int64}", $($attr),*],
            infer: $infer,
            gradient: Gradient::Leaf,
            ..OpDef::NEW
        }
    };
}

/// Builds the op table row of an op on rows of a resource variable.
macro_rules! rows_by_handle {
    ($name:literal, $types:literal) => {
        OpDef {
            name: $name,
            inputs: &["resource: resource", "indices: Tindices", "updates: dtype"],
            attrs: &[$types, "Tindices: {int32, int64}"],
            infer: rows_behind_handle,
            gradient: Gradient::Leaf,
            traits: Traits::STATEFUL,
            ..OpDef::NEW
        }
    };
}

/// Builds the op table row of an op on slices of a resource variable.
macro_rules! slices_by_handle {
    ($name:literal) => {
        OpDef {
            name: $name,
            inputs: &["ref: resource", "indices: Tindices", "updates: T"],
            attrs: &[
                "T: type",
                "Tindices: {int32, int64}",
                "use_locking: bool = true",
                "bad_indices_policy: string = ''",
            ],
            infer: slices_behind_handle,
            gradient: Gradient::Leaf,
            traits: Traits::STATEFUL,
            ..OpDef::NEW
        }
    };
}

/// The op table fields of ops that change rows of a tensor.
const ROWS: OpDef = OpDef {
    inputs: &["x: T", "i: int32", "v: T"],
    outputs: &["y: T"],
    attrs: &["T: type"],
    infer: |infer| {
        let shape = infer.input(0);
        infer.set(0, shape);
        Ok(())
    },
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    by_reference!("ScatterAdd", "T: numbertype", rows, "use_locking: bool = false"),
    by_reference!("ScatterSub", "T: numbertype", rows, "use_locking: bool = false"),
    by_reference!("ScatterMul", "T: numbertype", rows, "use_locking: bool = false"),
    by_reference!("ScatterDiv", "T: numbertype", rows, "use_locking: bool = false"),
    by_reference!(
        "ScatterMin",
        "T: {half, bfloat16, float, double, int32, int64}",
        rows,
        "use_locking: bool = false"
    ),
    by_reference!(
        "ScatterMax",
        "T: {half, bfloat16, float, double, int32, int64}",
        rows,
        "use_locking: bool = false"
    ),
    by_reference!("ScatterUpdate", "T: type", rows, "use_locking: bool = true"),
    rows_by_handle!("ResourceScatterAdd", "dtype: numbertype"),
    rows_by_handle!("ResourceScatterSub", "dtype: numbertype"),
    rows_by_handle!("ResourceScatterMul", "dtype: numbertype"),
    rows_by_handle!("ResourceScatterDiv", "dtype: numbertype"),
    rows_by_handle!("ResourceScatterMin", "dtype: numbertype"),
    rows_by_handle!("ResourceScatterMax", "dtype: numbertype"),
    rows_by_handle!("ResourceScatterUpdate", "dtype: type"),
    by_reference!(
        "ScatterNdUpdate",
        "T: type",
        slices,
        "use_locking: bool = true",
        "bad_indices_policy: string = ''"
    ),
    by_reference!(
        "ScatterNdAdd",
        "T: numbertype",
        slices,
        "use_locking: bool = false",
        "bad_indices_policy: string = ''"
    ),
    by_reference!(
        "ScatterNdSub",
        "T: numbertype",
        slices,
        "use_locking: bool = false",
        "bad_indices_policy: string = ''"
    ),
    by_reference!(
        "ScatterNdMax",
        "T: numbertype",
        slices,
        "use_locking: bool = false",
        "bad_indices_policy: string = ''"
    ),
    by_reference!(
        "ScatterNdMin",
        "T: numbertype",
        slices,
        "use_locking: bool = false",
        "bad_indices_policy: string = ''"
    ),
    slices_by_handle!("ResourceScatterNdUpdate"),
    slices_by_handle!("ResourceScatterNdAdd"),
    slices_by_handle!("ResourceScatterNdSub"),
    slices_by_handle!("ResourceScatterNdMax"),
    slices_by_handle!("ResourceScatterNdMin"),
    OpDef {
        name: "TensorScatterUpdate",
        attrs: &["T: type", "Tindices: {int16, int32, int64, uint16}", "bad_indices_policy: string = ''"],
        gradient: Gradient::Defined(replaced_gradient),
        ..OF_TENSOR
    },
    OpDef { name: "TensorScatterAdd", ..OF_TENSOR },
    OpDef {
        name: "TensorScatterSub",
        gradient: Gradient::Defined(|scope, forward, dz| {
            let mut gradients = added_gradient(scope, forward, dz)?;
            gradients[2] = gradients[2].map(|by| scope.neg(by));
            Ok(gradients)
        }),
        ..OF_TENSOR
    },
    OpDef { name: "TensorScatterMax", gradient: Gradient::Defined(extreme_gradient), ..OF_TENSOR },
    OpDef { name: "TensorScatterMin", gradient: Gradient::Defined(extreme_gradient), ..OF_TENSOR },
    OpDef {
        name: "ScatterNdNonAliasingAdd",
        inputs: &["input: T", "indices: Tindices", "updates: T"],
        attrs: &[
            "T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, complex64, complex128, qint8, quint8, qint16, quint16, qint32, bool}",
            "Tindices: {int32, int64}",
            "bad_indices_policy: string = ''",
        ],
        ..OF_TENSOR
    },
    OpDef { name: "InplaceUpdate", ..ROWS },
    OpDef { name: "InplaceAdd", ..ROWS },
    OpDef { name: "InplaceSub", ..ROWS },
];

/// The op table row of an op on slices of a tensor.
const OF_TENSOR: OpDef = OpDef {
    inputs: &["tensor: T", "indices: Tindices", "updates: T"],
    outputs: &["output: T"],
    attrs: &["T: type", "Tindices: {int32, int64}", "bad_indices_policy: string = ''"],
    infer: slices,
    gradient: Gradient::Defined(added_gradient),
    ..OpDef::NEW
};

/// Returns the slices of `from` at the node's `indices` input.
fn gather_at_indices(scope: &Scope, forward: &Forward, from: Output) -> Result<Output> {
    let policy = forward.attr::<bytes::Bytes>("bad_indices_policy")?;
    let call = scope.op("GatherNd").input(from).input(forward.input(1));
    Ok(call.attr("bad_indices_policy", policy).output())
}

fn added_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(vec![None; 3]) };
    Ok(vec![Some(dz), None, Some(gather_at_indices(scope, forward, dz)?)])
}

fn replaced_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(vec![None; 3]) };
    let policy = forward.attr::<bytes::Bytes>("bad_indices_policy")?;
    let zeros = scope.zeros_like(forward.input(2));
    let kept = scope.op("TensorScatterUpdate").input(dz).input(forward.input(1)).input(zeros);
    let kept = kept.attr("bad_indices_policy", policy).output();
    Ok(vec![Some(kept), None, Some(gather_at_indices(scope, forward, dz)?)])
}

/// Gradient of a scatter minimum or maximum: `dz` divided equally among all elements that equal the result.
fn extreme_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(dz) = dz[0] else { return Ok(vec![None; 3]) };
    let (x, indices, updates, z) = (forward.input(0), forward.input(1), forward.input(2), forward.output(0));
    let dtype = scope.dtype(dz);
    let among = |a: Output, b: Output| {
        let equal = scope.op("Equal").input(a).input(b).output();
        scope.op("Cast").input(equal).attr("SrcT", DType::Bool).attr("DstT", dtype).output()
    };
    let (of_x, of_updates) = (among(x, z), among(updates, gather_at_indices(scope, forward, z)?));
    let policy = forward.attr::<bytes::Bytes>("bad_indices_policy")?;
    let shape = scope.shape_of_as(x, scope.dtype(indices));
    let placed = scope.op("ScatterNd").input(indices).input(of_updates).input(shape);
    let count = scope.add(of_x, placed.attr("bad_indices_policy", policy).output());
    let share = scope.op("RealDiv").input(dz).input(count).output();
    let back = scope.mul(gather_at_indices(scope, forward, share)?, of_updates);
    Ok(vec![Some(scope.mul(share, of_x)), None, Some(back)])
}

fn rows(infer: &mut Infer<'_>) -> Result<()> {
    let params = infer.input(0);
    check_rows(infer, &params)?;
    infer.set(0, params);
    Ok(())
}

fn rows_behind_handle(infer: &mut Infer<'_>) -> Result<()> {
    let params = value_shape(infer, 0, "dtype")?;
    check_rows(infer, &params)
}

/// Checks that the updates are a scalar, or have the shape of one variable row per index.
fn check_rows(infer: &Infer<'_>, params: &PartialShape) -> Result<()> {
    let (indices, updates) = (infer.input(1), infer.input(2));
    let (Some(row), Some(at), Some(rank)) = (params.dims(), indices.dims(), updates.rank()) else {
        return Ok(());
    };
    if row.is_empty() {
        return Err(Error::invalid("Shape must be at least rank 1 but is rank 0"));
    }
    if rank > 0 {
        let wanted: SmallVec<[Dim; 8]> = at.iter().chain(&row[1..]).copied().collect();
        PartialShape::of_dims(wanted).merge(&updates)?;
    }
    Ok(())
}

fn slices(infer: &mut Infer<'_>) -> Result<()> {
    let params = infer.input(0);
    check_slices(infer, &params)?;
    infer.set(0, params);
    Ok(())
}

fn slices_behind_handle(infer: &mut Infer<'_>) -> Result<()> {
    let params = value_shape(infer, 0, "T")?;
    check_slices(infer, &params)
}

/// Checks that the last axis of `indices` indexes the variable's first axes, and that the updates have the shape of
/// the indexed slices.
fn check_slices(infer: &Infer<'_>, params: &PartialShape) -> Result<()> {
    let (indices, updates) = (infer.input(1), infer.input(2));
    let (Some(params), Some(at), Some(_)) = (params.dims(), indices.dims(), updates.rank()) else {
        return Ok(());
    };
    let Some((depth, batch)) = at.split_last() else {
        return Err(Error::invalid("Shape must be at least rank 1 but is rank 0"));
    };
    let Some(depth) = *depth else { return Ok(()) };
    if depth > params.len() {
        crate::invalid!("indices have {depth} numbers each, the variable has {} dimensions", params.len());
    }
    let wanted: SmallVec<[Dim; 8]> = batch.iter().chain(&params[depth..]).copied().collect();
    PartialShape::of_dims(wanted).merge(&updates)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns whether shape inference of both the reference op and the resource op accepts these shapes of the
    /// variable, the indices and the updates.
    fn fits(rows: bool, params: &[usize], indices: &[usize], updates: &[usize]) -> bool {
        let shape = |dims: &[usize]| PartialShape::of_dims(dims.iter().map(|&d| Some(d)));
        let run = |by_handle: bool| {
            let s = Scope::new();
            let value = |dtype, dims| -> Output { s.identity(s.variable("x", dtype, shape(dims))) };
            let (at, by) = (value(DType::Int32, indices), value(DType::Float, updates));
            if by_handle {
                let v = s.var_handle("v", DType::Float, shape(params));
                if rows {
                    s.resource_scatter_add(v, at, by)
                } else {
                    s.resource_scatter_nd_add(v, at, by)
                };
            } else {
                let v = s.variable("v", DType::Float, shape(params));
                let out = if rows { s.scatter_add(v, at, by) } else { s.scatter_nd_add(v, at, by) };
                assert!(s.finish().is_err() || s.shape(out) == shape(params));
            }
            s.finish().is_ok()
        };
        assert_eq!(run(false), run(true));
        run(true)
    }

    #[test]
    fn updates_have_one_row_or_slice_per_index() {
        assert!(fits(true, &[3, 2], &[4, 5], &[4, 5, 2]));
        assert!(fits(true, &[3, 2], &[4, 5], &[]));
        assert!(!fits(true, &[3, 2], &[4, 5], &[4, 5, 3]));
        assert!(!fits(true, &[], &[4], &[4]));
        assert!(fits(false, &[3, 2], &[4, 1], &[4, 2]));
        assert!(fits(false, &[3, 2], &[4, 2], &[4]));
        assert!(!fits(false, &[3, 2], &[4, 3], &[4]));
        assert!(!fits(false, &[3, 2], &[4, 1], &[5, 2]));
        assert!(!fits(false, &[3, 2], &[], &[2]));
    }
}
