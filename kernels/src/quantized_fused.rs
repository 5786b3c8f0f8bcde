//! Products and convolutions of 8-bit values with the ops that follow them: bias, sum, rectification, and conversion to
//! a range. TensorFlow computes these ops with oneDNN; the filter's levels are symmetric around zero, and the level 0 of
//! the input stands for zero, or for the least number of its range.
//!
//! All ops are one computation: sums of 32 bits, and a [`Finish`] that turns each sum into a number, applies the steps to
//! it, and rounds the result to a level.

use super::numeric::product::{Matrix, Threads, product};
use super::numeric::scratch::check_scratch;
use super::quantized::conv::Geometry;
use super::quantized::level::{Level, levels};
use device::kernel::{Kernel, KernelContext, KernelDef, KernelInit};
use device::{Error, Result, invalid};
use graph::DType::{self, Float, QInt8, QInt32, QUInt8};
use graph::ops::window::{DataFormat, Padding};
use graph::{Code, Shape, Tensor};

/// The steps of an op between the sums and its output.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Steps {
    has_bias: bool,
    has_summand: bool,
    is_rectified: bool,
    is_depthwise: bool,
}

impl Steps {
    pub(crate) const NONE: Steps =
        Steps { has_bias: false, has_summand: false, is_rectified: false, is_depthwise: false };
    const RELU: Steps = Steps { is_rectified: true, ..Steps::NONE };
    const BIAS: Steps = Steps { has_bias: true, ..Steps::NONE };
    const BIAS_RELU: Steps = Steps { is_rectified: true, ..Steps::BIAS };
    const BIAS_SUM_RELU: Steps = Steps { has_summand: true, ..Steps::BIAS_RELU };

    const fn depthwise(self) -> Steps {
        Steps { is_depthwise: true, ..self }
    }
}

const UNSIGNED: &[DType] = &[QUInt8];
const SIGNED: &[DType] = &[QInt8];
const BYTES: &[DType] = &[QInt8, QUInt8];
const SUMS: &[DType] = &[QInt32];
const BIASES: &[DType] = &[Float, QInt32];

type Types = [(&'static str, &'static [DType])];

const OF_UNSIGNED: &Types = &[("Tinput", UNSIGNED), ("Tfilter", SIGNED), ("out_type", SUMS)];
const OF_BYTES: &Types = &[("Tinput", BYTES), ("Tfilter", SIGNED), ("out_type", SUMS)];
const TO_UNSIGNED: &Types = &[("Tinput", UNSIGNED), ("Tfilter", SIGNED), ("out_type", UNSIGNED)];
const TO_SIGNED: &Types = &[("Tinput", UNSIGNED), ("Tfilter", SIGNED), ("out_type", SIGNED)];
const BIASED_TO_UNSIGNED: &Types =
    &[("Tinput", BYTES), ("Tfilter", SIGNED), ("Tbias", BIASES), ("out_type", UNSIGNED)];
const BIASED_TO_SIGNED: &Types =
    &[("Tinput", BYTES), ("Tfilter", SIGNED), ("Tbias", BIASES), ("out_type", SIGNED)];
const SUMMED: &Types = &[
    ("Tinput", UNSIGNED),
    ("Tfilter", SIGNED),
    ("Tbias", BIASES),
    ("Tsummand", UNSIGNED),
    ("out_type", UNSIGNED),
];
const SIGNED_SUMMED: &Types = &[
    ("Tinput", UNSIGNED),
    ("Tfilter", SIGNED),
    ("Tbias", BIASES),
    ("Tsummand", SIGNED),
    ("out_type", UNSIGNED),
];
const DEPTHWISE_TO_UNSIGNED: &Types =
    &[("Tinput", UNSIGNED), ("Tfilter", SIGNED), ("Tbias", BIASES), ("out_type", UNSIGNED)];
const PRODUCT: &Types = &[("T1", UNSIGNED), ("T2", SIGNED), ("Tbias", BIASES), ("Toutput", SUMS)];
const PRODUCT_RELU: &Types = &[("T1", UNSIGNED), ("T2", SIGNED), ("Toutput", SUMS)];
const PRODUCT_TO_UNSIGNED: &Types =
    &[("T1", UNSIGNED), ("T2", SIGNED), ("Tbias", BIASES), ("Toutput", UNSIGNED)];
