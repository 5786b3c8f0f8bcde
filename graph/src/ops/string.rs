//! String ops: matching, cutting, joining, hashing, and conversion from and to numbers.

use super::identity::same;
use super::{Gradient, OpDef, unknown_shapes};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "Fingerprint",
        inputs: &["data: T", "method: string"],
        outputs: &["fingerprint: uint8"],
        attrs: &["T: type"],
        infer: |infer| {
            infer.input_of_rank(1, 0)?;
            let data = infer.input(0);
            if data.rank() == Some(0) {
                crate::invalid!("`data` should have at least one dimension");
            }
            infer.set(0, [data.dim(0), Some(8)]);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StaticRegexFullMatch",
        inputs: &["input: string"],
        outputs: &["output: bool"],
        attrs: &["pattern: string"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "RegexFullMatch",
        inputs: &["input: string", "pattern: string"],
        outputs: &["output: bool"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "RegexReplace",
        inputs: &["input: string", "pattern: string", "rewrite: string"],
        outputs: &["output: string"],
        attrs: &["replace_global: bool = true"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StaticRegexReplace",
        inputs: &["input: string"],
        outputs: &["output: string"],
        attrs: &["pattern: string", "rewrite: string", "replace_global: bool = true"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringJoin",
        inputs: &["inputs: N * string"],
        outputs: &["output: string"],
        attrs: &["N: int >= 0", "separator: string = ''"],
        infer: join,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringSplit",
        inputs: &["input: string", "delimiter: string"],
        outputs: &["indices: int64", "values: string", "shape: int64"],
        attrs: &["skip_empty: bool = true"],
        infer: split,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringSplitV2",
        inputs: &["input: string", "sep: string"],
        outputs: &["indices: int64", "values: string", "shape: int64"],
        attrs: &["maxsplit: int = -1"],
        infer: split,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringNGrams",
        inputs: &["data: string", "data_splits: Tsplits"],
        outputs: &["ngrams: string", "ngrams_splits: Tsplits"],
        attrs: &[
            "separator: string",
            "ngram_widths: list(int) >= 0",
            "left_pad: string",
            "right_pad: string",
            "pad_width: int",
            "preserve_short_sequences: bool",
            "Tsplits: {int32, int64} = int64",
        ],
        infer: |infer| {
            // The output has the shape of the data if there are no strings or no splits.
            let (data, splits) = (infer.input(0), infer.input(1));
            let ngrams =
                if data.rank() == Some(1) { PartialShape::of_rank(1) } else { PartialShape::unknown() };
            infer.set(0, ngrams);
            infer.set(1, splits);
            Ok(())
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringToHashBucketFast",
        inputs: &["input: string"],
        outputs: &["output: int64"],
        attrs: &["num_buckets: int >= 1"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringToHashBucket",
        inputs: &["string_tensor: string"],
        outputs: &["output: int64"],
        attrs: &["num_buckets: int >= 1"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringToHashBucketStrong",
        inputs: &["input: string"],
        outputs: &["output: int64"],
        attrs: &["num_buckets: int >= 1", "key: list(int)"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringToNumber",
        inputs: &["string_tensor: string"],
        outputs: &["output: out_type"],
        attrs: &["out_type: {float, double, int32, int64, uint32, uint64} = float"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "AsString",
        inputs: &["input: T"],
        outputs: &["output: string"],
        attrs: &[
            "T: {float, double, int32, uint8, int16, int8, int64, bfloat16, uint16, half, uint32, uint64, complex64, complex128, bool, variant, string}",
            "precision: int = -1",
            "scientific: bool = false",
            "shortest: bool = false",
            "width: int = -1",
            "fill: string = ''",
        ],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringLength",
        inputs: &["input: string"],
        outputs: &["output: int32"],
        attrs: &["unit: {'BYTE', 'UTF8_CHAR'} = 'BYTE'"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringLower",
        inputs: &["input: string"],
        outputs: &["output: string"],
        attrs: &["encoding: string = ''"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringUpper",
        inputs: &["input: string"],
        outputs: &["output: string"],
        attrs: &["encoding: string = ''"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "StringStrip",
        inputs: &["input: string"],
        outputs: &["output: string"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "Substr",
        inputs: &["input: string", "pos: T", "len: T"],
        outputs: &["output: string"],
        attrs: &["T: {int32, int64}", "unit: {'BYTE', 'UTF8_CHAR'} = 'BYTE'"],
        infer: substr,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "ReduceJoin",
        inputs: &["inputs: string", "reduction_indices: int32"],
        outputs: &["output: string"],
        attrs: &["keep_dims: bool = false", "separator: string = ''"],
        infer: reduce_join,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "EncodeBase64",
        inputs: &["input: string"],
        outputs: &["output: string"],
        attrs: &["pad: bool = false"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "DecodeBase64",
        inputs: &["input: string"],
        outputs: &["output: string"],
        infer: same,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "UnsortedSegmentJoin",
        inputs: &["inputs: string", "segment_ids: Tindices", "num_segments: Tnumsegments"],
        outputs: &["output: string"],
        attrs: &[
            "separator: string = ''",
            "Tindices: {int32, int64}",
            "Tnumsegments: {int32, int64} = int32",
        ],
        infer: unknown_shapes,
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

/// Infers the shape of StringJoin: the common shape of all inputs that are not scalars.
fn join(infer: &mut Infer<'_>) -> Result<()> {
    let mut joined = PartialShape::scalar();
    for i in 0..infer.num_inputs() {
        let input = infer.input(i);
        match (input.rank(), joined.rank()) {
            (Some(0), _) => {}
            (None, _) => return Ok(()),
            (_, Some(0)) => joined = input,
            _ => joined = joined.merge(&input)?,
        }
    }
    infer.set(0, joined);
    Ok(())
}

/// Sets the shapes of outputs 0 to 2: the indices, values and shape of a sparse matrix of substrings, with one row per
/// input string.
fn split(infer: &mut Infer<'_>) -> Result<()> {
    infer.input_of_rank(0, 1)?;
    infer.input_of_rank(1, 0)?;
    infer.set(0, [None, Some(2)]);
    infer.set(1, PartialShape::vector(None));
    infer.set(2, PartialShape::vector(Some(2)));
    Ok(())
}

fn substr(infer: &mut Infer<'_>) -> Result<()> {
    let position = infer.input(1).merge(&infer.input(2))?;
    let shape = PartialShape::broadcast(&infer.input(0), &position)?;
    infer.set(0, shape);
    Ok(())
}

/// Infers the shape of ReduceJoin: only the rank, which follows from the number of axes that are joined.
fn reduce_join(infer: &mut Infer<'_>) -> Result<()> {
    let (input, axes) = (infer.input(0), infer.input(1));
    let (Some(rank), Some(count)) = (input.rank(), axes.num_elements()) else { return Ok(()) };
    let keep = infer.attr::<bool>("keep_dims")?;
    infer.set(
        0,
        if keep { PartialShape::of_rank(rank) } else { PartialShape::of_rank(rank.saturating_sub(count)) },
    );
    Ok(())
}
