//! Normalization over batches and over neighbouring channels.

use super::window::{DataFormat, ReadAttr};
use super::{Gradient, OpDef};
use crate::builder::{Forward, Scope};
use crate::error::Result;
use crate::graph::Output;
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};
use crate::tensor::Tensor;

const EPSILON: &str = "epsilon: float = 0.0001";
const AVERAGE: &str = "exponential_avg_factor: float = 1.0";
const FORMAT: &str = "data_format: {'NHWC', 'NCHW'} = 'NHWC'";
const ANY_FORMAT: &str = "data_format: {'NHWC', 'NCHW', 'NDHWC', 'NCDHW'} = 'NHWC'";
const TRAINING: &str = "is_training: bool = true";
const FLOATS: &str = "T: {half, bfloat16, float}";
const LOCAL: &[&str] = &[
    "depth_radius: int = 5",
    "bias: float = 1.0",
    "alpha: float = 1.0",
    "beta: float = 0.5",
    "T: {half, bfloat16, float} = float",
];
const GLOBAL: &[&str] = &["T: numbertype", "variance_epsilon: float", "scale_after_normalization: bool"];

const BATCH: OpDef = OpDef {
    inputs: &["x: T", "scale: U", "offset: U", "mean: U", "variance: U"],
    outputs: &["y: T", "batch_mean: U", "batch_variance: U", "reserve_space_1: U", "reserve_space_2: U"],
    infer: infer_batch,
    gradient: Gradient::Defined(batch_grad),
    ..OpDef::NEW
};
const BATCH_GRAD: OpDef = OpDef {
    inputs: &["y_backprop: T", "x: T", "scale: float", "reserve_space_1: U", "reserve_space_2: U"],
    outputs: &[
        "x_backprop: T",
        "scale_backprop: U",
        "offset_backprop: U",
        "reserve_space_3: U",
        "reserve_space_4: U",
    ],
    infer: infer_batch_grad,
    ..OpDef::NEW
};

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "FusedBatchNorm",
        inputs: &["x: T", "scale: T", "offset: T", "mean: T", "variance: T"],
        outputs: &["y: T", "batch_mean: T", "batch_variance: T", "reserve_space_1: T", "reserve_space_2: T"],
        attrs: &["T: {float}", EPSILON, AVERAGE, FORMAT, TRAINING],
        ..BATCH
    },
    OpDef {
        name: "FusedBatchNormV2",
        attrs: &[FLOATS, "U: {float}", EPSILON, AVERAGE, FORMAT, TRAINING],
        ..BATCH
    },
    OpDef {
        name: "FusedBatchNormV3",
        outputs: &[
            "y: T",
            "batch_mean: U",
            "batch_variance: U",
            "reserve_space_1: U",
            "reserve_space_2: U",
            "reserve_space_3: U",
        ],
        attrs: &[FLOATS, "U: {bfloat16, float}", EPSILON, AVERAGE, ANY_FORMAT, TRAINING],
        ..BATCH
    },
    OpDef {
        name: "FusedBatchNormGrad",
        inputs: &["y_backprop: T", "x: T", "scale: T", "reserve_space_1: T", "reserve_space_2: T"],
        outputs: &[
            "x_backprop: T",
            "scale_backprop: T",
            "offset_backprop: T",
            "reserve_space_3: T",
            "reserve_space_4: T",
        ],
        attrs: &["T: {float}", EPSILON, FORMAT, TRAINING],
        ..BATCH_GRAD
    },
    OpDef {
        name: "FusedBatchNormGradV2",
        attrs: &[FLOATS, "U: {float}", EPSILON, FORMAT, TRAINING],
        ..BATCH_GRAD
    },
    OpDef {
        name: "FusedBatchNormGradV3",
        inputs: &[
            "y_backprop: T",
            "x: T",
            "scale: float",
            "reserve_space_1: U",
            "reserve_space_2: U",
            "reserve_space_3: U",
        ],
        outputs: &[
            "x_backprop: T",
            "scale_backprop: U",
            "offset_backprop: U",
            "reserve_space_4: U",
            "reserve_space_5: U",
        ],
        attrs: &[FLOATS, "U: {float}", EPSILON, ANY_FORMAT, TRAINING],
        ..BATCH_GRAD
    },
    // The gradient of a normalization followed by the activation `activation_mode`. The activation's output is
    // recomputed from the inputs of the normalization, to find where the activation passes no gradient.
    OpDef {
        name: "_FusedBatchNormActivationGrad",
        inputs: &[
            "y_backprop: T",
            "x: T",
            "scale: float",
            "reserve_space_1: U",
            "reserve_space_2: U",
            "offset: float",
        ],
        attrs: &[
            FLOATS,
            "U: {float}",
            EPSILON,
            "activation_mode: {'Relu', 'Relu6'} = 'Relu'",
            FORMAT,
            TRAINING,
        ],
        is_extension: true,
        ..BATCH_GRAD
    },
    OpDef {
        name: "LRN",
        inputs: &["input: T"],
        outputs: &["output: T"],
        attrs: LOCAL,
        infer: like_input,
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None]) };
            let mut call = s.op("LRNGrad").input(dy).input(f.input(0)).input(f.output(0));
            call = call.attr("depth_radius", f.attr::<i64>("depth_radius")?);
            for name in ["bias", "alpha", "beta"] {
                call = call.attr(name, f.attr::<f32>(name)?);
            }
            Ok(vec![Some(call.output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "LRNGrad",
        inputs: &["input_grads: T", "input_image: T", "output_image: T"],
        outputs: &["output: T"],
        attrs: LOCAL,
        infer: like_input,
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchNormWithGlobalNormalization",
        inputs: &["t: T", "m: T", "v: T", "beta: T", "gamma: T"],
        outputs: &["result: T"],
        attrs: GLOBAL,
        infer: |infer| {
            let shape = with_channels(infer, infer.input_of_rank(0, 4)?, 3, 1..5)?.0;
            infer.set(0, shape);
            Ok(())
        },
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None; 5]) };
            let call = s.op("BatchNormWithGlobalNormalizationGrad");
            let call = call.input(f.input(0)).input(f.input(1)).input(f.input(2)).input(f.input(4)).input(dy);
            let call = call.attr("variance_epsilon", f.attr::<f32>("variance_epsilon")?);
            let call = call.attr("scale_after_normalization", f.attr::<bool>("scale_after_normalization")?);
            Ok(call.outputs().into_iter().map(Some).collect())
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "BatchNormWithGlobalNormalizationGrad",
        inputs: &["t: T", "m: T", "v: T", "gamma: T", "backprop: T"],
        outputs: &["dx: T", "dm: T", "dv: T", "db: T", "dg: T"],
        attrs: GLOBAL,
        infer: |infer| {
            let shape = infer.input_of_rank(0, 4)?.merge(&infer.input(4))?;
            let (shape, channels) = with_channels(infer, shape, 3, 1..4)?;
            infer.set_all(PartialShape::vector(channels));
            infer.set(0, shape);
            Ok(())
        },
        ..OpDef::NEW
    },
];

