//! Iterators: resources that return the elements of a dataset one by one.

use super::{Gradient, OpDef, Traits};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Iterator",
        outputs: &["handle: resource"],
        attrs: &[
            "shared_name: string",
            "container: string",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "IteratorV2",
        outputs: &["handle: resource"],
        attrs: &[
            "shared_name: string",
            "container: string",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousIterator",
        outputs: &["handle: resource"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousIteratorV2",
        outputs: &["handle: resource", "deleter: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousIteratorV3",
        outputs: &["handle: resource"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MakeIterator",
        inputs: &["dataset: variant", "iterator: resource"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "OneShotIterator",
        outputs: &["handle: resource"],
        attrs: &[
            "dataset_factory: func",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
            "container: string = ''",
            "shared_name: string = ''",
        ],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "IteratorGetNext",
        inputs: &["iterator: resource"],
        outputs: &["components: output_types"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: element,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "IteratorGetNextSync",
        inputs: &["iterator: resource"],
        outputs: &["components: output_types"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: element,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "IteratorGetNextAsOptional",
        inputs: &["iterator: resource"],
        outputs: &["optional: variant"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "IteratorToStringHandle",
        inputs: &["resource_handle: resource"],
        outputs: &["string_handle: string"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "IteratorFromStringHandle",
        inputs: &["string_handle: string"],
        outputs: &["resource_handle: resource"],
        attrs: &["output_types: list(type) >= 0 = []", "output_shapes: list(shape) >= 0 = []"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "IteratorFromStringHandleV2",
        inputs: &["string_handle: string"],
        outputs: &["resource_handle: resource"],
        attrs: &["output_types: list(type) >= 0 = []", "output_shapes: list(shape) >= 0 = []"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "IteratorGetDevice",
        inputs: &["resource: resource"],
        outputs: &["device: string"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "ExperimentalIteratorGetDevice",
        inputs: &["resource: resource"],
        outputs: &["device: string"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "IteratorGetModelProto",
        inputs: &["iterator: resource"],
        outputs: &["model_proto: string"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeleteIterator",
        inputs: &["handle: resource", "deleter: variant"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "SerializeIterator",
        inputs: &["resource_handle: resource"],
        outputs: &["serialized: variant"],
        attrs: &["external_state_policy: int = 0"],
        infer: state_vector,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeserializeIterator",
        inputs: &["resource_handle: resource", "serialized: variant"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MultiDeviceIterator",
        outputs: &["handle: resource"],
        attrs: &[
            "devices: list(string) >= 1",
            "shared_name: string",
            "container: string",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousMultiDeviceIterator",
        outputs: &["handle: resource", "deleter: variant"],
        attrs: &[
            "devices: list(string) >= 1",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "AnonymousMultiDeviceIteratorV3",
        outputs: &["handle: resource"],
        attrs: &[
            "devices: list(string) >= 1",
            "output_types: list(type) >= 1",
            "output_shapes: list(shape) >= 1",
        ],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MultiDeviceIteratorInit",
        inputs: &["dataset: variant", "multi_device_iterator: resource", "max_buffer_size: int64"],
        outputs: &["incarnation_id: int64"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MultiDeviceIteratorGetNextFromShard",
        inputs: &["multi_device_iterator: resource", "shard_num: int32", "incarnation_id: int64"],
        outputs: &["components: output_types"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MultiDeviceIteratorToStringHandle",
        inputs: &["multi_device_iterator: resource"],
        outputs: &["string_handle: string"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "MultiDeviceIteratorFromStringHandle",
        inputs: &["string_handle: string"],
        outputs: &["multi_device_iterator: resource"],
        attrs: &["output_types: list(type) >= 0 = []", "output_shapes: list(shape) >= 0 = []"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
    OpDef {
        name: "DeleteMultiDeviceIterator",
        inputs: &["multi_device_iterator: resource", "iterators: N * resource", "deleter: variant"],
        attrs: &["N: int >= 0"],
        infer: scalars,
        gradient: Gradient::Leaf,
        traits: Traits::STATEFUL,
        ..OpDef::NEW
    },
];

/// Sets every output to the shape of a scalar.
pub(super) fn scalars(infer: &mut Infer<'_>) -> Result<()> {
    infer.set_all(PartialShape::scalar());
    Ok(())
}

/// Sets the shapes of the outputs, the components of a dataset element, to the attribute `output_shapes`.
pub(super) fn element(infer: &mut Infer<'_>) -> Result<()> {
    let shapes = infer.attr::<Vec<PartialShape>>("output_shapes")?;
    if shapes.len() != infer.num_outputs() {
        crate::invalid!(
            "`output_shapes` must be the same length as `output_types` ({} vs. {})",
            shapes.len(),
            infer.num_outputs()
        );
    }
    for (i, shape) in shapes.into_iter().enumerate() {
        infer.set(i, shape);
    }
    Ok(())
}

/// Sets the output's shape to that of a vector of unknown length.
fn state_vector(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::vector(None));
    Ok(())
}
