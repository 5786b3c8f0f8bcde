//! Ragged tensors: rows of different lengths, stored as one tensor of values and row splits, which hold the start of
//! each row and the end of the last one.

use super::broadcast::arrived;
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope, SliceIndex};
use crate::dtype::DType;
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::PartialShape;
use bytes::Bytes;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "RaggedRange",
        inputs: &["starts: T", "limits: T", "deltas: T"],
        outputs: &["rt_nested_splits: Tsplits", "rt_dense_values: T"],
        attrs: &["T: {bfloat16, float, double, int32, int64} = int32", "Tsplits: {int32, int64} = int64"],
        infer: infer_range,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedGather",
        inputs: &[
            "params_nested_splits: PARAMS_RAGGED_RANK * Tsplits",
            "params_dense_values: Tvalues",
            "indices: Tindices",
        ],
        outputs: &["output_nested_splits: OUTPUT_RAGGED_RANK * Tsplits", "output_dense_values: Tvalues"],
        attrs: &[
            "Tvalues: type",
            "Tindices: {int32, int64}",
            "Tsplits: {int32, int64} = int64",
            "PARAMS_RAGGED_RANK: int >= 1",
            "OUTPUT_RAGGED_RANK: int >= 0",
        ],
        infer: infer_gather,
        gradient: Gradient::Defined(gather_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedTensorToSparse",
        inputs: &["rt_nested_splits: RAGGED_RANK * Tsplits", "rt_dense_values: T"],
        outputs: &["sparse_indices: int64", "sparse_values: T", "sparse_dense_shape: int64"],
        attrs: &["RAGGED_RANK: int >= 1", "T: type", "Tsplits: {int32, int64} = int64"],
        infer: infer_sparse,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let values = forward.inputs.len() - 1;
            let dz = dz.get(1).copied().flatten();
            let mut gradients = vec![None; values];
            gradients.push(dz.map(|dz| scope.reshape_like(dz, forward.input(values))));
            Ok(gradients)
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedTensorToTensor",
        inputs: &[
            "shape: Tshape",
            "values: T",
            "default_value: T",
            "row_partition_tensors: num_row_partition_tensors * Tindex",
        ],
        outputs: &["result: T"],
        attrs: &[
            "T: type",
            "Tindex: {int64, int32}",
            "Tshape: {int64, int32}",
            "num_row_partition_tensors: int >= 1",
            "row_partition_types: list(string)",
        ],
        infer: infer_dense,
        gradient: Gradient::Defined(dense_gradient),
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedTensorToVariant",
        inputs: &["rt_nested_splits: RAGGED_RANK * Tsplits", "rt_dense_values: Tvalues"],
        outputs: &["encoded_ragged: variant"],
        attrs: &[
            "RAGGED_RANK: int >= 0",
            "Tvalues: type",
            "Tsplits: {int32, int64} = int64",
            "batched_input: bool",
        ],
        infer: infer_variant,
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedTensorFromVariant",
        inputs: &["encoded_ragged: variant"],
        outputs: &["output_nested_splits: output_ragged_rank * Tsplits", "output_dense_values: Tvalues"],
        attrs: &[
            "input_ragged_rank: int >= -1",
            "output_ragged_rank: int >= 0",
            "Tvalues: type",
            "Tsplits: {int32, int64} = int64",
        ],
        infer: infer_from_variant,
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedTensorToVariantGradient",
        inputs: &["encoded_ragged_grad: variant", "row_splits: Tsplits", "dense_values_shape: int32"],
        outputs: &["dense_values_grad: Tvalues"],
        attrs: &["Tvalues: type", "Tsplits: {int32, int64} = int64"],
        infer: infer_values_gradient,
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedFillEmptyRows",
        inputs: &["value_rowids: int64", "values: T", "nrows: int64", "default_value: T"],
        outputs: &[
            "output_value_rowids: int64",
            "output_values: T",
            "empty_row_indicator: bool",
            "reverse_index_map: int64",
        ],
        attrs: &["T: type"],
        infer: infer_filled,
        gradient: Gradient::Defined(|scope, forward, dz| {
            let Some(dz) = dz.get(1).copied().flatten() else { return Ok(vec![None; 4]) };
            let both = scope.op("RaggedFillEmptyRowsGrad").input(forward.output(3)).input(dz).outputs();
            let &[values, default] = &both[..] else { return Ok(vec![None; 4]) };
            Ok(vec![None, Some(values), None, Some(default)])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedFillEmptyRowsGrad",
        inputs: &["reverse_index_map: int64", "grad_values: T"],
        outputs: &["d_values: T", "d_default_value: T"],
        attrs: &["T: type"],
        infer: |infer| {
            let map = infer.input_of_rank(0, 1)?;
            infer.input_of_rank(1, 1)?;
            infer.set(0, map);
            infer.set(1, PartialShape::scalar());
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedCross",
        inputs: &[
            "ragged_values: ragged_values_types",
            "ragged_row_splits: ragged_splits_types",
            "sparse_indices: Nsparse * int64",
            "sparse_values: sparse_values_types",
            "sparse_shape: Nsparse * int64",
            "dense_inputs: dense_types",
        ],
        outputs: &["output_values: out_values_type", "output_row_splits: out_row_splits_type"],
        attrs: &[
            "Nsparse: int >= 0",
            "input_order: string",
            "hashed_output: bool",
            "num_buckets: int >= 0",
            "hash_key: int",
            "ragged_values_types: list({int64, string}) >= 0",
            "ragged_splits_types: list({int32, int64}) >= 0",
            "sparse_values_types: list({int64, string}) >= 0",
            "dense_types: list({int64, string}) >= 0",
            "out_values_type: {int64, string}",
            "out_row_splits_type: {int32, int64}",
        ],
        infer: |infer| {
            infer.set(0, PartialShape::vector(None));
            infer.set(1, PartialShape::vector(None));
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

/// Returns the number of rows of a tensor, a scalar.
fn rows_of(scope: &Scope, x: Output) -> Output {
    scope.strided_slice(scope.shape_of(x), &[SliceIndex::At(0)])
}

/// Returns the gradients of RaggedGather: the gradient of each gathered value is added to that of the value.
fn gather_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let levels = forward.inputs.len() - 2;
    let mut gradients = vec![None; forward.inputs.len()];
    let Some(dz) = dz.last().copied().flatten() else { return Ok(gradients) };
    let values = forward.input(levels);
    // The first value of each row of the outermost level.
    let mut starts = forward.input(0);
    for level in 1..levels {
        starts = scope.gather(forward.input(level), starts, 0);
    }
    let rows = scope.reshape(forward.input(levels + 1), &[-1]);
    let ends = scope.strided_slice(starts, &[SliceIndex::Range(Some(1), None, 1)]);
    let one = match scope.dtype(starts) {
        DType::Int32 => scope.constant(1i32),
        _ => scope.constant(1i64),
    };
    let (from, to) = (scope.gather(starts, rows, 0), scope.gather(ends, rows, 0));
    let places = scope.op("RaggedRange").input(from).input(to).input(one);
    let places = places.attr("Tsplits", scope.dtype(starts)).outputs();
    let Some(&places) = places.get(1) else { return Ok(gradients) };
    gradients[levels] = Some(scope.unsorted_segment_sum(dz, places, rows_of(scope, values)));
    Ok(gradients)
}

/// Returns the gradients of RaggedTensorToTensor: that of a value is found at its place in the result, that of the default
/// value is the sum over the other places.
fn dense_gradient(scope: &Scope, forward: &Forward, dz: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let dz = arrived(forward, dz)?;
    let (values, default) = (forward.input(1), forward.input(2));
    let partitions: Vec<Output> = forward.inputs[3..].to_vec();
    let names: Vec<Bytes> = forward.attr("row_partition_types")?;
    let kinds = row_partition_types(&names, partitions.len())?;
    let levels = kinds.iter().filter(|kind| **kind != RowPartitionType::Size).count() as i64;
    let shape = scope.strided_slice(scope.shape_of(dz), &[SliceIndex::Range(None, Some(levels + 1), 1)]);
    // The number of the value at each place of the result, or -1 where the default value is.
    let count = rows_of(scope, values);
    let numbers =
        scope.op("Range").input(scope.constant(0i32)).input(count).input(scope.constant(1i32)).output();
    let none = scope.constant(-1i32);
    let places = scope.op("RaggedTensorToTensor").input(shape).input(numbers).input(none).input(partitions);
    let places = places.attr("row_partition_types", names).output();
    let of_values = scope.unsorted_segment_sum(dz, places, count);
    // Segment 0 for the default value; sums leave out segment -1.
    let is_default = scope.op("Equal").input(places).input(none).output();
    let is_default = scope.op("Cast").input(is_default).attr("DstT", DType::Int32).output();
    let segment = scope.op("Sub").input(is_default).input(scope.constant(1i32)).output();
    let sum = scope.unsorted_segment_sum(dz, segment, scope.constant(1i32));
    let sum = scope.sum_to_shape_of(scope.squeeze(sum, &[0]), default);
    let mut gradients = vec![None; forward.inputs.len()];
    gradients[1] = Some(of_values);
    gradients[2] = Some(scope.reshape_like(sum, default));
    Ok(gradients)
}

fn infer_filled(infer: &mut Infer<'_>) -> Result<()> {
    let ids = infer.input_of_rank(0, 1)?;
    infer.input_of_rank(1, 1)?;
    infer.input_of_rank(2, 0)?;
    infer.input_of_rank(3, 0)?;
    infer.set(0, [None]);
    infer.set(1, [None]);
    infer.set(2, [None]);
    infer.set(3, ids);
    Ok(())
}

fn infer_range(infer: &mut Infer<'_>) -> Result<()> {
    let mut rows = Some(1);
    for i in 0..3 {
        match infer.input(i).dims() {
            None => rows = rows.filter(|&n| n != 1),
            Some([]) => {}
            Some(&[n]) => {
                if let (Some(n), Some(known)) = (n, rows)
                    && known != 1
                    && known != n
                {
                    crate::invalid!("starts, limits, and deltas must have the same shape");
                }
                rows = n;
            }
            Some(_) => crate::invalid!("starts, limits, and deltas must be scalars or vectors"),
        }
        if rows.is_none() {
            break;
        }
    }
    infer.set(0, [rows.map(|n| n + 1)]);
    infer.set(1, [None]);
    Ok(())
}

fn infer_gather(infer: &mut Infer<'_>) -> Result<()> {
    let (levels, given): (i64, i64) = (infer.attr("OUTPUT_RAGGED_RANK")?, infer.attr("PARAMS_RAGGED_RANK")?);
    let (levels, given) = (levels as usize, given as usize);
    if let Some(rank) = infer.input(given + 1).rank()
        && rank + given != levels + 1
    {
        crate::invalid!("OUTPUT_RAGGED_RANK must be equal to PARAMS_RAGGED_RANK + indices.ndims - 1");
    }
    for level in 0..levels {
        infer.set(level, [None]);
    }
    if let Some(dims) = infer.input(given).dims() {
        let Some((_, inner)) = dims.split_first() else { crate::invalid!("params.rank must be nonzero") };
        infer.set(levels, PartialShape::of_dims(std::iter::once(None).chain(inner.iter().copied())));
    }
    Ok(())
}

fn infer_sparse(infer: &mut Infer<'_>) -> Result<()> {
    let levels = infer.num_inputs() - 1;
    let rank = infer.input(levels).rank().map(|rank| rank + levels);
    infer.set(0, [None, rank]);
    infer.set(1, [None]);
    infer.set(2, [rank]);
    Ok(())
}

fn infer_dense(infer: &mut Infer<'_>) -> Result<()> {
    let types =
        row_partition_types(&infer.attr::<Vec<Bytes>>("row_partition_types")?, infer.num_inputs() - 3)?;
    let levels = types.iter().filter(|kind| **kind != RowPartitionType::Size).count();
    let wanted = infer.value_as_shape(0)?;
    let (Some(wanted), Some(values)) = (wanted.dims(), infer.input(1).dims().map(<[_]>::to_vec)) else {
        return Ok(());
    };
    if wanted.len() != levels + values.len() {
        crate::invalid!(
            "rt_input.shape and shape are incompatible: rt_input.rank = {} but shape.rank = {}",
            levels + values.len(),
            wanted.len()
        );
    }
    let inner = values.iter().skip(1);
    let dims = wanted
        .iter()
        .enumerate()
        .map(|(i, &d)| d.or_else(|| *inner.clone().nth(i.checked_sub(levels + 1)?)?));
    infer.set(0, PartialShape::of_dims(dims.collect::<Vec<_>>()));
    Ok(())
}

fn infer_variant(infer: &mut Infer<'_>) -> Result<()> {
    let levels = infer.num_inputs() - 1;
    for level in 0..levels {
        infer.input_of_rank(level, 1)?;
    }
    if !infer.attr::<bool>("batched_input")? {
        infer.set(0, PartialShape::scalar());
        return Ok(());
    }
    let rows = match levels {
        0 => infer.input(0).dim(0),
        _ => infer.input(0).dim(0).and_then(|n| n.checked_sub(1)),
    };
    infer.set(0, [rows]);
    Ok(())
}

fn infer_from_variant(infer: &mut Infer<'_>) -> Result<()> {
    let (given, wanted): (i64, i64) = (infer.attr("input_ragged_rank")?, infer.attr("output_ragged_rank")?);
    let wanted = usize::try_from(wanted).unwrap_or(0);
    if given >= 0 {
        infer.input_of_rank(0, wanted.saturating_sub(given as usize))?;
    }
    for level in 0..wanted {
        infer.set(level, [None]);
    }
    Ok(())
}

fn infer_values_gradient(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.value_as_shape(2)?;
    infer.set(0, shape);
    Ok(())
}

/// The information that a row partition tensor holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowPartitionType {
    /// The number of rows.
    Size,
    /// The row of each value.
    RowIds,
    /// The start of each row, and the end of the last row.
    Splits,
}

/// Parses the row partition types of an attribute.
///
/// # Errors
/// `InvalidArgument` unless there are `count` known names in a valid order.
pub fn row_partition_types(names: &[Bytes], count: usize) -> Result<Vec<RowPartitionType>> {
    if names.len() != count {
        crate::invalid!(
            "Number of row partition tensors ({count}) does not equal the number of row partition types({}).",
            names.len()
        );
    }
    let kind = |name: &Bytes| match &name[..] {
        b"FIRST_DIM_SIZE" => Ok(RowPartitionType::Size),
        b"VALUE_ROWIDS" => Ok(RowPartitionType::RowIds),
        b"ROW_SPLITS" => Ok(RowPartitionType::Splits),
        b"ROW_LENGTHS" | b"ROW_LIMITS" | b"ROW_STARTS" => {
            crate::invalid!("Unsupported partition type: {}", String::from_utf8_lossy(name))
        }
        _ => crate::invalid!("Unknown string for partition info type: {}", String::from_utf8_lossy(name)),
    };
    let types = names.iter().map(kind).collect::<Result<Vec<_>>>()?;
    match types[..] {
        [RowPartitionType::RowIds, ..] => crate::invalid!("VALUE_ROWIDS cannot be first"),
        [RowPartitionType::Size] | [RowPartitionType::Size, RowPartitionType::Splits, ..] => {
            crate::invalid!("FIRST_DIM_SIZE must be followed by VALUE_ROWIDS")
        }
        _ if types.iter().skip(1).any(|kind| *kind == RowPartitionType::Size) => {
            crate::invalid!("FIRST_DIM_SIZE must be first")
        }
        _ => Ok(types),
    }
}
