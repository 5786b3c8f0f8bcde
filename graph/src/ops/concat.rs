//! Concatenation and splitting of tensors along an axis.

use super::constant::scalar;
use super::shape::first_only;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape, resolve_axis};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "ConcatV2",
        inputs: &["values: N * T", "axis: Tidx"],
        outputs: &["output: T"],
        attrs: &["N: int >= 2", "T: type", "Tidx: {int32, int64} = int32"],
        infer: |infer| {
            let count = infer.num_inputs().saturating_sub(1);
            concat(infer, 0..count, count)
        },
        gradient: Gradient::Defined(|scope, forward, dz| {
            let count = forward.inputs.len() - 1;
            let mut grads = concat_gradient(scope, forward, dz, 0..count, count)?;
            grads.push(None);
            Ok(grads)
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "ParallelConcat",
        inputs: &["values: N * T"],
        outputs: &["output: T"],
        attrs: &["N: int >= 1", "T: type", "shape: shape"],
        infer: |infer| {
            let shape = infer.attr::<PartialShape>("shape")?;
            if !shape.is_fully_defined() {
                crate::invalid!("shape attr must be fully defined");
            }
            let row = PartialShape::of_dims(shape.dims().unwrap_or_default().iter().enumerate().map(
                |(i, dim)| {
                    if i == 0 { Some(1) } else { *dim }
                },
            ));
            for i in 0..infer.num_inputs() {
                infer.input(i).merge(&row)?;
            }
            infer.set(0, shape);
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "Concat",
        inputs: &["concat_dim: int32", "values: N * T"],
        outputs: &["output: T"],
        attrs: &["N: int >= 2", "T: type"],
        infer: |infer| {
            let count = infer.num_inputs();
            concat(infer, 1..count, 0)
        },
        gradient: Gradient::Defined(|scope, forward, dz| {
            let mut grads = concat_gradient(scope, forward, dz, 1..forward.inputs.len(), 0)?;
            grads.insert(0, None);
            Ok(grads)
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "ConcatOffset",
        inputs: &["concat_dim: int32", "shape: N * shape_type"],
        outputs: &["offset: N * shape_type"],
        attrs: &["N: int >= 2", "shape_type: {int32, int64} = int32"],
        infer: |infer| {
            for i in 1..infer.num_inputs() {
                let shape = infer.input_of_rank(i, 1)?;
                infer.set(i - 1, shape);
            }
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "Pack",
        inputs: &["values: N * T"],
        outputs: &["output: T"],
        attrs: &["N: int >= 1", "T: type", "axis: int = 0"],
        infer: pack,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let Some(dz) = dz[0] else { return Ok(vec![None; forward.inputs.len()]) };
            let axis: i64 = forward.attr("axis")?;
            let parts = scope.unpack(dz, forward.inputs.len(), axis);
            Ok(parts.into_iter().map(Some).collect())
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "Unpack",
        inputs: &["value: T"],
        outputs: &["output: num * T"],
        attrs: &["num: int >= 0", "T: type", "axis: int = 0"],
        infer: unpack,
        gradient: Gradient::Defined(|scope, forward, dz| {
            if dz.is_empty() {
                return Ok(vec![Some(scope.zeros_like(forward.input(0)))]);
            }
            let parts = with_zeros(scope, forward, dz);
            Ok(vec![Some(scope.pack(&parts, forward.attr("axis")?))])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "Split",
        inputs: &["split_dim: int32", "value: T"],
        outputs: &["output: num_split * T"],
        attrs: &["num_split: int >= 1", "T: type"],
        infer: split,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let parts = with_zeros(scope, forward, dz);
            Ok(vec![None, Some(scope.concat_along(&parts, forward.input(0)))])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "SplitV",
        inputs: &["value: T", "size_splits: Tlen", "split_dim: int32"],
        outputs: &["output: num_split * T"],
        attrs: &["num_split: int >= 1", "T: type", "Tlen: {int8, int32, int64} = int64"],
        infer: split_v,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let parts = with_zeros(scope, forward, dz);
            let dx = scope.concat_along(&parts, forward.input(2));
            Ok(first_only(forward, Some(dx)))
        }),
        ..OpDef::NEW
    },
];

/// Returns the gradients of all outputs, with zeros for outputs at which no gradient arrived.
pub(super) fn with_zeros(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Vec<Output> {
    let one = |(i, dz): (usize, &Option<Output>)| dz.unwrap_or_else(|| scope.zeros_like(forward.output(i)));
    dz.iter().enumerate().map(one).collect()
}

pub(super) fn concat(infer: &mut Infer<'_>, values: std::ops::Range<usize>, axis: usize) -> Result<()> {
    let Some(rank) = values.clone().find_map(|i| infer.input(i).rank()) else { return Ok(()) };
    if rank == 0 {
        crate::invalid!("Can't concatenate scalars (use tf.stack instead)");
    }
    let Some(axis) = scalar(infer, axis)? else {
        for i in values {
            infer.input_of_rank(i, rank)?;
        }
        infer.set(0, PartialShape::of_rank(rank));
        return Ok(());
    };
    let Some(at) = resolve_axis(axis, rank) else {
        crate::invalid!("Expected concatenating dimensions in the range [-{rank}, {rank}), but got {axis}");
    };
    let mut merged = PartialShape::of_rank(rank);
    let mut total: Dim = Some(0);
    for i in values {
        let shape = infer.input_of_rank(i, rank)?;
        total = total.zip(shape.dim(at)).and_then(|(t, d)| t.checked_add(d));
        merged = merged.merge(&with_dim(&shape, at, None))?;
    }
    infer.set(0, with_dim(&merged, at, total));
    Ok(())
}

/// Returns the shape with one dimension replaced.
pub(super) fn with_dim(shape: &PartialShape, at: usize, dim: Dim) -> PartialShape {
    match shape.dims() {
        Some(dims) => {
            PartialShape::of_dims(dims.iter().enumerate().map(|(i, &d)| if i == at { dim } else { d }))
        }
        None => PartialShape::unknown(),
    }
}

/// Gradient of Concat: `dz` sliced at the boundaries of the inputs.
fn concat_gradient(
    scope: &Scope,
    forward: &Forward,
    dz: &[Option<Output>],
    values: std::ops::Range<usize>,
    axis: usize,
) -> Result<Vec<Option<Output>>> {
    let parts: Vec<Output> = values.map(|i| forward.input(i)).collect();
    let Some(dz) = dz[0] else { return Ok(vec![None; parts.len()]) };
    let mut axis = forward.input(axis);
    if scope.dtype(axis) == DType::Int64 {
        axis = scope.op("Cast").input(axis).attr("SrcT", DType::Int64).attr("DstT", DType::Int32).output();
    }
    let sizes: Vec<Output> = parts.iter().map(|&p| scope.shape_of(p)).collect();
    let offsets = scope.op("ConcatOffset").input(axis).input(sizes.as_slice()).outputs();
    let cut = |(offset, size)| Some(scope.op("Slice").input(dz).input(offset).input(size).output());
    Ok(offsets.into_iter().zip(sizes).map(cut).collect())
}

fn pack(infer: &mut Infer<'_>) -> Result<()> {
    let mut shape = PartialShape::unknown();
    for i in 0..infer.num_inputs() {
        shape = shape.merge(&infer.input(i))?;
    }
    let Some(dims) = shape.dims() else { return Ok(()) };
    let (axis, rank) = (infer.attr::<i64>("axis")?, dims.len() + 1);
    let Some(at) = resolve_axis(axis, rank) else {
        crate::invalid!("axis = {axis} not in [-{rank}, {rank})");
    };
    let mut out = dims.to_vec();
    out.insert(at, Some(infer.num_inputs()));
    infer.set(0, PartialShape::of_dims(out));
    Ok(())
}

fn unpack(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(0);
    let Some(dims) = input.dims() else { return Ok(()) };
    let (axis, rank, num) = (infer.attr::<i64>("axis")?, dims.len(), infer.num_outputs());
    let Some(at) = resolve_axis(axis, rank) else {
        crate::invalid!("axis = {axis} not in [{}, {rank})", -(rank as i64));
    };
    if let Some(size) = dims[at]
        && size != num
    {
        crate::invalid!("Input shape axis {at} must equal {num}, got shape {input}");
    }
    let mut out = dims.to_vec();
    out.remove(at);
    infer.set_all(PartialShape::of_dims(out));
    Ok(())
}

/// Returns the axis of a split; `None` if the axis or the rank is unknown.
fn split_axis(infer: &Infer<'_>, input: &PartialShape, i: usize) -> Result<Option<usize>> {
    let (Some(rank), Some(axis)) = (input.rank(), scalar(infer, i)?) else { return Ok(None) };
    match resolve_axis(axis, rank) {
        Some(at) => Ok(Some(at)),
        None => {
            crate::invalid!("-input rank(-{rank}) <= split_dim < input rank ({rank}), but got {axis}")
        }
    }
}

fn split(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(1);
    let num = infer.num_outputs();
    let Some(at) = split_axis(infer, &input, 0)? else {
        infer.set_all(input.rank().map_or(PartialShape::unknown(), PartialShape::of_rank));
        return Ok(());
    };
    let size = input.dim(at);
    if let Some(size) = size
        && size % num != 0
    {
        crate::invalid!(
            "Number of ways to split should evenly divide the split dimension, but got split_dim {at} (size = {size}) and num_split {num}"
        );
    }
    infer.set_all(with_dim(&input, at, size.map(|s| s / num)));
    Ok(())
}

fn split_v(infer: &mut Infer<'_>) -> Result<()> {
    let input = infer.input(0);
    infer.input_of_rank(1, 1)?;
    let Some(at) = split_axis(infer, &input, 2)? else {
        infer.set_all(input.rank().map_or(PartialShape::unknown(), PartialShape::of_rank));
        return Ok(());
    };
    let sizes = match infer.value(1).and_then(|s| s.to_i64s().ok()) {
        Some(sizes) if sizes.len() == infer.num_outputs() => sizes,
        _ => {
            infer.set_all(with_dim(&input, at, None));
            return Ok(());
        }
    };
    let named = sizes.iter().filter(|&&s| s > 0).try_fold(0i64, |n, &s| n.checked_add(s));
    let total = input.dim(at).and_then(|d| i64::try_from(d).ok());
    for (i, &size) in sizes.iter().enumerate() {
        let size = match size {
            -1 => total.zip(named).and_then(|(t, n)| usize::try_from(t - n).ok()),
            size => usize::try_from(size).ok(),
        };
        infer.set(i, with_dim(&input, at, size));
    }
    Ok(())
}