const PRODUCT_TO_FLOAT: &Types =
    &[("T1", UNSIGNED), ("T2", SIGNED), ("Tbias", BIASES), ("Toutput", &[Float])];

pub(super) const KERNELS: &[KernelDef] = &[
    KernelDef::of("QuantizedConv2DPerChannel", OF_UNSIGNED, |i| fused_convolution(i, Steps::NONE)),
    KernelDef::of("QuantizedConv2DAndRelu", OF_UNSIGNED, |i| fused_convolution(i, Steps::RELU)),
    KernelDef::of("QuantizedConv2DAndReluAndRequantize", TO_UNSIGNED, |i| fused_convolution(i, Steps::RELU)),
    KernelDef::of("QuantizedConv2DAndRequantize", TO_SIGNED, |i| fused_convolution(i, Steps::NONE)),
    KernelDef::of("QuantizedConv2DWithBias", OF_BYTES, |i| fused_convolution(i, Steps::BIAS)),
    KernelDef::of("QuantizedConv2DWithBiasAndRelu", OF_BYTES, |i| fused_convolution(i, Steps::BIAS_RELU)),
    KernelDef::of("QuantizedConv2DWithBiasAndReluAndRequantize", BIASED_TO_UNSIGNED, |i| {
        fused_convolution(i, Steps::BIAS_RELU)
    }),
    KernelDef::of("QuantizedConv2DWithBiasAndRequantize", BIASED_TO_SIGNED, |i| {
        fused_convolution(i, Steps::BIAS)
    }),
    KernelDef::of("QuantizedConv2DWithBiasSumAndRelu", OF_UNSIGNED, |i| {
        fused_convolution(i, Steps::BIAS_SUM_RELU)
    }),
    KernelDef::of("QuantizedConv2DWithBiasSumAndReluAndRequantize", SUMMED, |i| {
        fused_convolution(i, Steps::BIAS_SUM_RELU)
    }),
    KernelDef::of("QuantizedConv2DWithBiasSignedSumAndReluAndRequantize", SIGNED_SUMMED, |i| {
        fused_convolution(i, Steps::BIAS_SUM_RELU)
    }),
    KernelDef::of("QuantizedDepthwiseConv2D", OF_UNSIGNED, |i| fused_convolution(i, Steps::NONE.depthwise())),
    KernelDef::of("QuantizedDepthwiseConv2DWithBias", OF_UNSIGNED, |i| {
        fused_convolution(i, Steps::BIAS.depthwise())
    }),
    KernelDef::of("QuantizedDepthwiseConv2DWithBiasAndRelu", OF_UNSIGNED, |i| {
        fused_convolution(i, Steps::BIAS_RELU.depthwise())
    }),
    KernelDef::of("QuantizedDepthwiseConv2DWithBiasAndReluAndRequantize", DEPTHWISE_TO_UNSIGNED, |i| {
        fused_convolution(i, Steps::BIAS_RELU.depthwise())
    }),
    KernelDef::of("QuantizedMatMulWithBias", PRODUCT, |i| fused_product(i, Steps::BIAS)),
    KernelDef::of("QuantizedMatMulWithBiasAndRelu", PRODUCT_RELU, |i| fused_product(i, Steps::BIAS_RELU)),
    KernelDef::of("QuantizedMatMulWithBiasAndReluAndRequantize", PRODUCT_TO_UNSIGNED, |i| {
        fused_product(i, Steps::BIAS_RELU)
    }),
    KernelDef::of("QuantizedMatMulWithBiasAndRequantize", PRODUCT_TO_UNSIGNED, |i| {
        fused_product(i, Steps::BIAS)
    }),
    KernelDef::of("QuantizedMatMulWithBiasAndDequantize", PRODUCT_TO_FLOAT, |i| {
        fused_product(i, Steps::BIAS)
    }),
];

/// The type of the output, and the numbers of the inputs after the factors and the bias: the factors' ranges, the range
/// of the output, the summand.
#[derive(Clone, Copy)]
struct Inputs {
    output_type: DType,
    first: usize,
}

impl Inputs {
    fn of(init: &KernelInit<'_>, steps: Steps) -> Inputs {
        Inputs { output_type: init.output_type(0), first: 2 + usize::from(steps.has_bias) }
    }

    fn factor(self) -> usize {
        self.first
    }