/// The attributes of a batch normalization.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BatchNorm {
    pub epsilon: f32,
    /// The weight of the current batch in the running averages; 1 if the op computes no running averages.
    pub average: f32,
    pub format: DataFormat,
    /// True if the data may be volumes, which have a plane axis in addition to rows and columns.
    pub volumes: bool,
    pub training: bool,
}

impl BatchNorm {
    /// Parses the attributes of a batch normalization node or of its gradient.
    pub fn of(node: &impl ReadAttr) -> Result<BatchNorm> {
        let format: String = node.read_attr("data_format")?;
        let volumes = format.len() == 5;
        Ok(BatchNorm {
            epsilon: node.read_attr("epsilon")?,
            // The gradient ops do not have the attribute `exponential_avg_factor`.
            average: node.read_attr("exponential_avg_factor").unwrap_or(1.0),
            format: if volumes { DataFormat::parse_volumes(&format)? } else { DataFormat::parse(&format)? },
            volumes,
            training: node.read_attr("is_training")?,
        })
    }

    /// Returns the channel axis of data of this rank.
    pub fn channel_axis(&self, rank: usize) -> usize {
        match self.format {
            DataFormat::Nhwc => rank - 1,
            DataFormat::Nchw => 1,
        }
    }
}

/// Returns `shape` in which the channel axis `axis` has the size on which `shape` and the per-channel inputs `vectors`
/// agree, and that size.
fn with_channels(
    infer: &Infer<'_>,
    shape: PartialShape,
    axis: usize,
    vectors: std::ops::Range<usize>,
) -> Result<(PartialShape, Dim)> {
    let mut channels = PartialShape::vector(shape.dim(axis));
    for i in vectors {
        channels = channels.merge(&infer.input_of_rank(i, 1)?)?;
    }
    let channels = channels.dim(0);
    let dims = shape.dims().map(|dims| {
        let mut dims = dims.to_vec();
        dims[axis] = channels;
        dims
    });
    Ok((dims.map_or_else(PartialShape::unknown, PartialShape::of_dims), channels))
}

