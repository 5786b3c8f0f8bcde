//! Ops that query a dataset directly, without an iterator resource.

use super::check::scalar;
use super::dataset_source::ELEMENTS;
use super::iterator::element;
use super::queue::BY_RESOURCE;
use super::{Gradient, OpDef, Traits};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "DatasetCardinality",
        inputs: &["input_dataset: variant"],
        outputs: &["cardinality: int64"],
        attrs: &["cardinality_options: string = ''"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalDatasetCardinality",
        inputs: &["input_dataset: variant"],
        outputs: &["cardinality: int64"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DatasetFingerprint",
        inputs: &["input_dataset: variant"],
        outputs: &["fingerprint: uint64"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DatasetToGraph",
        inputs: &["input_dataset: variant"],
        outputs: &["graph: string"],
        attrs: &[
            "stateful_whitelist: list(string) >= 0 = []",
            "allow_stateful: bool = false",
            "strip_device_assignment: bool = false",
        ],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DatasetToGraphV2",
        inputs: &["input_dataset: variant"],
        outputs: &["graph: string"],
        attrs: &["external_state_policy: int = 0", "strip_device_assignment: bool = false"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "WrapDatasetVariant",
        inputs: &["input_handle: variant"],
        outputs: &["output_handle: variant"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UnwrapDatasetVariant",
        inputs: &["input_handle: variant"],
        outputs: &["output_handle: variant"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DatasetToSingleElement",
        inputs: &["dataset: variant"],
        outputs: &["components: output_types"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1", "metadata: string = ''"],
        infer: element,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "InitializeTableFromDataset",
        inputs: &["table_handle: resource", "dataset: variant"],
        ..BY_RESOURCE
    },
    OpDef {
        name: "DummyIterationCounter",
        outputs: &["handle: resource"],
        infer: super::check::scalar,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ReduceDataset",
        inputs: &["input_dataset: variant", "initial_state: Tstate", "other_arguments: Targuments"],
        outputs: &["components: output_types"],
        attrs: &[
            "f: func",
            "Tstate: list(type) >= 1",
            "Targuments: list(type) >= 0",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "use_inter_op_parallelism: bool = true",
            "metadata: string = ''",
        ],
        infer: element,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DatasetToTFRecord",
        inputs: &["input_dataset: variant", "filename: string", "compression_type: string"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalDatasetToTFRecord",
        inputs: &["input_dataset: variant", "filename: string", "compression_type: string"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "GetOptions",
        inputs: &["input_dataset: variant"],
        outputs: &["serialized_options: string"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ComputeBatchSize",
        inputs: &["input_dataset: variant"],
        outputs: &["batch_size: int64"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "GetElementAtIndex",
        inputs: &["dataset: variant", "index: int64"],
        outputs: &["components: output_types"],
        attrs: ELEMENTS,
        infer: element,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];