    fn filter(self) -> usize {
        self.first + 2
    }

    fn output(self) -> Option<usize> {
        (self.output_type != QInt32).then_some(self.first + 4)
    }

    fn summand(self) -> usize {
        self.output().unwrap_or(self.first + 2) + 2
    }
}

/// Returns the scalar in input `i`, an end of a range; `name` is the input's name in errors.
fn end(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<f32> {
    let end = ctx.input(i)?;
    if end.shape().rank() != 0 {
        invalid!("`{name}` must be rank 0 but is rank {}", end.shape().rank());
    }
    Ok(end.item()?)
}

/// Returns the range in the inputs `i` and `i + 1`, which must be scalars.
fn ends(ctx: &KernelContext<'_>, i: usize, name: &str) -> Result<[f32; 2]> {
    Ok([end(ctx, i, &format!("min_{name}"))?, end(ctx, i + 1, &format!("max_{name}"))?])
}

/// Returns the larger of the absolute values of a range's ends.
fn magnitude([min, max]: [f32; 2]) -> f32 {
    min.abs().max(max.abs())
}

/// Returns the highest level of a type of 8 bits.
fn highest(dtype: DType) -> f32 {
    if dtype == QUInt8 { 255.0 } else { 127.0 }
}

/// Returns the levels of a tensor of 8-bit values.
fn widened(tensor: &Tensor) -> Result<Vec<i32>> {
    check_scratch::<i32>(tensor.num_elements())?;
    Ok(match tensor.dtype() {
        QUInt8 => levels::<u8>(tensor)?.iter().map(|&level| level.into()).collect(),
        _ => levels::<i8>(tensor)?.iter().map(|&level| level.into()).collect(),
    })
}

/// The numbers of the levels of both factors.
struct Scales {
    input: f32,
    /// The number of a level of the filter: for each channel of the output, or one for all.
    filter: Vec<f32>,
    /// The number of a level of the output.
    output: f32,
}

impl Scales {
    /// Returns the number of 1 in the sums of a channel.
    fn sum(&self, channel: usize) -> f32 {
        self.input * self.filter[channel % self.filter.len()]
    }
}

/// The conversion of sums to elements of the output.
struct Finish<'a> {
    /// The number of 1 in the sums of each channel, or of all channels.
    factors: Vec<f32>,
    bias: Option<Vec<f32>>,
    summand: Option<Summand<'a>>,
    is_rectified: bool,
    /// The reciprocal of the number of a level of the output.
    levels_per_one: f32,
}

/// The numbers to add, by elements of the output.
enum Summand<'a> {
    Numbers(&'a [f32]),
    /// Levels, and the number of a level.
    Levels(Vec<i32>, f32),
}

impl Finish<'_> {
    /// Returns the result for the sum of a channel in levels, before it is rounded; `at` is its index in the output. A sum
    /// that is the level itself stays exact.
    fn apply(&self, channel: usize, at: usize, sum: i32) -> f64 {
        let factor = self.factors[if self.factors.len() == 1 { 0 } else { channel }];
        let is_level = (factor * self.levels_per_one - 1.0).abs() < 1e-6;
        if is_level && self.bias.is_none() && self.summand.is_none() {
            return f64::from(if self.is_rectified { sum.max(0) } else { sum });
        }
        let mut value = sum as f32 * factor;
        if let Some(bias) = &self.bias {
            value += bias[channel];
        }
        match &self.summand {
            None => {}
            Some(Summand::Numbers(numbers)) => value += numbers[at],
            Some(Summand::Levels(levels, one)) => value += levels[at] as f32 * one,
        }
        if self.is_rectified {
            value = value.max(0.0);
        }
        f64::from(value * self.levels_per_one)
    }
}

/// Elements of an output: levels, or numbers.
trait Rounded: bytemuck::Pod + Send {
    fn rounded(value: f64) -> Self;
}

macro_rules! rounded_levels {
    ($($t:ty),*) => { $(impl Rounded for $t {
        fn rounded(value: f64) -> $t {
            <$t as Level>::clamped(value.round_ties_even() as i64)
        }
    })* };
}
rounded_levels!(i8, u8, i32);

impl Rounded for f32 {
    fn rounded(value: f64) -> f32 {
        value as f32
    }
}

