//! Fused ops. Most are TensorFlow's: the graph optimizer of a TensorFlow master replaces a product, convolution or
//! normalization and the ops after it by one fused op, whose attribute `fused_ops` lists the replaced ops in order.
//! `_FusedElementwise` is an op of this project ([`fuse`](crate::passes::fuse)).

use super::OpDef;
use super::conv::{self, DILATIONS, EXPLICIT, PADDING, STRIDES};
use super::matmul;
use crate::error::Result;
use crate::infer::Infer;
use crate::shape::PartialShape;

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "_FusedMatMul",
        inputs: &["a: T", "b: T", "args: num_args * T"],
        outputs: &["product: T"],
        attrs: &[
            "transpose_a: bool = false",
            "transpose_b: bool = false",
            "T: {bfloat16, half, float}",
            "num_args: int >= 0",
            FUSED_OPS,
            EPSILON,
            LEAKY_RELU_ALPHA,
        ],
        infer: matmul::infer,
        ..OpDef::NEW
    },
    OpDef {
        name: "_FusedConv2D",
        inputs: &["input: T", "filter: T", "args: TArgs", "host_args: num_host_args * float"],
        outputs: &["output: T"],
        attrs: &[
            "T: {half, float, double, int8, qint8}",
            "TArgs: list(type) >= 1",
            "num_args: int >= 0",
            "num_host_args: int >= 0 = 0",
            STRIDES,
            PADDING,
            EXPLICIT,
            "data_format: {'NHWC', 'NCHW', 'NCHW_VECT_C'} = 'NHWC'",
            "filter_format: {'HWIO', 'OIHW', 'OIHW_VECT_I'} = 'HWIO'",
            DILATIONS,
            "use_cudnn_on_gpu: bool = true",
            FUSED_OPS,
            EPSILON,
            LEAKY_RELU_ALPHA,
        ],
        infer: conv::infer_images,
        ..OpDef::NEW
    },
    OpDef {
        name: "_FusedBatchNormEx",
        inputs: &[
            "x: T",
            "scale: U",
            "offset: U",
            "mean: U",
            "variance: U",
            "side_input: num_side_inputs * T",
        ],
        outputs: &[
            "y: T",
            "batch_mean: U",
            "batch_variance: U",
            "reserve_space_1: U",
            "reserve_space_2: U",
            "reserve_space_3: U",
        ],
        attrs: &[
            "T: {half, float, bfloat16}",
            "U: {float}",
            EPSILON,
            "exponential_avg_factor: float = 1.0",
            "num_side_inputs: int >= 0 = 0",
            "activation_mode: string = 'Identity'",
            "data_format: {'NHWC', 'NCHW'} = 'NHWC'",
            "is_training: bool = true",
        ],
        infer: |infer| {
            let channels = PartialShape::of_dims([infer.input_of_rank(1, 1)?.dim(0)]);
            infer.set(0, infer.input_of_rank(0, 4)?);
            (1..5).for_each(|i| infer.set(i, channels.clone()));
            Ok(())
        },
        ..OpDef::NEW
    },
    OpDef {
        name: "_UnaryOpsComposition",
        inputs: &["x: T"],
        outputs: &["y: T"],
        attrs: &["T: {float, half, double}", "op_names: list(string)"],
        infer: same_shape,
        ..OpDef::NEW
    },
    // _FusedElementwise: `ops` lists element-wise ops with one or two operands each. `operands` lists the operands of
    // all ops in sequence: a number below N is an input, a number from N on is the value of an earlier op. The output
    // is the value of the last op. `names` lists the names of the original nodes.
    OpDef {
        name: "_FusedElementwise",
        inputs: &["inputs: N * T"],
        outputs: &["output: T"],
        attrs: &[
            "T: {half, bfloat16, float, double}",
            "N: int >= 1",
            "ops: list(string) >= 1",
            "operands: list(int) >= 1",
            "names: list(string) >= 1",
        ],
        is_extension: true,
        ..OpDef::NEW
    },
];

const FUSED_OPS: &str = "fused_ops: list(string) = []";
const EPSILON: &str = "epsilon: float = 0.0001";
const LEAKY_RELU_ALPHA: &str = "leakyrelu_alpha: float = 0.2";

fn same_shape(infer: &mut Infer<'_>) -> Result<()> {
    infer.set(0, infer.input(0).clone());
    Ok(())
}
