//! Products and convolutions of quantized values together with the ops that follow them.

use super::window::{DataFormat, Padding, Window};
use super::{OpDef, matmul};
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

macro_rules! quantized {
    ($name:literal) => {
        concat!($name, ": {qint8, quint8, qint32, qint16, quint16}")
    };
    ($name:literal = $default:literal) => {
        concat!($name, ": {qint8, quint8, qint32, qint16, quint16} = ", $default)
    };
}

/// Returns the attributes of a convolution: its types, and those after the type of its output.
macro_rules! convolution_attrs {
    ($out:literal $(, types $type:expr)* $(, list $list:expr)?) => {
        &[
            quantized!("Tinput"),
            quantized!("Tfilter"),
            $($type,)*
            quantized!("out_type" = $out),
            "strides: list(int)",
            "padding: {'SAME', 'VALID'}",
            "dilations: list(int) = [1, 1, 1, 1]",
            $($list,)?
        ]
    };
}

const LIST: &str = "padding_list: list(int) = []";
const BIAS: &str = "Tbias: {float, qint32}";
const SUMMAND: &str = quantized!("Tsummand");

const PLAIN: &[&str] = &[
    "input: Tinput",
    "filter: Tfilter",
    "min_input: float",
    "max_input: float",
    "min_filter: float",
    "max_filter: float",
];
const PLAIN_TO_RANGE: &[&str] = &[
    "input: Tinput",
    "filter: Tfilter",
    "min_input: float",
    "max_input: float",
    "min_filter: float",
    "max_filter: float",
    "min_freezed_output: float",
    "max_freezed_output: float",
];
const BIASED: &[&str] = &[
    "input: Tinput",
    "filter: Tfilter",
    "bias: float",
    "min_input: float",
    "max_input: float",
    "min_filter: float",
    "max_filter: float",
];
const BIASED_TO_RANGE: &[&str] = &[
    "input: Tinput",
    "filter: Tfilter",
    "bias: Tbias",
    "min_input: float",
    "max_input: float",
    "min_filter: float",
    "max_filter: float",
    "min_freezed_output: float",
    "max_freezed_output: float",
];
const SUMMED: &[&str] = &[
    "input: Tinput",
    "filter: Tfilter",
    "bias: float",
    "min_input: float",
    "max_input: float",
    "min_filter: float",
    "max_filter: float",
    "summand: float",
];
const SUMMED_TO_RANGE: &[&str] = &[
    "input: Tinput",
    "filter: Tfilter",
    "bias: Tbias",
    "min_input: float",
    "max_input: float",
    "min_filter: float",
    "max_filter: float",
    "min_freezed_output: float",
    "max_freezed_output: float",
    "summand: Tsummand",
    "min_summand: float",
    "max_summand: float",
];
const PRODUCT: &[&str] =
    &["a: T1", "b: T2", "bias: Tbias", "min_a: float", "max_a: float", "min_b: float", "max_b: float"];
const PRODUCT_TO_RANGE: &[&str] = &[
    "a: T1",
    "b: T2",
    "bias: Tbias",
    "min_a: float",
    "max_a: float",
    "min_b: float",
    "max_b: float",
    "min_freezed_output: float",
    "max_freezed_output: float",
];

