//! Addition of a bias vector along the channel axis.

use super::window::{DataFormat, ReadAttr};
use super::{Gradient, OpDef};
use crate::error::{Error, Result};
use crate::infer::Infer;
use crate::shape::{Dim, PartialShape};
use crate::tensor::Tensor;

const FORMAT: &str = "data_format: {'NHWC', 'NCHW'} = 'NHWC'";

pub(super) const OPS: &[OpDef] = &[
    OpDef {
        name: "BiasAdd",
        inputs: &["value: T", "bias: T"],
        outputs: &["output: T"],
        attrs: &["T: numbertype", FORMAT],
        infer: |infer| {
            let format = data_format(infer)?;
            infer_add(infer, format)
        },
        gradient: Gradient::Defined(|s, f, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None, None]) };
            let format: String = f.attr("data_format")?;
            let bias = s.op("BiasAddGrad").input(dy).attr("data_format", format).output();
            Ok(vec![Some(dy), Some(bias)])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "BiasAddV1",
        inputs: &["value: T", "bias: T"],
        outputs: &["output: T"],
        attrs: &["T: numbertype"],
        infer: |infer| infer_add(infer, DataFormat::Nhwc),
        gradient: Gradient::Defined(|s, _, dy| {
            let Some(dy) = dy[0] else { return Ok(vec![None, None]) };
            let int =
                |v: i32| s.op("Const").attr("dtype", crate::DType::Int32).attr("value", Tensor::scalar(v));
            let (zero, one) = (int(0).output(), int(1).output());
            let rank = s.op("Rank").input(dy).output();
            let last = s.op("Sub").input(rank).input(one).output();
            let axes = s.op("Range").input(zero).input(last).input(one).output();
            Ok(vec![Some(dy), Some(s.op("Sum").input(dy).input(axes).output())])
        }),
        ..OpDef::NEW
    },
    OpDef {
        name: "BiasAddGrad",
        inputs: &["out_backprop: T"],
        outputs: &["output: T"],
        attrs: &["T: numbertype", FORMAT],
        infer: |infer| {
            let shape = infer.input(0);
            let dim = match shape.rank() {
                Some(rank) => shape.dim(channel_axis(rank, data_format(infer)?)?),
                None => None,
            };
            infer.set(0, PartialShape::vector(dim));
            Ok(())
        },
        // BiasAddGrad sums over all axes except the channels; the gradient of that sum is a broadcast, computed here
        // by adding `d` as a bias to zeros.
        gradient: Gradient::Defined(|s, f, d| {
            let Some(d) = d[0] else { return Ok(vec![None]) };
            let format: String = f.attr("data_format")?;
            let zeros = s.op("ZerosLike").input(f.input(0)).output();
            Ok(vec![Some(s.op("BiasAdd").input(zeros).input(d).attr("data_format", format).output())])
        }),
        ..OpDef::NEW
    },
];

/// Returns the axis of the channels in a tensor of this rank.
///
/// # Errors
/// `InvalidArgument` if the rank is below 2.
pub fn channel_axis(rank: usize, format: DataFormat) -> Result<usize> {
    if rank < 2 {
        return Err(Error::invalid(format!("Shape must be at least rank 2 but is rank {rank}")));
    }
    Ok(match format {
        DataFormat::Nhwc => rank - 1,
        DataFormat::Nchw => 1,
    })
}

/// Returns the node's data format.
///
/// # Errors
/// `Unimplemented` for formats other than NHWC and NCHW.
pub fn data_format(node: &impl ReadAttr) -> Result<DataFormat> {
    DataFormat::parse(&node.read_attr::<String>("data_format")?)
}

fn infer_add(infer: &mut Infer<'_>, format: DataFormat) -> Result<()> {
    let bias = infer.input_of_rank(1, 1)?;
    let value = infer.input(0);
    let Some(dims) = value.dims() else { return Ok(()) };
    let axis = channel_axis(dims.len(), format)?;
    let mut only_channels: Vec<Dim> = vec![None; dims.len()];
    only_channels[axis] = bias.dim(0);
    infer.set(0, value.merge(&PartialShape::of_dims(only_channels))?);
    Ok(())
}
