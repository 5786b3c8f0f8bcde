//! Ops that compress an element of a dataset into one variant, and back.

use super::check::scalar;
use super::dataset_source::ELEMENTS;
use super::iterator::element;
use super::{Gradient, OpDef};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "CompressElement",
        inputs: &["components: input_types"],
        outputs: &["compressed: variant"],
        attrs: &["input_types: list(type) >= 1"],
        infer: scalar,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UncompressElement",
        inputs: &["compressed: variant"],
        outputs: &["components: output_types"],
        attrs: ELEMENTS,
        infer: element,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];