/// Returns the shape of data input `input` and the index of its channel axis. The rank is 4, or also 5 for volume
/// formats.
fn data(infer: &Infer<'_>, input: usize, attrs: &BatchNorm) -> Result<(PartialShape, usize)> {
    let x = infer.input(input);
    let rank = if attrs.volumes && x.rank() != Some(4) { 5 } else { 4 };
    Ok((x.with_rank(rank)?, attrs.channel_axis(rank)))
}

fn infer_batch(infer: &mut Infer<'_>) -> Result<()> {
    let attrs = BatchNorm::of(infer)?;
    let (x, axis) = data(infer, 0, &attrs)?;
    let vectors = if attrs.training { 1..3 } else { 1..5 };
    let (x, channels) = with_channels(infer, x, axis, vectors)?;
    infer.set_all(PartialShape::vector(channels));
    infer.set(0, x);
    if infer.num_outputs() == 6 {
        infer.set(5, PartialShape::unknown());
    }
    Ok(())
}

fn infer_batch_grad(infer: &mut Infer<'_>) -> Result<()> {
    let attrs = BatchNorm::of(infer)?;
    let (x, axis) = data(infer, 1, &attrs)?;
    let x = x.merge(&infer.input(0))?;
    let (x, channels) = with_channels(infer, x, axis, 2..5)?;
    infer.set_all(PartialShape::vector(Some(0)));
    infer.set(0, x);
    infer.set(1, PartialShape::vector(channels));
    infer.set(2, PartialShape::vector(channels));
    Ok(())
}

fn like_input(infer: &mut Infer<'_>) -> Result<()> {
    let mut shape = infer.input_of_rank(0, 4)?;
    for i in 1..infer.num_inputs() {
        shape = shape.merge(&infer.input(i))?;
    }
    infer.set(0, shape);
    Ok(())
}

fn batch_grad(s: &Scope, f: &Forward, dy: &[Option<Output>]) -> Result<Vec<Option<Output>>> {
    let Some(mut dy) = dy[0] else { return Ok(vec![None; 5]) };
    let attrs = BatchNorm::of(&f.node)?;
    let (op, spaces) = match f.node.op.name() {
        "FusedBatchNorm" => ("FusedBatchNormGrad", 2),
        "FusedBatchNormV2" => ("FusedBatchNormGradV2", 2),
        _ => ("FusedBatchNormGradV3", 3),
    };
    let mut x = f.input(0);
    let mut format: String = f.attr("data_format")?;
    // In inference mode, kernels compute the gradient only for channels last, so channels-first data is transposed.
    let moved = !attrs.training && attrs.format == DataFormat::Nchw;
    let rank = if attrs.volumes { 5 } else { 4 };
    if moved {
        let mut perm: Vec<i32> = (0..rank).collect();
        perm[1..].rotate_left(1);
        (x, dy) = (transposed(s, x, &perm)?, transposed(s, dy, &perm)?);
        format = if attrs.volumes { "NDHWC".to_owned() } else { "NHWC".to_owned() };
    }
    let mut call = s.op(op).input(dy).input(x).input(f.input(1));
    for i in 0..spaces {
        let space = if attrs.training || i == 2 { f.output(3 + i) } else { f.input(3 + i) };
        call = call.input(space);
    }
    let call = call.attr("epsilon", attrs.epsilon).attr("data_format", format.as_str());
    let all = call.attr("is_training", attrs.training).outputs();
    let mut dx = all[0];
    if moved {
        let mut perm: Vec<i32> = (0..rank).collect();
        perm[1..].rotate_right(1);
        dx = transposed(s, dx, &perm)?;
    }
    Ok(vec![Some(dx), Some(all[1]), Some(all[2]), None, None])
}

fn transposed(s: &Scope, x: Output, perm: &[i32]) -> Result<Output> {
    let perm = s.constant(Tensor::from_slice(perm, crate::Shape::new(&[perm.len()])?)?);
    Ok(s.op("Transpose").input(x).input(perm).output())
}
