//! Recurrent cells as one op: LSTM cells, LSTM layers over all steps of a sequence, and GRU cells.

use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

const SINGLE: &str = "T: {half, float}";

/// The op table fields of an LSTM cell's step.
const CELL: OpDef = OpDef {
    inputs: &["x: T", "cs_prev: T", "h_prev: T", "w: T", "wci: T", "wcf: T", "wco: T", "b: T"],
    outputs: &["i: T", "cs: T", "f: T", "o: T", "ci: T", "co: T", "h: T"],
    attrs: &["forget_bias: float = 1.0", "cell_clip: float = 3.0", "use_peephole: bool = false", SINGLE],
    infer: |infer| cells(infer, 0, 2),
    ..OpDef::NEW
};

/// The op table fields of an LSTM layer over the steps of a sequence.
const LAYER: OpDef = OpDef {
    inputs: &[
        "seq_len_max: int64",
        "x: T",
        "cs_prev: T",
        "h_prev: T",
        "w: T",
        "wci: T",
        "wcf: T",
        "wco: T",
        "b: T",
    ],
    infer: |infer| cells(infer, 1, 3),
    ..CELL
};

/// The op table fields of the gradient of an LSTM layer.
const LAYER_GRADIENT: OpDef = OpDef {
    inputs: &[
        "seq_len_max: int64",
        "x: T",
        "cs_prev: T",
        "h_prev: T",
        "w: T",
        "wci: T",
        "wcf: T",
        "wco: T",
        "b: T",
        "i: T",
        "cs: T",
        "f: T",
        "o: T",
        "ci: T",
        "co: T",
        "h: T",
        "cs_grad: T",
        "h_grad: T",
    ],
    outputs: &[
        "x_grad: T",
        "cs_prev_grad: T",
        "h_prev_grad: T",
        "w_grad: T",
        "wci_grad: T",
        "wcf_grad: T",
        "wco_grad: T",
        "b_grad: T",
    ],
    attrs: &["use_peephole: bool", SINGLE],
    infer: |infer| {
        for i in 0..8 {
            let shape = infer.input(i + 1);
            infer.set(i, shape);
        }
        Ok(())
    },
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    OpDef { name: "LSTMBlockCell", ..CELL },
    OpDef {
        name: "LSTMBlockCellGrad",
        inputs: &[
            "x: T",
            "cs_prev: T",
            "h_prev: T",
            "w: T",
            "wci: T",
            "wcf: T",
            "wco: T",
            "b: T",
            "i: T",
            "cs: T",
            "f: T",
            "o: T",
            "ci: T",
            "co: T",
            "cs_grad: T",
            "h_grad: T",
        ],
        outputs: &["cs_prev_grad: T", "dicfo: T", "wci_grad: T", "wcf_grad: T", "wco_grad: T"],
        attrs: &["use_peephole: bool", SINGLE],
        infer: |infer| {
            let (batch, cell) = (infer.input_of_rank(0, 2)?.dim(0), infer.input_of_rank(1, 2)?.dim(1));
            infer.set(0, PartialShape::of_dims([batch, cell]));
            infer.set(1, PartialShape::of_dims([batch, cell.and_then(|n| n.checked_mul(4))]));
            (2..5).for_each(|i| infer.set(i, PartialShape::vector(cell)));
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "BlockLSTM",
        gradient: Gradient::Defined(|s, forward, dy| layer_gradient(s, forward, dy, "BlockLSTMGrad")),
        ..LAYER
    },
    OpDef {
        name: "BlockLSTMV2",
        attrs: &["cell_clip: float = 0.0", "use_peephole: bool = false", SINGLE],
        gradient: Gradient::Defined(|s, forward, dy| layer_gradient(s, forward, dy, "BlockLSTMGradV2")),
        ..LAYER
    },
    OpDef { name: "BlockLSTMGrad", ..LAYER_GRADIENT },
    OpDef { name: "BlockLSTMGradV2", ..LAYER_GRADIENT },
    OpDef {
        name: "GRUBlockCell",
        inputs: &["x: T", "h_prev: T", "w_ru: T", "w_c: T", "b_ru: T", "b_c: T"],
        outputs: &["r: T", "u: T", "c: T", "h: T"],
        attrs: &["T: {float}"],
        infer: |infer| cells(infer, 0, 2),
        ..OpDef::NEW
    },
    OpDef {
        name: "GRUBlockCellGrad",
        inputs: &[
            "x: T",
            "h_prev: T",
            "w_ru: T",
            "w_c: T",
            "b_ru: T",
            "b_c: T",
            "r: T",
            "u: T",
            "c: T",
            "d_h: T",
        ],
        outputs: &["d_x: T", "d_h_prev: T", "d_c_bar: T", "d_r_bar_u_bar: T"],
        attrs: &["T: {float}"],
        infer: |infer| {
            let (x, h) = (infer.input_of_rank(0, 2)?, infer.input_of_rank(1, 2)?);
            let (batch, cell) = (x.dim(0), h.dim(1));
            infer.set(0, x);
            infer.set(1, PartialShape::of_dims([batch, cell]));
            infer.set(2, PartialShape::of_dims([batch, cell]));
            infer.set(3, PartialShape::of_dims([batch, cell.and_then(|n| n.checked_mul(2))]));
            Ok(())
        },
        ..OpDef::NEW
    },
];

/// Gives each output the shape of the input `at` of rank `rank`, with the size of the state in the next input as the
/// last dimension.
fn cells(infer: &mut Infer<'_>, at: usize, rank: usize) -> Result<()> {
    let (x, state) = (infer.input_of_rank(at, rank)?, infer.input_of_rank(at + 1, 2)?);
    let mut dims: Vec<Dim> = (0..rank - 1).map(|i| x.dim(i)).collect();
    dims.push(state.dim(1));
    infer.set_all(PartialShape::of_dims(dims));
    Ok(())
}

/// Gradient of an LSTM layer, from the gradients of its cell states (output 1) and hidden states (output 6); gradients
/// of the other outputs are ignored.
fn layer_gradient(
    s: &Scope,
    forward: &Forward,
    dy: &[Option<Output>],
    op: &str,
) -> Result<Vec<Option<Output>>> {
    let zeros = |at: usize| s.op("ZerosLike").input(forward.output(at)).output();
    let (states, outputs) = (dy[1].unwrap_or_else(|| zeros(1)), dy[6].unwrap_or_else(|| zeros(6)));
    let mut call = s.op(op);
    for i in 0..9 {
        call = call.input(forward.input(i));
    }
    for i in 0..7 {
        call = call.input(forward.output(i));
    }
    let call = call.input(states).input(outputs).attr("use_peephole", forward.attr::<bool>("use_peephole")?);
    let node = call.output().node;
    let of = |index: u32| Some(Output { node, index });
    Ok(std::iter::once(None).chain((0..8).map(of)).collect())
}
