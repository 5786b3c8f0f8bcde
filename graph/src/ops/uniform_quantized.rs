//! Arithmetic of uniformly quantized values: a value stands for the number `scale * (value - zero point)`. Scale and
//! zero point are one of each, or one for each index of an axis.

use super::OpDef;
use super::quantize::like_first;

macro_rules! levels {
    ($prefix:literal) => {
        concat!($prefix, "quantization_axis: int = -1")
    };
    (min $prefix:literal) => {
        concat!($prefix, "quantization_min_val: int")
    };
    (max $prefix:literal) => {
        concat!($prefix, "quantization_max_val: int")
    };
}

const AXIS: &str = levels!("");
const MIN: &str = levels!(min "");
const MAX: &str = levels!(max "");
const LHS: [&str; 3] = [levels!("lhs_"), levels!(min "lhs_"), levels!(max "lhs_")];
const RHS: [&str; 3] = [levels!("rhs_"), levels!(min "rhs_"), levels!(max "rhs_")];
const OUT: [&str; 3] = [levels!("output_"), levels!(min "output_"), levels!(max "output_")];
const WINDOWS: [&str; 8] = [
    "window_strides: list(int) = []",
    "padding: string",
    "explicit_padding: list(int) = []",
    "lhs_dilation: list(int) = []",
    "rhs_dilation: list(int) = []",
    "batch_group_count: int = 1",
    "feature_group_count: int = 1",
    "dimension_numbers: string = ''",
];

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "UniformQuantize",
        inputs: &["input: Tin", "scales: float", "zero_points: int32"],
        outputs: &["output: Tout"],
        attrs: &["Tin: {float}", "Tout: {qint8, quint8, qint32}", AXIS, MIN, MAX],
        infer: like_first,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniformDequantize",
        inputs: &["input: Tin", "scales: float", "zero_points: int32"],
        outputs: &["output: Tout"],
        attrs: &["Tin: {qint8, quint8, qint32}", "Tout: {float}", AXIS, MIN, MAX],
        infer: like_first,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniformRequantize",
        inputs: &[
            "input: Tin",
            "input_scales: float",
            "input_zero_points: int32",
            "output_scales: float",
            "output_zero_points: int32",
        ],
        outputs: &["output: Tout"],
        attrs: &[
            "Tin: {qint8, qint32}",
            "Tout: {qint8, qint32}",
            levels!("input_"),
            levels!(min "input_"),
            levels!(max "input_"),
            OUT[0],
            OUT[1],
            OUT[2],
        ],
        infer: like_first,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniformQuantizedAdd",
        inputs: &[
            "lhs: T",
            "rhs: T",
            "lhs_scales: float",
            "lhs_zero_points: int32",
            "rhs_scales: float",
            "rhs_zero_points: int32",
            "output_scales: float",
            "output_zero_points: int32",
        ],
        outputs: &["output: T"],
        attrs: &[LHS[0], LHS[1], LHS[2], RHS[0], RHS[1], RHS[2], OUT[0], OUT[1], OUT[2], "T: {qint32}"],
        infer: super::broadcast::broadcast,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniformQuantizedClipByValue",
        inputs: &["operand: T", "min: T", "max: T", "scales: float", "zero_points: int32"],
        outputs: &["output: T"],
        attrs: &["T: {qint32}", AXIS, MIN, MAX],
        infer: like_first,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniformQuantizedDot",
        inputs: &[
            "lhs: Tin",
            "rhs: Tin",
            "lhs_scales: float",
            "lhs_zero_points: int32",
            "rhs_scales: float",
            "rhs_zero_points: int32",
            "output_scales: float",
            "output_zero_points: int32",
        ],
        outputs: &["output: Tout"],
        attrs: &[
            "Tin: {qint8}",
            "Tout: {qint32}",
            LHS[0],
            LHS[1],
            LHS[2],
            RHS[0],
            RHS[1],
            RHS[2],
            OUT[0],
            OUT[1],
            OUT[2],
        ],
        infer: product,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniformQuantizedDotHybrid",
        inputs: &["lhs: Tlhs", "rhs: Trhs", "rhs_scales: float", "rhs_zero_points: int32"],
        outputs: &["output: Tout"],
        attrs: &["Tlhs: {float}", "Trhs: {qint8}", "Tout: {float}", RHS[0], RHS[1], RHS[2]],
        infer: product,
        ..OpDef::NEW
    },
    OpDef {
        name: "UniformQuantizedConvolution",
        inputs: &[
            "lhs: Tin",
            "rhs: Tin",
            "lhs_scales: float",
            "lhs_zero_points: int32",
            "rhs_scales: float",
            "rhs_zero_points: int32",
            "output_scales: float",
            "output_zero_points: int32",
        ],
        outputs: &["output: Tout"],
        attrs: &[
            "Tin: {qint8}",
            "Tout: {qint32}",
            WINDOWS[0],
            WINDOWS[1],
            WINDOWS[2],
            WINDOWS[3],
            WINDOWS[4],
            WINDOWS[5],
            WINDOWS[6],
            WINDOWS[7],
            LHS[0],
            LHS[1],
            LHS[2],
            RHS[0],
            RHS[1],
            RHS[2],
            OUT[0],
            OUT[1],
            OUT[2],
        ],
        ..OpDef::NEW
    },
    OpDef {
        name: "UniformQuantizedConvolutionHybrid",
        inputs: &["lhs: Tlhs", "rhs: Trhs", "rhs_scales: float", "rhs_zero_points: int32"],
        outputs: &["output: Tout"],
        attrs: &[
            "Tlhs: {float}",
            "Trhs: {qint8}",
            "Tout: {float}",
            WINDOWS[0],
            WINDOWS[1],
            WINDOWS[2],
            WINDOWS[3],
            WINDOWS[4],
            WINDOWS[5],
            WINDOWS[6],
            WINDOWS[7],
            RHS[0],
            RHS[1],
            RHS[2],
        ],
        ..OpDef::NEW
    },
];

/// Gives the output the shape of the product of two matrices.
fn product(infer: &mut crate::infer::Infer<'_>) -> crate::error::Result<()> {
    let (lhs, rhs) = (infer.input_of_rank(0, 2)?, infer.input_of_rank(1, 2)?);
    infer.set(0, [lhs.dim(0), rhs.dim(1)]);
    Ok(())
}
