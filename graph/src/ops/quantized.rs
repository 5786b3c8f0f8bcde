//! Arithmetic of quantized values: integers that stand for levels of a range of numbers. The ends of the range are
//! tensors of their own, beside the values.

use super::quantize::{like_first, like_first_and};
use super::window::{Padding, Window};
use super::{OpDef, matmul};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};

macro_rules! quantized {
    ($name:literal) => {
        concat!($name, ": {qint8, quint8, qint32, qint16, quint16}")
    };
    ($name:literal = $default:literal) => {
        concat!($name, ": {qint8, quint8, qint32, qint16, quint16} = ", $default)
    };
}

const MODE: &str = "mode: {'MIN_COMBINED', 'MIN_FIRST', 'SCALED'} = 'MIN_COMBINED'";
const NARROW: &str = "narrow_range: bool = false";
const AXIS: &str = "axis: int = -1";
const KSIZE: &str = "ksize: list(int)";
const STRIDES: &str = "strides: list(int)";
const PADDING: &str = "padding: {'SAME', 'VALID'}";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "QuantizeV2",
        inputs: &["input: float", "min_range: float", "max_range: float"],
        outputs: &["output: T", "output_min: float", "output_max: float"],
        attrs: &[
            quantized!("T"),
            MODE,
            "round_mode: {'HALF_AWAY_FROM_ZERO', 'HALF_TO_EVEN'} = 'HALF_AWAY_FROM_ZERO'",
            NARROW,
            AXIS,
            "ensure_minimum_range: float = 0.01",
        ],
        infer: |infer| {
            let ends = infer.input(1);
            like_first_and(infer, ends)
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "Dequantize",
        inputs: &["input: T", "min_range: float", "max_range: float"],
        outputs: &["output: dtype"],
        attrs: &[quantized!("T"), MODE, NARROW, AXIS, "dtype: {bfloat16, float} = float"],
        infer: like_first,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizeDownAndShrinkRange",
        inputs: &["input: Tinput", "input_min: float", "input_max: float"],
        outputs: &["output: out_type", "output_min: float", "output_max: float"],
        attrs: &[quantized!("Tinput"), quantized!("out_type")],
        infer: with_ends,
        ..OpDef::NEW
    },
    OpDef {
        name: "Requantize",
        inputs: &[
            "input: Tinput",
            "input_min: float",
            "input_max: float",
            "requested_output_min: float",
            "requested_output_max: float",
        ],
        outputs: &["output: out_type", "output_min: float", "output_max: float"],
        attrs: &[quantized!("Tinput"), quantized!("out_type")],
        infer: with_ends,
        ..OpDef::NEW
    },
    OpDef {
        name: "RequantizationRange",
        inputs: &["input: Tinput", "input_min: float", "input_max: float"],
        outputs: &["output_min: float", "output_max: float"],
        attrs: &[quantized!("Tinput")],
        infer: scalars,
        ..OpDef::NEW
    },
    OpDef {
        name: "RequantizePerChannel",
        inputs: &[
            "input: T",
            "input_min: float",
            "input_max: float",
            "requested_output_min: float",
            "requested_output_max: float",
        ],
        outputs: &["output: out_type", "output_min: float", "output_max: float"],
        attrs: &[quantized!("T" = "qint32"), quantized!("out_type" = "quint8")],
        infer: with_ends,
        ..OpDef::NEW
    },
    OpDef {
        name: "RequantizationRangePerChannel",
        inputs: &["input: T", "input_min: float", "input_max: float"],
        outputs: &["output_min: float", "output_max: float"],
        attrs: &[quantized!("T" = "qint32"), "clip_value_max: float"],
        infer: scalars,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedConcat",
        inputs: &["concat_dim: int32", "values: N * T", "input_mins: N * float", "input_maxes: N * float"],
        outputs: &["output: T", "output_min: float", "output_max: float"],
        attrs: &["N: int >= 2", "T: type"],
        infer: |infer| {
            infer.set_all(PartialShape::scalar());
            let count = (infer.num_inputs() - 1) / 3;
            super::concat::concat(infer, 1..count + 1, 0)
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedReshape",
        inputs: &["tensor: T", "shape: Tshape", "input_min: float", "input_max: float"],
        outputs: &["output: T", "output_min: float", "output_max: float"],
        attrs: &["T: type", "Tshape: {int32, int64} = int32"],
        infer: |infer| {
            infer.set_all(PartialShape::scalar());
            super::shape::reshape(infer)
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedAdd",
        inputs: &["x: T1", "y: T2", "min_x: float", "max_x: float", "min_y: float", "max_y: float"],
        outputs: &["z: Toutput", "min_z: float", "max_z: float"],
        attrs: &[quantized!("T1"), quantized!("T2"), quantized!("Toutput" = "qint32")],
        infer: broadcast,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedMul",
        inputs: &["x: T1", "y: T2", "min_x: float", "max_x: float", "min_y: float", "max_y: float"],
        outputs: &["z: Toutput", "min_z: float", "max_z: float"],
        attrs: &[quantized!("T1"), quantized!("T2"), quantized!("Toutput" = "qint32")],
        infer: broadcast,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedBiasAdd",
        inputs: &[
            "input: T1",
            "bias: T2",
            "min_input: float",
            "max_input: float",
            "min_bias: float",
            "max_bias: float",
        ],
        outputs: &["output: out_type", "min_out: float", "max_out: float"],
        attrs: &[quantized!("T1"), quantized!("T2"), quantized!("out_type")],
        infer: with_ends,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedRelu",
        inputs: &["features: Tinput", "min_features: float", "max_features: float"],
        outputs: &["activations: out_type", "min_activations: float", "max_activations: float"],
        attrs: &[quantized!("Tinput"), quantized!("out_type" = "quint8")],
        infer: with_ends,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedRelu6",
        inputs: &["features: Tinput", "min_features: float", "max_features: float"],
        outputs: &["activations: out_type", "min_activations: float", "max_activations: float"],
        attrs: &[quantized!("Tinput"), quantized!("out_type" = "quint8")],
        infer: with_ends,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedMatMul",
        inputs: &["a: T1", "b: T2", "min_a: float", "max_a: float", "min_b: float", "max_b: float"],
        outputs: &["out: Toutput", "min_out: float", "max_out: float"],
        attrs: &[
            quantized!("T1"),
            quantized!("T2"),
            quantized!("Toutput" = "qint32"),
            "transpose_a: bool = false",
            "transpose_b: bool = false",
            quantized!("Tactivation" = "quint8"),
        ],
        infer: |infer| {
            infer.set_all(PartialShape::scalar());
            matmul::infer(infer)
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedConv2D",
        inputs: &[
            "input: Tinput",
            "filter: Tfilter",
            "min_input: float",
            "max_input: float",
            "min_filter: float",
            "max_filter: float",
        ],
        outputs: &["output: out_type", "min_output: float", "max_output: float"],
        attrs: &[
            quantized!("Tinput"),
            quantized!("Tfilter"),
            quantized!("out_type" = "qint32"),
            STRIDES,
            PADDING,
            "dilations: list(int) = [1, 1, 1, 1]",
        ],
        infer: convolution,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedMaxPool",
        inputs: &["input: T", "min_input: float", "max_input: float"],
        outputs: &["output: T", "min_output: float", "max_output: float"],
        attrs: &[quantized!("T"), KSIZE, STRIDES, PADDING],
        infer: pool,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedAvgPool",
        inputs: &["input: T", "min_input: float", "max_input: float"],
        outputs: &["output: T", "min_output: float", "max_output: float"],
        attrs: &[quantized!("T"), KSIZE, STRIDES, PADDING],
        infer: pool,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedInstanceNorm",
        inputs: &["x: T", "x_min: float", "x_max: float"],
        outputs: &["y: T", "y_min: float", "y_max: float"],
        attrs: &[
            quantized!("T"),
            "output_range_given: bool = false",
            "given_y_min: float = 0.0",
            "given_y_max: float = 0.0",
            "variance_epsilon: float = 1e-05",
            "min_separation: float = 0.001",
        ],
        infer: with_ends,
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedBatchNormWithGlobalNormalization",
        inputs: &[
            "t: Tinput",
            "t_min: float",
            "t_max: float",
            "m: Tinput",
            "m_min: float",
            "m_max: float",
            "v: Tinput",
            "v_min: float",
            "v_max: float",
            "beta: Tinput",
            "beta_min: float",
            "beta_max: float",
            "gamma: Tinput",
            "gamma_min: float",
            "gamma_max: float",
        ],
        outputs: &["result: out_type", "result_min: float", "result_max: float"],
        attrs: &[
            quantized!("Tinput"),
            quantized!("out_type"),
            "variance_epsilon: float",
            "scale_after_normalization: bool",
        ],
        infer: |infer| {
            infer.input_of_rank(0, 4)?;
            with_ends(infer)
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "QuantizedResizeBilinear",
        inputs: &["images: T", "size: int32", "min: float", "max: float"],
        outputs: &["resized_images: T", "out_min: float", "out_max: float"],
        attrs: &[
            "T: {quint8, qint32, float}",
            "align_corners: bool = false",
            "half_pixel_centers: bool = false",
        ],
        infer: |infer| {
            infer.set_all(PartialShape::scalar());
            super::resize::resized(infer)
        },
        ..OpDef::NEW
    },
];

/// Gives every output the shape of a scalar.
fn scalars(infer: &mut Infer<'_>) -> Result<()> {
    infer.set_all(PartialShape::scalar());
    Ok(())
}

/// Gives the first output the first input's shape, and the ends of its range the shape of a scalar.
fn with_ends(infer: &mut Infer<'_>) -> Result<()> {
    like_first_and(infer, PartialShape::scalar())
}

/// Gives the first output the shape to which the first two inputs broadcast.
fn broadcast(infer: &mut Infer<'_>) -> Result<()> {
    infer.set_all(PartialShape::scalar());
    super::broadcast::broadcast(infer)
}

/// Returns the rows and columns of a window of four attribute values with channels last; `None` for other numbers.
fn window(infer: &Infer<'_>, attr: &str) -> Result<Option<[usize; 2]>> {
    let &[_, rows, columns, _] = infer.attr::<Vec<i64>>(attr)?.as_slice() else { return Ok(None) };
    Ok(usize::try_from(rows).ok().zip(usize::try_from(columns).ok()).map(|(r, c)| [r, c]))
}

fn padding(infer: &Infer<'_>) -> Result<Padding> {
    Ok(if infer.attr::<String>("padding")? == "SAME" { Padding::Same } else { Padding::Valid })
}

/// Gives the first output the shape of images over which a window of `sizes` has moved.
fn moved(infer: &mut Infer<'_>, sizes: [Dim; 2], channels: Dim) -> Result<()> {
    infer.set_all(PartialShape::scalar());
    let images = infer.input_of_rank(0, 4)?;
    let mut spatial = [None; 2];
    if let Some(strides) = window(infer, "strides")? {
        let padding = padding(infer)?;
        for axis in [0, 1] {
            let input = images.dim(axis + 1);
            spatial[axis] = Window::output_dim(input, sizes[axis], strides[axis], 1, padding, axis)?;
        }
    }
    infer.set(0, [images.dim(0), spatial[0], spatial[1], channels]);
    Ok(())
}

fn convolution(infer: &mut Infer<'_>) -> Result<()> {
    let filter = infer.input_of_rank(1, 4)?;
    moved(infer, [filter.dim(0), filter.dim(1)], filter.dim(3))
}

fn pool(infer: &mut Infer<'_>) -> Result<()> {
    let channels = infer.input_of_rank(0, 4)?.dim(3);
    let sizes = window(infer, "ksize")?.map_or([None; 2], |sizes| sizes.map(Some));
    moved(infer, sizes, channels)
}
