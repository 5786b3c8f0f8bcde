//! Ragged tensors: rows of different lengths, stored as one tensor of values and row splits, which hold the start of
//! each row and the end of the last one.

use super::{Gradient, OpDef};
use crate::error::Result;
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
        ..OpDef::NEW
    },
    OpDef {
        name: "RaggedTensorToSparse",
        inputs: &["rt_nested_splits: RAGGED_RANK * Tsplits", "rt_dense_values: T"],
        outputs: &["sparse_indices: int64", "sparse_values: T", "sparse_dense_shape: int64"],
        attrs: &["RAGGED_RANK: int >= 1", "T: type", "Tsplits: {int32, int64} = int64"],
        infer: infer_sparse,
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