/// Returns a new tensor whose elements `fill` sets.
fn output<T: Rounded>(
    dtype: DType,
    shape: Shape,
    fill: impl FnOnce(&mut [T]) -> Result<()>,
) -> Result<Tensor> {
    let mut tensor = Tensor::unspecified(dtype, shape)?;
    let elements = bytemuck::try_cast_slice_mut(tensor.bytes_mut()?)
        .map_err(|e| Error::internal(format!("elements of {dtype} are written wrongly: {e}")))?;
    fill(elements)?;
    Ok(tensor)
}

/// Returns the bias in input 2 as a number for each channel. Levels of 32 bits are those of the sums.
fn bias(ctx: &KernelContext<'_>, channels: usize, scales: &Scales) -> Result<Vec<f32>> {
    let bias = ctx.input(2)?;
    if bias.shape().dims() != [channels] {
        invalid!("bias must be a vector of {channels} elements, got shape {}", bias.shape());
    }
    match bias.dtype() {
        Float => Ok(bias.values::<f32>()?.to_vec()),
        _ => {
            let number = |(channel, &level): (usize, &i32)| level as f32 * scales.sum(channel);
            Ok(levels::<i32>(bias)?.iter().enumerate().map(number).collect())
        }
    }
}

/// Sets the outputs 1 and 2 to the ends of the output's range: the requested one, or that of the sums for each range of
/// the filter.
fn set_range(
    ctx: &mut KernelContext<'_>,
    requested: Option<[f32; 2]>,
    input: [f32; 2],
    filter: &[Tensor; 2],
) -> Result<()> {
    if let Some([min, max]) = requested {
        ctx.set_scalar(1, min);
        ctx.set_scalar(2, max);
        return Ok(());
    }
    let levels = if ctx.input(0)?.dtype() == QUInt8 { 255.0 } else { 254.0 };
    let one = (input[1] - input[0]) / levels;
    let (mins, maxes) = (filter[0].values::<f32>()?, filter[1].values::<f32>()?);
    let most = mins.iter().zip(maxes).map(|(min, max)| one * ((max - min) / 254.0) * i32::MAX as f32);
    let most: Vec<f32> = most.collect();
    let least: Vec<f32> = most.iter().map(|end| -end).collect();
    let shape = filter[0].shape().clone();
    let ends = [Tensor::from_slice(&least, shape.clone())?, Tensor::from_slice(&most, shape)?];
    let [least, most] = ends;
    ctx.set_output(1, least);
    ctx.set_output(2, most);
    Ok(())
}

/// The attributes of a convolution.
#[derive(Clone, Copy)]
struct Attributes {
    strides: [usize; 2],
    dilations: [usize; 2],
    padding: Padding,
}

impl Attributes {
    fn of(init: &KernelInit<'_>) -> Result<Attributes> {
        let pair = |name: &str| -> Result<[usize; 2]> {
            let values: Vec<i64> = init.attr(name)?;
            let &[batch, rows, columns, depth] = values.as_slice() else {
                invalid!("{name} must have 4 values, got {}", values.len());
            };
            if batch != 1 || depth != 1 {
                let message = format!(
                    "Current implementation does not yet support {name} in the batch and depth dimensions: {values:?}"
                );
                let code = if name == "strides" { Code::Unimplemented } else { Code::InvalidArgument };
                return Err(Error::new(code, message));
            }
            let positive = |value: i64| usize::try_from(value).ok().filter(|&value| value > 0);
            match (positive(rows), positive(columns)) {
                (Some(rows), Some(columns)) => Ok([rows, columns]),
                _ => invalid!("{name} must be > 0, got {values:?}"),
            }
        };
        let list: Vec<i64> = match init.node.op.attr_spec("padding_list") {
            Some(_) => init.attr("padding_list")?,
            None => Vec::new(),
        };
        let kind: String = init.attr("padding")?;
        let kind = if list.is_empty() { kind.as_str() } else { "EXPLICIT" };
        let padding = Padding::parse(kind, &list, DataFormat::Nhwc)?;
        Ok(Attributes { strides: pair("strides")?, dilations: pair("dilations")?, padding })
    }
}

