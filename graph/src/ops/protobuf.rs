//! Conversions between tensors and messages of protocol buffers whose types are known only at run time.

use super::identity::same;
use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "DecodeProtoV2",
        inputs: &["bytes: string"],
        outputs: &["sizes: int32", "values: output_types"],
        attrs: &[
            "message_type: string",
            "field_names: list(string)",
            "output_types: list(type) >= 0",
            "descriptor_source: string = 'local://'",
            "message_format: string = 'binary'",
            "sanitize: bool = false",
        ],
        infer: decode,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "EncodeProto",
        inputs: &["sizes: int32", "values: Tinput_types"],
        outputs: &["bytes: string"],
        attrs: &[
            "field_names: list(string)",
            "message_type: string",
            "descriptor_source: string = 'local://'",
            "Tinput_types: list(type) >= 1",
        ],
        infer: encode,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DecodeJSONExample",
        inputs: &["json_examples: string"],
        outputs: &["binary_examples: string"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

/// Sets the shapes of the sizes and values: those of the messages, with a dimension of fields, or of a field's values.
fn decode(infer: &mut Infer<'_>) -> Result<()> {
    let messages = infer.input(0);
    let Some(dims) = messages.dims() else { return Ok(()) };
    let with = |last: Dim| PartialShape::of_dims(dims.iter().copied().chain(std::iter::once(last)));
    let fields = infer.num_outputs() - 1;
    infer.set(0, with(Some(fields)));
    for field in 1..=fields {
        infer.set(field, with(None));
    }
    Ok(())
}

/// Sets the shape of the messages: that of each input of values without its last dimension.
fn encode(infer: &mut Infer<'_>) -> Result<()> {
    let mut messages = PartialShape::unknown();
    for i in 1..infer.num_inputs() {
        if let Some(dims) = infer.input(i).dims() {
            let Some((_, outer)) = dims.split_last().filter(|(_, outer)| !outer.is_empty()) else {
                crate::invalid!("Shape must be at least rank 2 but is rank {}", dims.len());
            };
            messages = messages.merge(&PartialShape::of_dims(outer.iter().copied()))?;
        }
    }
    infer.set(0, messages);
    Ok(())
}
