//! Source datasets without an input dataset: tensors, ranges, random numbers, files.

use super::check::scalar;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;

/// The fields that the op table rows of all dataset ops share: the output is a variant that holds the dataset.
pub(super) const DATASET: OpDef =
    OpDef { outputs: &["handle: variant"], infer: scalar, gradient: Gradient::Leaf, ..OpDef::NEW };

/// The attributes that hold the types and shapes of a dataset's elements.
pub(super) const ELEMENTS: &[&str] = &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"];
pub(super) const ELEMENTS_AND_METADATA: &[&str] =
    &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "TensorDataset",
        inputs: &["components: Toutput_types"],
        attrs: &[
            "Toutput_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "TensorSliceDataset",
        inputs: &["components: Toutput_types"],
        attrs: &[
            "Toutput_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "is_files: bool = false",
            "metadata: string = ''",
            "replicate_on_split: bool = false",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "SparseTensorSliceDataset",
        inputs: &["indices: int64", "values: Tvalues", "dense_shape: int64"],
        attrs: &["Tvalues: type"],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "ListDataset",
        inputs: &["tensors: Tinput_types"],
        attrs: &[
            "Tinput_types: list(type) >= 1",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "RangeDataset",
        inputs: &["start: int64", "stop: int64", "step: int64"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
            "replicate_on_split: bool = false",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "RandomDataset",
        inputs: &["seed: int64", "seed2: int64"],
        attrs: ELEMENTS_AND_METADATA,
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "RandomDatasetV2",
        inputs: &["seed: int64", "seed2: int64", "seed_generator: resource"],
        attrs: &[
            "rerandomize_each_iteration: bool = false",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalRandomDataset",
        inputs: &["seed: int64", "seed2: int64"],
        attrs: ELEMENTS,
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "SqlDataset",
        inputs: &["driver_name: string", "data_source_name: string", "query: string"],
        attrs: ELEMENTS,
        infer: scalar_inputs,
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalSqlDataset",
        inputs: &["driver_name: string", "data_source_name: string", "query: string"],
        attrs: ELEMENTS,
        infer: scalar_inputs,
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "TextLineDataset",
        inputs: &["filenames: string", "compression_type: string", "buffer_size: int64"],
        attrs: &["metadata: string = ''"],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "TFRecordDataset",
        inputs: &["filenames: string", "compression_type: string", "buffer_size: int64"],
        attrs: &["metadata: string = ''"],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "TFRecordDatasetV2",
        inputs: &[
            "filenames: string",
            "compression_type: string",
            "buffer_size: int64",
            "byte_offsets: int64",
        ],
        attrs: &["metadata: string = ''"],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "FixedLengthRecordDataset",
        inputs: &[
            "filenames: string",
            "header_bytes: int64",
            "record_bytes: int64",
            "footer_bytes: int64",
            "buffer_size: int64",
        ],
        attrs: &["metadata: string = ''"],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "FixedLengthRecordDatasetV2",
        inputs: &[
            "filenames: string",
            "header_bytes: int64",
            "record_bytes: int64",
            "footer_bytes: int64",
            "buffer_size: int64",
            "compression_type: string",
        ],
        attrs: &["metadata: string = ''"],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "CSVDataset",
        inputs: &[
            "filenames: string",
            "compression_type: string",
            "buffer_size: int64",
            "header: bool",
            "field_delim: string",
            "use_quote_delim: bool",
            "na_value: string",
            "select_cols: int64",
            "record_defaults: output_types",
        ],
        attrs: &[
            "output_types: list({float, double, int32, int64, string}) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "CSVDatasetV2",
        inputs: &[
            "filenames: string",
            "compression_type: string",
            "buffer_size: int64",
            "header: bool",
            "field_delim: string",
            "use_quote_delim: bool",
            "na_value: string",
            "select_cols: int64",
            "record_defaults: output_types",
            "exclude_cols: int64",
        ],
        attrs: &[
            "output_types: list({float, double, int32, int64, string}) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalCSVDataset",
        inputs: &[
            "filenames: string",
            "compression_type: string",
            "buffer_size: int64",
            "header: bool",
            "field_delim: string",
            "use_quote_delim: bool",
            "na_value: string",
            "select_cols: int64",
            "record_defaults: output_types",
        ],
        attrs: &[
            "output_types: list({float, double, int32, int64, string}) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "GeneratorDataset",
        inputs: &[
            "init_func_other_args: Tinit_func_args",
            "next_func_other_args: Tnext_func_args",
            "finalize_func_other_args: Tfinalize_func_args",
        ],
        attrs: &[
            "init_func: func",
            "next_func: func",
            "finalize_func: func",
            "Tinit_func_args: list(type) >= 0",
            "Tnext_func_args: list(type) >= 0",
            "Tfinalize_func_args: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "metadata: string = ''",
        ],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef { name: "DatasetFromGraph", inputs: &["graph_def: string"], ..DATASET },
    OpDef {
        name: "WindowOp",
        inputs: &["inputs: Tinputs"],
        attrs: &[
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "Tinputs: list(type) >= 1",
        ],
        ..DATASET
    },
    OpDef {
        name: "MatchingFilesDataset",
        inputs: &["patterns: string"],
        traits: Traits::STATEFUL,
        ..DATASET
    },
    OpDef {
        name: "ExperimentalMatchingFilesDataset",
        inputs: &["patterns: string"],
        traits: Traits::STATEFUL,
        ..DATASET
    },
];

/// Checks that all inputs are scalars, and gives the output the shape of a scalar.
fn scalar_inputs(infer: &mut Infer<'_>) -> Result<()> {
    for i in 0..infer.num_inputs() {
        infer.input_of_rank(i, 0)?;
    }
    scalar(infer)
}