const CONVOLUTION: OpDef = OpDef {
    outputs: &["output: out_type", "min_output: float", "max_output: float"],
    infer: |infer| convolution(infer, false),
    ..OpDef::NEW
};
const DEPTHWISE: OpDef = OpDef { infer: |infer| convolution(infer, true), ..CONVOLUTION };
const MATMUL: OpDef = OpDef {
    outputs: &["out: Toutput", "min_out: float", "max_out: float"],
    infer: |infer| {
        infer.set_all(PartialShape::scalar());
        matmul::infer(infer)
    },
    ..OpDef::NEW
};
const TRANSPOSE_A: &str = "transpose_a: bool = false";
const TRANSPOSE_B: &str = "transpose_b: bool = false";
const MODE: &str = "input_quant_mode: {'MIN_FIRST', 'SCALED'} = 'MIN_FIRST'";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "QuantizedConv2DPerChannel",
        inputs: PLAIN,
        attrs: convolution_attrs!("qint32"),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DAndRelu",
        inputs: PLAIN,
        attrs: convolution_attrs!("qint32", list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DAndReluAndRequantize",
        inputs: PLAIN_TO_RANGE,
        attrs: convolution_attrs!("quint8", list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DAndRequantize",
        inputs: PLAIN_TO_RANGE,
        attrs: convolution_attrs!("qint8", list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DWithBias",
        inputs: BIASED,
        attrs: convolution_attrs!("qint32", list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DWithBiasAndRelu",
        inputs: BIASED,
        attrs: convolution_attrs!("qint32", list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DWithBiasAndReluAndRequantize",
        inputs: BIASED_TO_RANGE,
        attrs: convolution_attrs!("quint8", types BIAS, list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DWithBiasAndRequantize",
        inputs: BIASED_TO_RANGE,
        attrs: convolution_attrs!("qint8", types BIAS, list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DWithBiasSumAndRelu",
        inputs: SUMMED,
        attrs: convolution_attrs!("qint32", list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DWithBiasSumAndReluAndRequantize",
        inputs: SUMMED_TO_RANGE,
        attrs: convolution_attrs!("quint8", types BIAS, types SUMMAND, list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedConv2DWithBiasSignedSumAndReluAndRequantize",
        inputs: SUMMED_TO_RANGE,
        attrs: convolution_attrs!("quint8", types BIAS, types SUMMAND, list LIST),
        ..CONVOLUTION
    },
    OpDef {
        name: "QuantizedDepthwiseConv2D",
        inputs: PLAIN,
        attrs: convolution_attrs!("qint32"),
        ..DEPTHWISE
    },
    OpDef {
        name: "QuantizedDepthwiseConv2DWithBias",
        inputs: BIASED,
        attrs: convolution_attrs!("qint32"),
        ..DEPTHWISE
    },
    OpDef {
        name: "QuantizedDepthwiseConv2DWithBiasAndRelu",
        inputs: BIASED,
        attrs: convolution_attrs!("qint32", list LIST),
        ..DEPTHWISE
    },
    OpDef {
        name: "QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize",
        inputs: BIASED_TO_RANGE,
        attrs: convolution_attrs!("quint8", types BIAS, list LIST),
        ..DEPTHWISE
    },
    OpDef {
        name: "QuantizedMatMulWithBias",
        inputs: PRODUCT,
        attrs: &[
            quantized!("T1"),
            quantized!("T2"),
            BIAS,
            quantized!("Toutput" = "qint32"),
            TRANSPOSE_A,
            TRANSPOSE_B,
            MODE,
        ],
        ..MATMUL
    },
    OpDef {
        name: "QuantizedMatMulWithBiasAndRelu",
        inputs: &[
            "a: T1",
            "b: T2",
            "bias: float",
            "min_a: float",
            "max_a: float",
            "min_b: float",
            "max_b: float",
        ],
        attrs: &[
            quantized!("T1"),
            quantized!("T2"),
            quantized!("Toutput" = "qint32"),
            TRANSPOSE_A,
            TRANSPOSE_B,
            MODE,
        ],
        ..MATMUL
    },
    OpDef {
        name: "QuantizedMatMulWithBiasAndReluAndRequantize",
        inputs: PRODUCT_TO_RANGE,
        attrs: &[
            quantized!("T1"),
            quantized!("T2"),
            BIAS,
            quantized!("Toutput" = "quint8"),
            TRANSPOSE_A,
            TRANSPOSE_B,
            MODE,
        ],
        ..MATMUL
    },
    OpDef {
        name: "QuantizedMatMulWithBiasAndRequantize",
        inputs: PRODUCT_TO_RANGE,
        attrs: &[
            quantized!("T1"),
            quantized!("T2"),
            BIAS,
            quantized!("Toutput" = "quint8"),
            TRANSPOSE_A,
            TRANSPOSE_B,
            MODE,
        ],
        ..MATMUL
    },
    OpDef {
        name: "QuantizedMatMulWithBiasAndDequantize",
        inputs: PRODUCT_TO_RANGE,
        outputs: &["out: Toutput"],
        attrs: &[
            quantized!("T1"),
            quantized!("T2"),
            BIAS,
            "Toutput: {float}",
            TRANSPOSE_A,
            TRANSPOSE_B,
            MODE,
        ],
        ..MATMUL
    },
];

/// Gives the first output the shape of filtered images. The ends of its range are scalars, or vectors like those of the
/// filter if the output has the range of the sums.
fn convolution(infer: &mut Infer<'_>, is_depthwise: bool) -> Result<()> {
    let (images, filter) = (infer.input_of_rank(0, 4)?, infer.input_of_rank(1, 4)?);
    let pair = |infer: &Infer<'_>, name: &str| -> Result<Option<[usize; 2]>> {
        let &[_, rows, columns, _] = infer.attr::<Vec<i64>>(name)?.as_slice() else { return Ok(None) };
        Ok(usize::try_from(rows).ok().zip(usize::try_from(columns).ok()).map(|(r, c)| [r, c]))
    };
    let list: Vec<i64> = match infer.op().attr_spec("padding_list") {
        Some(_) => infer.attr("padding_list")?,
        None => Vec::new(),
    };
    let kind: String = infer.attr("padding")?;
    let kind = if list.is_empty() { kind.as_str() } else { "EXPLICIT" };
    let padding = Padding::parse(kind, &list, DataFormat::Nhwc)?;
    let mut sizes = [None; 2];
    if let (Some(strides), Some(dilations)) = (pair(infer, "strides")?, pair(infer, "dilations")?) {
        for axis in [0, 1] {
            let (input, taps) = (images.dim(axis + 1), filter.dim(axis));
            sizes[axis] = Window::output_dim(input, taps, strides[axis], dilations[axis], padding, axis)?;
        }
    }
    let channels = match is_depthwise {
        true => filter.dim(2).zip(filter.dim(3)).and_then(|(depth, each)| depth.checked_mul(each)),
        false => filter.dim(3),
    };
    let position = |name: &str| infer.op().def.inputs.iter().position(|input| input.starts_with(name));
    let ends = match (position("min_freezed_output:"), position("min_filter:")) {
        (None, Some(i)) => infer.input(i),
        _ => PartialShape::scalar(),
    };
    infer.set_all(ends);
    infer.set(0, [images.dim(0), sizes[0], sizes[1], channels]);
    Ok(())
}
