//! Connectionist temporal classification (Graves et al., ICML 2006): losses and decoding for label sequences without
//! alignment.

use super::{Gradient, OpDef};
use crate::error::{Error, Result};
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

const FLOATS: &str = "T: {float, double} = float";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "CTCLoss",
        inputs: &["inputs: T", "labels_indices: int64", "labels_values: int32", "sequence_length: int32"],
        outputs: &["loss: T", "gradient: T"],
        attrs: &[
            "preprocess_collapse_repeated: bool = false",
            "ctc_merge_repeated: bool = true",
            "ignore_longer_outputs_than_inputs: bool = false",
            FLOATS,
        ],
        infer: |infer| {
            let inputs = infer.input_of_rank(0, 3)?;
            infer.input_of_rank(1, 2)?;
            infer.input_of_rank(2, 1)?;
            let batch = batch(infer, &inputs, 3)?;
            infer.set(0, PartialShape::vector(batch));
            infer.set(1, [inputs.dim(0), batch, inputs.dim(2)]);
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None; 4]) };
            let axis = s.constant(crate::Tensor::scalar(-1i32));
            let column = s.op("ExpandDims").input(dy).input(axis).output();
            let dx = s.op("Mul").input(column).input(f.output(1)).output();
            Ok(vec![Some(dx), None, None, None])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "CTCGreedyDecoder",
        inputs: &["inputs: T", "sequence_length: int32"],
        outputs: &[
            "decoded_indices: int64",
            "decoded_values: int64",
            "decoded_shape: int64",
            "log_probability: T",
        ],
        attrs: &["merge_repeated: bool = false", "blank_index: int = -1", FLOATS],
        infer: |infer| infer_decoded(infer, 1),
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
    OpDef {
        name: "CTCBeamSearchDecoder",
        inputs: &["inputs: T", "sequence_length: int32"],
        outputs: &[
            "decoded_indices: top_paths * int64",
            "decoded_values: top_paths * int64",
            "decoded_shape: top_paths * int64",
            "log_probability: T",
        ],
        attrs: &["beam_width: int >= 1", "top_paths: int >= 1", "merge_repeated: bool = true", FLOATS],
        infer: |infer| {
            let paths: i64 = infer.attr("top_paths")?;
            let paths = usize::try_from(paths).map_err(|_| Error::invalid("top_paths must be positive"))?;
            infer_decoded(infer, paths)
        },
        gradient: Gradient::Leaf,
        ..OpDef::NEW
    },
];

/// Returns the number of sequences, from the inputs `[time, batch, classes]` and the sequence lengths.
fn batch(infer: &Infer<'_>, inputs: &PartialShape, lengths: usize) -> Result<Dim> {
    let lengths = infer.input_of_rank(lengths, 1)?;
    Ok(PartialShape::vector(inputs.dim(1)).merge(&lengths)?.dim(0))
}

fn infer_decoded(infer: &mut Infer<'_>, paths: usize) -> Result<()> {
    let inputs = infer.input_of_rank(0, 3)?;
    let batch = batch(infer, &inputs, 1)?;
    for path in 0..paths {
        infer.set(path, [None, Some(2)]);
        infer.set(paths + path, [None]);
        infer.set(2 * paths + path, [2usize]);
    }
    infer.set(3 * paths, [batch, Some(paths)]);
    Ok(())
}
