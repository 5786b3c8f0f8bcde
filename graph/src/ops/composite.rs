//! Composite tensors, such as ragged ones, as variants.

use super::{OpDef, unknown_shapes};

const ATTRS: &[&str] = &["metadata: string", "Tcomponents: list(type) >= 0"];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "CompositeTensorVariantFromComponents",
        inputs: &["components: Tcomponents"],
        outputs: &["encoded: variant"],
        attrs: ATTRS,
        infer: super::check::scalar,
        ..OpDef::NEW
    },
    OpDef {
        name: "CompositeTensorVariantToComponents",
        inputs: &["encoded: variant"],
        outputs: &["components: Tcomponents"],
        attrs: ATTRS,
        infer: unknown_shapes,
        ..OpDef::NEW
    },
];
