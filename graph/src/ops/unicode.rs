//! Text as code points: decoding, encoding, the change of encodings, and the scripts of characters.

use super::identity::same;
use super::{Gradient, OpDef};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

const INPUT_ENCODING: &str = "input_encoding: string";
const ERRORS: &str = "errors: {'strict', 'replace', 'ignore'} = 'replace'";
const REPLACEMENT: &str = "replacement_char: int = 65533";
const CONTROL: &str = "replace_control_characters: bool = false";
const SPLITS: &str = "Tsplits: {int32, int64} = int64";

/// The op table fields that are common to ops that decode strings.
const DECODE: OpDef = OpDef {
    inputs: &["input: string"],
    attrs: &[INPUT_ENCODING, ERRORS, REPLACEMENT, CONTROL, SPLITS],
    infer: decoded,
    gradient: Gradient::Leaf,
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "UnicodeDecode", outputs: &["row_splits: Tsplits", "char_values: int32"], ..DECODE },
    OpDef {
        name: "UnicodeDecodeWithOffsets",
        outputs: &["row_splits: Tsplits", "char_values: int32", "char_to_byte_starts: int64"],
        ..DECODE
    },
    OpDef {
        name: "UnicodeEncode",
        inputs: &["input_values: int32", "input_splits: Tsplits"],
        outputs: &["output: string"],
        attrs: &[
            "errors: {'ignore', 'replace', 'strict'} = 'replace'",
            "output_encoding: {'UTF-8', 'UTF-16-BE', 'UTF-32-BE'}",
            REPLACEMENT,
            SPLITS,
        ],
        infer: |infer| {
            infer.input_of_rank(0, 1)?;
            let splits = infer.input_of_rank(1, 1)?;
            infer.set(0, [splits.dim(0).and_then(|count| count.checked_sub(1))]);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UnicodeScript",
        inputs: &["input: int32"],
        outputs: &["output: int32"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UnicodeTranscode",
        inputs: &["input: string"],
        outputs: &["output: string"],
        attrs: &[
            INPUT_ENCODING,
            "output_encoding: {'UTF-8', 'UTF-16-BE', 'UTF-32-BE'}",
            ERRORS,
            REPLACEMENT,
            CONTROL,
        ],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

/// Infers vectors of characters and offsets, and row splits with one element more than the input.
fn decoded(infer: &mut Infer<'_>) -> Result<()> {
    let splits = infer.input(0).num_elements().and_then(|count| count.checked_add(1));
    infer.set(0, [splits]);
    for output in 1..infer.num_outputs() {
        infer.set(output, PartialShape::vector(None));
    }
    Ok(())
}
