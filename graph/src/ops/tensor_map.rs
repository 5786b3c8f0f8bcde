//! Maps from tensors to tensors, held by variants.

use super::{InferFn, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

const BOTH: &[&str] = &["key_dtype: type", "value_dtype: type"];
const KEY: &[&str] = &["key_dtype: type"];

const fn of(
    name: &'static str,
    inputs: &'static [&'static str],
    outputs: &'static [&'static str],
    attrs: &'static [&'static str],
    infer: InferFn,
) -> OpDef {
    OpDef { name, inputs, outputs, attrs, infer, ..OpDef::NEW }
}

pub(super) const OPS: &[OpDef] = &[
    of("EmptyTensorMap", &[], &["handle: variant"], &[], scalar),
    of("TensorMapSize", &["input_handle: variant"], &["size: int32"], &[], scalar),
    of(
        "TensorMapLookup",
        &["input_handle: variant", "key: key_dtype"],
        &["value: value_dtype"],
        BOTH,
        super::unknown_shapes,
    ),
    of(
        "TensorMapInsert",
        &["input_handle: variant", "key: key_dtype", "value: value_dtype"],
        &["output_handle: variant"],
        BOTH,
        scalar,
    ),
    of(
        "TensorMapErase",
        &["input_handle: variant", "key: key_dtype"],
        &["output_handle: variant"],
        BOTH,
        scalar,
    ),
    of("TensorMapHasKey", &["input_handle: variant", "key: key_dtype"], &["has_key: bool"], KEY, scalar),
    of("TensorMapStackKeys", &["input_handle: variant"], &["keys: key_dtype"], KEY, super::unknown_shapes),
];

fn scalar(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, PartialShape::scalar());
    Ok(())
}
