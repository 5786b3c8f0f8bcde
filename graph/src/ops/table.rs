//! Lookup tables, behind a handle that is a reference (`HashTable`) or a resource (`HashTableV2`).

use super::OpDef;
use super::check::scalar;
use super::queue::{BY_REFERENCE, BY_RESOURCE, HANDLE};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

const TABLE: &[&str] = &[
    "container: string = ''",
    "shared_name: string = ''",
    "use_node_name_sharing: bool = false",
    "key_dtype: type",
    "value_dtype: type",
];

const OF_TENSORS: &[&str] = &[
    "container: string = ''",
    "shared_name: string = ''",
    "use_node_name_sharing: bool = false",
    "key_dtype: type",
    "value_dtype: type",
    "value_shape: shape = []",
];

const DENSE: &[&str] = &[
    "container: string = ''",
    "shared_name: string = ''",
    "use_node_name_sharing: bool = false",
    "key_dtype: type",
    "value_dtype: type",
    "value_shape: shape = []",
    "initial_num_buckets: int = 131072",
    "max_load_factor: float = 0.8",
];

const TEXT_FILE: &[&str] = &[
    "key_index: int >= -2",
    "value_index: int >= -2",
    "vocab_size: int >= -1 = -1",
    "delimiter: string = '\t'",
    "offset: int = 0",
];

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "HashTable", outputs: &["table_handle: Ref(string)"], attrs: TABLE, ..HANDLE },
    OpDef { name: "HashTableV2", outputs: &["table_handle: resource"], attrs: TABLE, ..HANDLE },
    OpDef {
        name: "AnonymousHashTable",
        outputs: &["table_handle: resource"],
        attrs: &["key_dtype: type", "value_dtype: type"],
        ..HANDLE
    },
    OpDef { name: "MutableHashTable", outputs: &["table_handle: Ref(string)"], attrs: TABLE, ..HANDLE },
    OpDef { name: "MutableHashTableV2", outputs: &["table_handle: resource"], attrs: TABLE, ..HANDLE },
    OpDef {
        name: "AnonymousMutableHashTable",
        outputs: &["table_handle: resource"],
        attrs: &["key_dtype: type", "value_dtype: type"],
        ..HANDLE
    },
    OpDef {
        name: "MutableHashTableOfTensors",
        outputs: &["table_handle: Ref(string)"],
        attrs: OF_TENSORS,
        ..HANDLE
    },
    OpDef {
        name: "MutableHashTableOfTensorsV2",
        outputs: &["table_handle: resource"],
        attrs: OF_TENSORS,
        ..HANDLE
    },
    OpDef {
        name: "AnonymousMutableHashTableOfTensors",
        outputs: &["table_handle: resource"],
        attrs: &["key_dtype: type", "value_dtype: type", "value_shape: shape = []"],
        ..HANDLE
    },
    OpDef {
        name: "MutableDenseHashTable",
        inputs: &["empty_key: key_dtype"],
        outputs: &["table_handle: Ref(string)"],
        attrs: DENSE,
        ..HANDLE
    },
    OpDef {
        name: "MutableDenseHashTableV2",
        inputs: &["empty_key: key_dtype", "deleted_key: key_dtype"],
        outputs: &["table_handle: resource"],
        attrs: DENSE,
        ..HANDLE
    },
    OpDef {
        name: "AnonymousMutableDenseHashTable",
        inputs: &["empty_key: key_dtype", "deleted_key: key_dtype"],
        outputs: &["table_handle: resource"],
        attrs: &[
            "key_dtype: type",
            "value_dtype: type",
            "value_shape: shape = []",
            "initial_num_buckets: int = 131072",
            "max_load_factor: float = 0.8",
        ],
        ..HANDLE
    },
    OpDef {
        name: "InitializeTable",
        inputs: &["table_handle: Ref(string)", "keys: Tkey", "values: Tval"],
        attrs: &["Tkey: type", "Tval: type"],
        ..BY_REFERENCE
    },
    OpDef {
        name: "InitializeTableV2",
        inputs: &["table_handle: resource", "keys: Tkey", "values: Tval"],
        attrs: &["Tkey: type", "Tval: type"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "InitializeTableFromTextFile",
        inputs: &["table_handle: Ref(string)", "filename: string"],
        attrs: TEXT_FILE,
        ..BY_REFERENCE
    },
    OpDef {
        name: "InitializeTableFromTextFileV2",
        inputs: &["table_handle: resource", "filename: string"],
        attrs: TEXT_FILE,
        ..BY_RESOURCE
    },
    OpDef {
        name: "LookupTableFind",
        inputs: &["table_handle: Ref(string)", "keys: Tin", "default_value: Tout"],
        outputs: &["values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        ..BY_REFERENCE
    },
    OpDef {
        name: "LookupTableFindV2",
        inputs: &["table_handle: resource", "keys: Tin", "default_value: Tout"],
        outputs: &["values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "LookupTableInsert",
        inputs: &["table_handle: Ref(string)", "keys: Tin", "values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        ..BY_REFERENCE
    },
    OpDef {
        name: "LookupTableInsertV2",
        inputs: &["table_handle: resource", "keys: Tin", "values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "LookupTableRemoveV2",
        inputs: &["table_handle: resource", "keys: Tin"],
        attrs: &["Tin: type"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "LookupTableImport",
        inputs: &["table_handle: Ref(string)", "keys: Tin", "values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        ..BY_REFERENCE
    },
    OpDef {
        name: "LookupTableImportV2",
        inputs: &["table_handle: resource", "keys: Tin", "values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "LookupTableExport",
        inputs: &["table_handle: Ref(string)"],
        outputs: &["keys: Tkeys", "values: Tvalues"],
        attrs: &["Tkeys: type", "Tvalues: type"],
        infer: export,
        ..BY_REFERENCE
    },
    OpDef {
        name: "LookupTableExportV2",
        inputs: &["table_handle: resource"],
        outputs: &["keys: Tkeys", "values: Tvalues"],
        attrs: &["Tkeys: type", "Tvalues: type"],
        infer: export,
        ..BY_RESOURCE
    },
    OpDef {
        name: "LookupTableSize",
        inputs: &["table_handle: Ref(string)"],
        outputs: &["size: int64"],
        infer: scalar,
        ..BY_REFERENCE
    },
    OpDef {
        name: "LookupTableSizeV2",
        inputs: &["table_handle: resource"],
        outputs: &["size: int64"],
        infer: scalar,
        ..BY_RESOURCE
    },
];

fn export(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::of_rank(1));
    Ok(())
}