/// Makes the kernel of a convolution with `steps`.
pub(crate) fn fused_convolution(init: &KernelInit<'_>, steps: Steps) -> Result<Kernel> {
    let (attributes, inputs) = (Attributes::of(init)?, Inputs::of(init, steps));
    match init.output_type(0) {
        QInt8 => Kernel::sync(move |ctx| convolve::<i8>(ctx, attributes, steps, inputs)),
        QUInt8 => Kernel::sync(move |ctx| convolve::<u8>(ctx, attributes, steps, inputs)),
        _ => Kernel::sync(move |ctx| convolve::<i32>(ctx, attributes, steps, inputs)),
    }
}

fn convolve<T: Rounded>(
    ctx: &mut KernelContext<'_>,
    attributes: Attributes,
    steps: Steps,
    inputs: Inputs,
) -> Result<()> {
    let (images, filter) = (ctx.input(0)?, ctx.input(1)?);
    let Attributes { strides, dilations, padding } = attributes;
    let geometry =
        Geometry::new(images.shape(), filter.shape(), [strides, dilations], padding, steps.is_depthwise)?;
    let (shape, channels) = (geometry.output_shape()?, geometry.channels());
    let input = ends(ctx, inputs.factor(), "input")?;
    let filter_ends = [ctx.input(inputs.filter())?.clone(), ctx.input(inputs.filter() + 1)?.clone()];
    let count = filter_ends[0].num_elements();
    if filter_ends[0].shape() != filter_ends[1].shape() || count != 1 && count != channels {
        invalid!(
            "`min_filter` and `max_filter` must have the same shape and 1 or {channels} elements, got {} and {}",
            filter_ends[0].shape(),
            filter_ends[1].shape()
        );
    }
    let (mins, maxes) = (filter_ends[0].values::<f32>()?, filter_ends[1].values::<f32>()?);
    let filter_scale = |(&min, &max)| magnitude([min, max]) / 127.0;
    let requested = inputs.output().map(|at| ends(ctx, at, "freezed_output")).transpose()?;
    let input_scale = magnitude(input) / highest(images.dtype());
    let dtype = inputs.output_type;
    let scales = Scales {
        input: input_scale,
        filter: mins.iter().zip(maxes).map(filter_scale).collect(),
        output: match requested {
            Some(range) => magnitude(range) / highest(dtype),
            None => {
                let least = mins.iter().copied().fold(f32::INFINITY, f32::min);
                let most = maxes.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                magnitude([least, most]) / 127.0 * input_scale
            }
        },
    };
    let summand = match steps.has_summand {
        true => Some(summand(ctx, inputs, &shape)?),
        false => None,
    };
    let finish = Finish {
        factors: (0..scales.filter.len()).map(|channel| scales.sum(channel)).collect(),
        bias: if steps.has_bias { Some(bias(ctx, channels, &scales)?) } else { None },
        summand,
        is_rectified: steps.is_rectified,
        levels_per_one: 1.0 / scales.output,
    };
    let (pixels, weights) = (widened(images)?, widened(filter)?);
    let element = |channel: usize, at: usize, sum: i32| T::rounded(finish.apply(channel, at, sum));
    let out = output(dtype, shape, |out: &mut [T]| {
        if pixels.is_empty() || weights.is_empty() {
            out.iter_mut().enumerate().for_each(|(at, to)| *to = element(at % channels, at, 0));
        } else if !out.is_empty() {
            geometry.for_each_pixel(&pixels, &weights, 0, out, |pixel, sums, out| {
                for (channel, (to, &sum)) in out.iter_mut().zip(sums).enumerate() {
                    *to = element(channel, pixel * channels + channel, sum);
                }
            });
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    set_range(ctx, requested, input, &filter_ends)
}

/// Returns the summand, whose shape must be `shape`: numbers, or levels of the range after it.
fn summand<'a>(ctx: &'a KernelContext<'_>, inputs: Inputs, shape: &Shape) -> Result<Summand<'a>> {
    let at = inputs.summand();
    let tensor = ctx.input(at)?;
    if tensor.shape() != shape {
        invalid!("the summand must have the output's shape {shape}, got {}", tensor.shape());
    }
    match tensor.dtype() {
        Float => Ok(Summand::Numbers(tensor.values::<f32>()?)),
        dtype => {
            let one = magnitude(ends(ctx, at + 1, "freezed_summand")?) / highest(dtype);
            Ok(Summand::Levels(widened(tensor)?, one))
        }
    }
}

/// Makes the kernel of a product of matrices with `steps`.
fn fused_product(init: &KernelInit<'_>, steps: Steps) -> Result<Kernel> {
    let flips: [bool; 2] = [init.attr("transpose_a")?, init.attr("transpose_b")?];
    let is_offset = init.attr::<String>("input_quant_mode")? == "MIN_FIRST";
    let inputs = Inputs::of(init, steps);
    match init.output_type(0) {
        QUInt8 => Kernel::sync(move |ctx| multiply::<u8>(ctx, flips, is_offset, steps, inputs)),
        Float => Kernel::sync(move |ctx| multiply::<f32>(ctx, flips, is_offset, steps, inputs)),
        _ => Kernel::sync(move |ctx| multiply::<i32>(ctx, flips, is_offset, steps, inputs)),
    }
}

/// Multiplies matrices. If `is_offset` is set, the level 0 of the first factor stands for the least number of its range.
fn multiply<T: Rounded>(
    ctx: &mut KernelContext<'_>,
    flips: [bool; 2],
    is_offset: bool,
    steps: Steps,
    inputs: Inputs,
) -> Result<()> {
    let size = |tensor: &Tensor, flip: bool| match *tensor.shape().dims() {
        [rows, columns] => Ok(if flip { [columns, rows] } else { [rows, columns] }),
        _ => invalid!("In[0] and In[1] must be matrices, not {}", tensor.shape()),
    };
    let (a, b) = (ctx.input(0)?, ctx.input(1)?);
    let ([rows, inner], [b_inner, columns]) = (size(a, flips[0])?, size(b, flips[1])?);
    if inner != b_inner {
        invalid!("Matrix size-compatible: In[0]: {}, In[1]: {}", a.shape(), b.shape());
    }
    let (input, filter) = (ends(ctx, inputs.factor(), "a")?, ends(ctx, inputs.filter(), "b")?);
    let requested = inputs.output().map(|at| ends(ctx, at, "freezed_output")).transpose()?;
    let dtype = inputs.output_type;
    let input_scale = if is_offset { (input[1] - input[0]) / 255.0 } else { magnitude(input) / 255.0 };
    let filter_scale = magnitude(filter) / 127.0;
    let scales = Scales {
        input: input_scale,
        filter: vec![filter_scale],
        output: match (requested, dtype) {
            (_, Float) => 1.0,
            (Some(range), _) => magnitude(range) / highest(dtype),
            (None, _) => input_scale * filter_scale,
        },
    };
    let (xs, ys) = (widened(a)?, widened(b)?);
    let mut bias = bias(ctx, columns, &scales)?;
    // A bias in levels includes the offset of the first factor.
    if is_offset && ctx.input(2)?.dtype() == Float {
        for (column, bias) in bias.iter_mut().enumerate() {
            let at = |row: usize| if flips[1] { column * inner + row } else { row * columns + column };
            let total = (0..inner).fold(0i32, |total, row| total.wrapping_add(ys[at(row)]));
            *bias += total as f32 * input[0] * filter_scale;
        }
    }
    let finish = Finish {
        factors: vec![scales.sum(0)],
        bias: Some(bias),
        summand: None,
        is_rectified: steps.is_rectified,
        levels_per_one: 1.0 / scales.output,
    };
    let shape = Shape::new(&[rows, columns])?;
    check_scratch::<i32>(shape.num_elements())?;
    let mut sums = vec![0i32; shape.num_elements()];
    let matrix = |values, rows: usize, columns: usize, flip: bool| match flip {
        true => Matrix::new(values, columns, rows, rows).transposed(),
        false => Matrix::new(values, rows, columns, columns),
    };
    if !sums.is_empty() {
        let (x, y) = (matrix(&xs, rows, inner, flips[0]), matrix(&ys, inner, columns, flips[1]));
        product(&mut sums, columns, x, y, false, Threads::for_work(rows * inner * columns));
    }
    let out = output(dtype, shape, |out: &mut [T]| {
        for (at, (to, &sum)) in out.iter_mut().zip(&sums).enumerate() {
            *to = T::rounded(finish.apply(at % columns, at, sum));
        }
        Ok(())
    })?;
    ctx.set_output(0, out);
    match dtype {
        Float => Ok(()),
        _ => {
            let filter_ends = filter.map(Tensor::scalar);
            set_range(ctx, requested, input, &filter_ends)
        }
    }
}
