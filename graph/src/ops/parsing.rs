//! Conversion of bytes to values: raw numbers, CSV, compressed strings, serialized tensors and examples.

use super::check::scalar;
use super::identity::same;
use super::{Gradient, OpDef, unknown_shapes};
use crate::error::Result;
use crate::infer::Infer;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "DecodeRaw",
        inputs: &["bytes: string"],
        outputs: &["output: out_type"],
        attrs: &[
            "out_type: {half, float, double, int32, uint16, uint8, int16, int8, int64, complex64, complex128, bool, bfloat16}",
            "little_endian: bool = true",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DecodePaddedRaw",
        inputs: &["input_bytes: string", "fixed_length: int32"],
        outputs: &["output: out_type"],
        attrs: &[
            "out_type: {half, float, double, int32, uint16, uint8, int16, int8, int64, bfloat16}",
            "little_endian: bool = true",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DecodeCSV",
        inputs: &["records: string", "record_defaults: OUT_TYPE"],
        outputs: &["output: OUT_TYPE"],
        attrs: &[
            "OUT_TYPE: list({float, double, int32, int64, string}) >= 1",
            "field_delim: string = ','",
            "use_quote_delim: bool = true",
            "na_value: string = ''",
            "select_cols: list(int) = []",
        ],
        infer: csv,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DecodeCompressed",
        inputs: &["bytes: string"],
        outputs: &["output: string"],
        attrs: &["compression_type: string = ''"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ParseTensor",
        inputs: &["serialized: string"],
        outputs: &["output: out_type"],
        attrs: &["out_type: type"],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "SerializeTensor",
        inputs: &["tensor: T"],
        outputs: &["serialized: string"],
        attrs: &["T: type"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ParseSingleExample",
        inputs: &["serialized: string", "dense_defaults: Tdense"],
        outputs: &[
            "sparse_indices: num_sparse * int64",
            "sparse_values: sparse_types",
            "sparse_shapes: num_sparse * int64",
            "dense_values: Tdense",
        ],
        attrs: &[
            "num_sparse: int >= 0",
            "sparse_keys: list(string) >= 0",
            "dense_keys: list(string) >= 0",
            "sparse_types: list({float, int64, string}) >= 0",
            "Tdense: list({float, int64, string}) >= 0",
            "dense_shapes: list(shape) >= 0",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ParseExample",
        inputs: &[
            "serialized: string",
            "names: string",
            "sparse_keys: Nsparse * string",
            "dense_keys: Ndense * string",
            "dense_defaults: Tdense",
        ],
        outputs: &[
            "sparse_indices: Nsparse * int64",
            "sparse_values: sparse_types",
            "sparse_shapes: Nsparse * int64",
            "dense_values: Tdense",
        ],
        attrs: &[
            "Nsparse: int >= 0",
            "Ndense: int >= 0",
            "sparse_types: list({float, int64, string}) >= 0",
            "Tdense: list({float, int64, string}) >= 0",
            "dense_shapes: list(shape) >= 0",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ParseExampleV2",
        inputs: &[
            "serialized: string",
            "names: string",
            "sparse_keys: string",
            "dense_keys: string",
            "ragged_keys: string",
            "dense_defaults: Tdense",
        ],
        outputs: &[
            "sparse_indices: num_sparse * int64",
            "sparse_values: sparse_types",
            "sparse_shapes: num_sparse * int64",
            "dense_values: Tdense",
            "ragged_values: ragged_value_types",
            "ragged_row_splits: ragged_split_types",
        ],
        attrs: &[
            "Tdense: list({float, int64, string}) >= 0",
            "num_sparse: int >= 0",
            "sparse_types: list({float, int64, string}) >= 0",
            "ragged_value_types: list({float, int64, string}) >= 0",
            "ragged_split_types: list({int32, int64}) >= 0",
            "dense_shapes: list(shape) >= 0",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ParseSequenceExample",
        inputs: &["serialized: string", "debug_name: string", "context_dense_defaults: Tcontext_dense"],
        outputs: &[
            "context_sparse_indices: Ncontext_sparse * int64",
            "context_sparse_values: context_sparse_types",
            "context_sparse_shapes: Ncontext_sparse * int64",
            "context_dense_values: Tcontext_dense",
            "feature_list_sparse_indices: Nfeature_list_sparse * int64",
            "feature_list_sparse_values: feature_list_sparse_types",
            "feature_list_sparse_shapes: Nfeature_list_sparse * int64",
            "feature_list_dense_values: feature_list_dense_types",
            "feature_list_dense_lengths: Nfeature_list_dense * int64",
        ],
        attrs: &[
            "feature_list_dense_missing_assumed_empty: list(string) >= 0",
            "context_sparse_keys: list(string) >= 0",
            "context_dense_keys: list(string) >= 0",
            "feature_list_sparse_keys: list(string) >= 0",
            "feature_list_dense_keys: list(string) >= 0",
            "Ncontext_sparse: int >= 0 = 0",
            "Ncontext_dense: int >= 0 = 0",
            "Nfeature_list_sparse: int >= 0 = 0",
            "Nfeature_list_dense: int >= 0 = 0",
            "context_sparse_types: list({float, int64, string}) >= 0 = []",
            "Tcontext_dense: list({float, int64, string}) >= 0 = []",
            "feature_list_dense_types: list({float, int64, string}) >= 0 = []",
            "context_dense_shapes: list(shape) >= 0 = []",
            "feature_list_sparse_types: list({float, int64, string}) >= 0 = []",
            "feature_list_dense_shapes: list(shape) >= 0 = []",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ParseSequenceExampleV2",
        inputs: &[
            "serialized: string",
            "debug_name: string",
            "context_sparse_keys: string",
            "context_dense_keys: string",
            "context_ragged_keys: string",
            "feature_list_sparse_keys: string",
            "feature_list_dense_keys: string",
            "feature_list_ragged_keys: string",
            "feature_list_dense_missing_assumed_empty: bool",
            "context_dense_defaults: Tcontext_dense",
        ],
        outputs: &[
            "context_sparse_indices: Ncontext_sparse * int64",
            "context_sparse_values: context_sparse_types",
            "context_sparse_shapes: Ncontext_sparse * int64",
            "context_dense_values: Tcontext_dense",
            "context_ragged_values: context_ragged_value_types",
            "context_ragged_row_splits: context_ragged_split_types",
            "feature_list_sparse_indices: Nfeature_list_sparse * int64",
            "feature_list_sparse_values: feature_list_sparse_types",
            "feature_list_sparse_shapes: Nfeature_list_sparse * int64",
            "feature_list_dense_values: feature_list_dense_types",
            "feature_list_dense_lengths: Nfeature_list_dense * int64",
            "feature_list_ragged_values: feature_list_ragged_value_types",
            "feature_list_ragged_outer_splits: feature_list_ragged_split_types",
            "feature_list_ragged_inner_splits: feature_list_ragged_split_types",
        ],
        attrs: &[
            "Ncontext_sparse: int >= 0 = 0",
            "Tcontext_dense: list({float, int64, string}) >= 0 = []",
            "context_sparse_types: list({float, int64, string}) >= 0 = []",
            "context_ragged_value_types: list({float, int64, string}) >= 0 = []",
            "context_ragged_split_types: list({int32, int64}) >= 0 = []",
            "context_dense_shapes: list(shape) >= 0 = []",
            "Nfeature_list_sparse: int >= 0 = 0",
            "Nfeature_list_dense: int >= 0 = 0",
            "feature_list_dense_types: list({float, int64, string}) >= 0 = []",
            "feature_list_sparse_types: list({float, int64, string}) >= 0 = []",
            "feature_list_ragged_value_types: list({float, int64, string}) >= 0 = []",
            "feature_list_ragged_split_types: list({int32, int64}) >= 0 = []",
            "feature_list_dense_shapes: list(shape) >= 0 = []",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ParseSingleSequenceExample",
        inputs: &[
            "serialized: string",
            "feature_list_dense_missing_assumed_empty: string",
            "context_sparse_keys: Ncontext_sparse * string",
            "context_dense_keys: Ncontext_dense * string",
            "feature_list_sparse_keys: Nfeature_list_sparse * string",
            "feature_list_dense_keys: Nfeature_list_dense * string",
            "context_dense_defaults: Tcontext_dense",
            "debug_name: string",
        ],
        outputs: &[
            "context_sparse_indices: Ncontext_sparse * int64",
            "context_sparse_values: context_sparse_types",
            "context_sparse_shapes: Ncontext_sparse * int64",
            "context_dense_values: Tcontext_dense",
            "feature_list_sparse_indices: Nfeature_list_sparse * int64",
            "feature_list_sparse_values: feature_list_sparse_types",
            "feature_list_sparse_shapes: Nfeature_list_sparse * int64",
            "feature_list_dense_values: feature_list_dense_types",
        ],
        attrs: &[
            "Ncontext_sparse: int >= 0 = 0",
            "Ncontext_dense: int >= 0 = 0",
            "Nfeature_list_sparse: int >= 0 = 0",
            "Nfeature_list_dense: int >= 0 = 0",
            "context_sparse_types: list({float, int64, string}) >= 0 = []",
            "Tcontext_dense: list({float, int64, string}) >= 0 = []",
            "feature_list_dense_types: list({float, int64, string}) >= 0 = []",
            "context_dense_shapes: list(shape) >= 0 = []",
            "feature_list_sparse_types: list({float, int64, string}) >= 0 = []",
            "feature_list_dense_shapes: list(shape) >= 0 = []",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

/// Gives each column the shape of the records.
fn csv(infer: &mut Infer<'_>) -> Result<()> {
    let shape = infer.input(0);
    infer.set_all(shape);
    Ok(())
}
