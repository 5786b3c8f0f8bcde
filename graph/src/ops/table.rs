//! Lookup tables, behind a handle by reference (`HashTable`) or a resource (`HashTableV2`).

use super::check::scalar;
use super::queue::handle;
use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "HashTable",
        outputs: &["table_handle: Ref(string)"],
        attrs: &[
            "container: string = ''",
            "shared_name: string = ''",
            "use_node_name_sharing: bool = false",
            "key_dtype: type",
            "value_dtype: type",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "HashTableV2",
        outputs: &["table_handle: resource"],
        attrs: &[
            "container: string = ''",
            "shared_name: string = ''",
            "use_node_name_sharing: bool = false",
            "key_dtype: type",
            "value_dtype: type",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousHashTable",
        outputs: &["table_handle: resource"],
        attrs: &["key_dtype: type", "value_dtype: type"],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MutableHashTable",
        outputs: &["table_handle: Ref(string)"],
        attrs: &[
            "container: string = ''",
            "shared_name: string = ''",
            "use_node_name_sharing: bool = false",
            "key_dtype: type",
            "value_dtype: type",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MutableHashTableV2",
        outputs: &["table_handle: resource"],
        attrs: &[
            "container: string = ''",
            "shared_name: string = ''",
            "use_node_name_sharing: bool = false",
            "key_dtype: type",
            "value_dtype: type",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousMutableHashTable",
        outputs: &["table_handle: resource"],
        attrs: &["key_dtype: type", "value_dtype: type"],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MutableHashTableOfTensors",
        outputs: &["table_handle: Ref(string)"],
        attrs: &[
            "container: string = ''",
            "shared_name: string = ''",
            "use_node_name_sharing: bool = false",
            "key_dtype: type",
            "value_dtype: type",
            "value_shape: shape = []",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MutableHashTableOfTensorsV2",
        outputs: &["table_handle: resource"],
        attrs: &[
            "container: string = ''",
            "shared_name: string = ''",
            "use_node_name_sharing: bool = false",
            "key_dtype: type",
            "value_dtype: type",
            "value_shape: shape = []",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousMutableHashTableOfTensors",
        outputs: &["table_handle: resource"],
        attrs: &["key_dtype: type", "value_dtype: type", "value_shape: shape = []"],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MutableDenseHashTable",
        inputs: &["empty_key: key_dtype"],
        outputs: &["table_handle: Ref(string)"],
        attrs: &[
            "container: string = ''",
            "shared_name: string = ''",
            "use_node_name_sharing: bool = false",
            "key_dtype: type",
            "value_dtype: type",
            "value_shape: shape = []",
            "initial_num_buckets: int = 131072",
            "max_load_factor: float = 0.8",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MutableDenseHashTableV2",
        inputs: &["empty_key: key_dtype", "deleted_key: key_dtype"],
        outputs: &["table_handle: resource"],
        attrs: &[
            "container: string = ''",
            "shared_name: string = ''",
            "use_node_name_sharing: bool = false",
            "key_dtype: type",
            "value_dtype: type",
            "value_shape: shape = []",
            "initial_num_buckets: int = 131072",
            "max_load_factor: float = 0.8",
        ],
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
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
        infer: handle,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "InitializeTable",
        inputs: &["table_handle: Ref(string)", "keys: Tkey", "values: Tval"],
        attrs: &["Tkey: type", "Tval: type"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "InitializeTableV2",
        inputs: &["table_handle: resource", "keys: Tkey", "values: Tval"],
        attrs: &["Tkey: type", "Tval: type"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "InitializeTableFromTextFile",
        inputs: &["table_handle: Ref(string)", "filename: string"],
        attrs: &[
            "key_index: int >= -2",
            "value_index: int >= -2",
            "vocab_size: int >= -1 = -1",
            "delimiter: string = '\t'",
            "offset: int = 0",
        ],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "InitializeTableFromTextFileV2",
        inputs: &["table_handle: resource", "filename: string"],
        attrs: &[
            "key_index: int >= -2",
            "value_index: int >= -2",
            "vocab_size: int >= -1 = -1",
            "delimiter: string = '\t'",
            "offset: int = 0",
        ],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableFind",
        inputs: &["table_handle: Ref(string)", "keys: Tin", "default_value: Tout"],
        outputs: &["values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableFindV2",
        inputs: &["table_handle: resource", "keys: Tin", "default_value: Tout"],
        outputs: &["values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableInsert",
        inputs: &["table_handle: Ref(string)", "keys: Tin", "values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableInsertV2",
        inputs: &["table_handle: resource", "keys: Tin", "values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableRemoveV2",
        inputs: &["table_handle: resource", "keys: Tin"],
        attrs: &["Tin: type"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableImport",
        inputs: &["table_handle: Ref(string)", "keys: Tin", "values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableImportV2",
        inputs: &["table_handle: resource", "keys: Tin", "values: Tout"],
        attrs: &["Tin: type", "Tout: type"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableExport",
        inputs: &["table_handle: Ref(string)"],
        outputs: &["keys: Tkeys", "values: Tvalues"],
        attrs: &["Tkeys: type", "Tvalues: type"],
        infer: export,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableExportV2",
        inputs: &["table_handle: resource"],
        outputs: &["keys: Tkeys", "values: Tvalues"],
        attrs: &["Tkeys: type", "Tvalues: type"],
        infer: export,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableSize",
        inputs: &["table_handle: Ref(string)"],
        outputs: &["size: int64"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "LookupTableSizeV2",
        inputs: &["table_handle: resource"],
        outputs: &["size: int64"],
        infer: scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

fn export(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::of_rank(1));
    Ok(())
}
