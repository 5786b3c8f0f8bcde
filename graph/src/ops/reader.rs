//! Readers of files whose names come from a queue, behind a handle that is a reference (`TextLineReader`) or a
//! resource (`TextLineReaderV2`).

use super::queue::{BY_REFERENCE, BY_RESOURCE, HANDLE};
use super::{Gradient, OpDef, Traits, unknown_shapes};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

const SHARED: &[&str] = &["container: string = ''", "shared_name: string = ''"];

const TEXT_LINES: &[&str] =
    &["skip_header_lines: int = 0", "container: string = ''", "shared_name: string = ''"];

const TF_RECORDS: &[&str] =
    &["container: string = ''", "shared_name: string = ''", "compression_type: string = ''"];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "RecordInput",
        outputs: &["records: string"],
        attrs: &[
            "file_pattern: string",
            "file_random_seed: int = 301",
            "file_shuffle_shift_ratio: float = 0.0",
            "file_buffer_size: int = 10000",
            "file_parallelism: int = 16",
            "batch_size: int = 32",
            "compression_type: string = ''",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef { name: "WholeFileReader", outputs: &["reader_handle: Ref(string)"], attrs: SHARED, ..HANDLE },
    OpDef { name: "WholeFileReaderV2", outputs: &["reader_handle: resource"], attrs: SHARED, ..HANDLE },
    OpDef { name: "IdentityReader", outputs: &["reader_handle: Ref(string)"], attrs: SHARED, ..HANDLE },
    OpDef { name: "IdentityReaderV2", outputs: &["reader_handle: resource"], attrs: SHARED, ..HANDLE },
    OpDef { name: "TextLineReader", outputs: &["reader_handle: Ref(string)"], attrs: TEXT_LINES, ..HANDLE },
    OpDef { name: "TextLineReaderV2", outputs: &["reader_handle: resource"], attrs: TEXT_LINES, ..HANDLE },
    OpDef { name: "TFRecordReader", outputs: &["reader_handle: Ref(string)"], attrs: TF_RECORDS, ..HANDLE },
    OpDef { name: "TFRecordReaderV2", outputs: &["reader_handle: resource"], attrs: TF_RECORDS, ..HANDLE },
    OpDef {
        name: "FixedLengthRecordReader",
        outputs: &["reader_handle: Ref(string)"],
        attrs: &[
            "header_bytes: int = 0",
            "record_bytes: int",
            "footer_bytes: int = 0",
            "hop_bytes: int = 0",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        ..HANDLE
    },
    OpDef {
        name: "FixedLengthRecordReaderV2",
        outputs: &["reader_handle: resource"],
        attrs: &[
            "header_bytes: int = 0",
            "record_bytes: int",
            "footer_bytes: int = 0",
            "hop_bytes: int = 0",
            "container: string = ''",
            "shared_name: string = ''",
            "encoding: string = ''",
        ],
        ..HANDLE
    },
    OpDef {
        name: "ReaderRead",
        inputs: &["reader_handle: Ref(string)", "queue_handle: Ref(string)"],
        outputs: &["key: string", "value: string"],
        infer: scalars,
        ..BY_REFERENCE
    },
    OpDef {
        name: "ReaderReadV2",
        inputs: &["reader_handle: resource", "queue_handle: resource"],
        outputs: &["key: string", "value: string"],
        infer: scalars,
        ..BY_RESOURCE
    },
    OpDef {
        name: "ReaderReadUpTo",
        inputs: &["reader_handle: Ref(string)", "queue_handle: Ref(string)", "num_records: int64"],
        outputs: &["keys: string", "values: string"],
        infer: record_vectors,
        ..BY_REFERENCE
    },
    OpDef {
        name: "ReaderReadUpToV2",
        inputs: &["reader_handle: resource", "queue_handle: resource", "num_records: int64"],
        outputs: &["keys: string", "values: string"],
        infer: record_vectors,
        ..BY_RESOURCE
    },
    OpDef {
        name: "ReaderNumRecordsProduced",
        inputs: &["reader_handle: Ref(string)"],
        outputs: &["records_produced: int64"],
        infer: scalars,
        ..BY_REFERENCE
    },
    OpDef {
        name: "ReaderNumRecordsProducedV2",
        inputs: &["reader_handle: resource"],
        outputs: &["records_produced: int64"],
        infer: scalars,
        ..BY_RESOURCE
    },
    OpDef {
        name: "ReaderNumWorkUnitsCompleted",
        inputs: &["reader_handle: Ref(string)"],
        outputs: &["units_completed: int64"],
        infer: scalars,
        ..BY_REFERENCE
    },
    OpDef {
        name: "ReaderNumWorkUnitsCompletedV2",
        inputs: &["reader_handle: resource"],
        outputs: &["units_completed: int64"],
        infer: scalars,
        ..BY_RESOURCE
    },
    OpDef {
        name: "ReaderSerializeState",
        inputs: &["reader_handle: Ref(string)"],
        outputs: &["state: string"],
        infer: scalars,
        ..BY_REFERENCE
    },
    OpDef {
        name: "ReaderSerializeStateV2",
        inputs: &["reader_handle: resource"],
        outputs: &["state: string"],
        infer: scalars,
        ..BY_RESOURCE
    },
    OpDef {
        name: "ReaderRestoreState",
        inputs: &["reader_handle: Ref(string)", "state: string"],
        infer: restore,
        ..BY_REFERENCE
    },
    OpDef {
        name: "ReaderRestoreStateV2",
        inputs: &["reader_handle: resource", "state: string"],
        infer: restore,
        ..BY_RESOURCE
    },
    OpDef { name: "ReaderReset", inputs: &["reader_handle: Ref(string)"], ..BY_REFERENCE },
    OpDef { name: "ReaderResetV2", inputs: &["reader_handle: resource"], ..BY_RESOURCE },
];

fn scalars(infer: &mut Infer<'_>) -> Result<()> {
    infer.set_all(PartialShape::scalar());
    Ok(())
}

/// Sets the shapes of the keys and the values: vectors of unknown length.
fn record_vectors(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(2, 0)?;
    infer.set(0, PartialShape::of_rank(1));
    infer.set(1, PartialShape::of_rank(1));
    Ok(())
}

fn restore(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(1, 0)?;
    Ok(())
}
