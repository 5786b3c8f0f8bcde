//! Optional values: elements, or the absence of one.

use super::check::scalar;
use super::iterator::element;
use super::{Gradient, OpDef};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "OptionalFromValue",
        inputs: &["components: Toutput_types"],
        outputs: &["optional: variant"],
        attrs: &["Toutput_types: list(type) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "OptionalNone",
        outputs: &["optional: variant"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "OptionalHasValue",
        inputs: &["optional: variant"],
        outputs: &["has_value: bool"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "OptionalGetValue",
        inputs: &["optional: variant"],
        outputs: &["components: output_types"],
        attrs: &["output_types: list(type) >= 1", "output_shapes: list(shape) >= 1"],
        infer: element,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];
