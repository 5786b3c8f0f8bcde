//! Convolutions that resize or pad their images first, and convolutions over any number of batch axes: each runs the
//! kernels of the ops that it is composed of.

use device::kernel::{Kernel, KernelContext, KernelInit};
use device::single_node::{make_kernel, run_kernel};
use device::value::Value;
use device::{Device, Error, Result, invalid};
use graph::{DType, Node, Shape, Tensor};
use std::sync::Arc;

/// A node of one of the ops, and its kernel.
struct Part {
    node: Node,
    kernel: Kernel,
}

impl Part {
    fn new(device: &Arc<Device>, op: &str, attrs: impl FnOnce(Node) -> Node) -> Result<Part> {
        let op = graph::ops::lookup(op).ok_or_else(|| Error::internal(format!("there is no op {op}")))?;
        let node = attrs(Node::new("part", op));
        let kernel = make_kernel(device, &node)?;
        Ok(Part { node, kernel })
    }

    fn run(&self, ctx: &KernelContext<'_>, inputs: Vec<Tensor>) -> Result<Tensor> {
        let inputs = inputs.into_iter().map(Value::Host).collect();
        match run_kernel(&self.kernel, ctx.device(), &self.node, inputs)?.into_iter().next() {
            Some(Value::Host(output)) => Ok(output),
            _ => Err(Error::internal("a part of a convolution has no output")),
        }
    }
}

/// Returns the strides, which must be 1 over the batch and the channels.
fn spatial_strides(init: &KernelInit<'_>) -> Result<Vec<i64>> {
    let strides = init.attr::<Vec<i64>>("strides")?;
    if let [batch, .., channels] = strides[..]
        && (batch, channels) != (1, 1)
    {
        invalid!("Current implementation does not support strides in the batch and depth dimensions.");
    }
    Ok(strides)
}

/// Returns the parts that pad images and convolve them.
fn pad_and_convolve_parts(init: &KernelInit<'_>) -> Result<[Part; 2]> {
    let (dtype, mode) = (init.input_type(0), init.attr::<String>("mode")?);
    let (strides, padding) = (spatial_strides(init)?, init.attr::<String>("padding")?);
    Ok([
        Part::new(init.device, "MirrorPad", |node| {
            node.with_attr("T", dtype).with_attr("Tpaddings", DType::Int32).with_attr("mode", mode)
        })?,
        Part::new(init.device, "Conv2D", |node| {
            node.with_attr("T", dtype).with_attr("strides", strides).with_attr("padding", padding)
        })?,
    ])
}

fn check_paddings(images: &Tensor, paddings: &Tensor) -> Result<()> {
    if images.shape().rank() != 4 {
        invalid!("input must be 4-dimensional: {}", images.shape());
    }
    if paddings.shape().dims() != [4, 2] {
        invalid!("The first dimension of paddings must be the rank of inputs: 4, not {}", paddings.shape());
    }
    if paddings.values::<i32>()?.iter().enumerate().any(|(i, &size)| size != 0 && !(2..6).contains(&i)) {
        invalid!("Fused mirror padding only support spatial padding, not {}", paddings.summarize(8));
    }
    Ok(())
}

/// Makes the kernel of FusedPadConv2D.
pub(super) fn pad_and_convolve(init: &KernelInit<'_>) -> Result<Kernel> {
    let [pad, convolve] = pad_and_convolve_parts(init)?;
    Kernel::sync(move |ctx| {
        let (images, paddings, filter) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        check_paddings(images, paddings)?;
        let padded = pad.run(ctx, vec![images.clone(), paddings.clone()])?;
        let out = convolve.run(ctx, vec![padded, filter.clone()])?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of FusedResizeAndPadConv2D.
pub(super) fn resize_pad_and_convolve(init: &KernelInit<'_>) -> Result<Kernel> {
    let [pad, convolve] = pad_and_convolve_parts(init)?;
    let dtype = init.input_type(0);
    let align_corners = init.attr::<bool>("resize_align_corners")?;
    let resize = Part::new(init.device, "ResizeBilinear", |node| {
        node.with_attr("T", dtype).with_attr("align_corners", align_corners)
    })?;
    let narrow =
        Part::new(init.device, "Cast", |node| node.with_attr("SrcT", DType::Float).with_attr("DstT", dtype))?;
    Kernel::sync(move |ctx| {
        let (images, size, paddings) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        check_paddings(images, paddings)?;
        let resized = narrow.run(ctx, vec![resize.run(ctx, vec![images.clone(), size.clone()])?])?;
        let padded = pad.run(ctx, vec![resized, paddings.clone()])?;
        let out = convolve.run(ctx, vec![padded, ctx.input(3)?.clone()])?;
        ctx.set_output(0, out);
        Ok(())
    })
}

/// Makes the kernel of Conv, over images or volumes; all axes before them are batch axes.
pub(super) fn convolve(init: &KernelInit<'_>) -> Result<Kernel> {
    let dtype = init.input_type(0);
    let strides = spatial_strides(init)?;
    let is_first = init.attr::<String>("data_format")? == "CHANNELS_FIRST";
    let (padding, dilations) = (init.attr::<String>("padding")?, init.attr::<Vec<i64>>("dilations")?);
    let explicit = init.attr::<Vec<i64>>("explicit_paddings")?;
    let batch_axes = init.attr::<i64>("batch_dims")?;
    let Ok(batch_axes) = usize::try_from(batch_axes) else {
        invalid!("batch_dims must be non-negative, got {batch_axes}");
    };
    if init.attr::<i64>("groups")? != 1 {
        return Err(Error::unimplemented("Grouped/Depthwise Convolutions are not supported yet."));
    }
    let rank = strides.len();
    let images = match (rank, dtype) {
        (4, _) => "Conv2D",
        (5, DType::Int32) => return Err(Error::unimplemented("convolutions over volumes of int32")),
        (5, _) => "Conv3D",
        _ => invalid!("Sliding window strides field must specify 4 or 5 dimensions"),
    };
    if is_first {
        return Err(Error::unimplemented(format!(
            "The {images} op currently only supports the NHWC tensor format on the CPU."
        )));
    }
    if rank == 5 && padding == "EXPLICIT" {
        return Err(Error::unimplemented("convolutions over volumes with explicit paddings"));
    }
    let part = Part::new(init.device, images, |mut node| {
        node = node.with_attr("T", dtype).with_attr("strides", strides).with_attr("padding", padding);
        if !explicit.is_empty() {
            node = node.with_attr("explicit_paddings", explicit);
        }
        if !dilations.is_empty() {
            node = node.with_attr("dilations", dilations);
        }
        node
    })?;
    Kernel::sync(move |ctx| {
        let (input, filter) = (ctx.input(0)?, ctx.input(1)?);
        let dims = input.shape().dims();
        let spatial = dims.len().wrapping_sub(batch_axes + 1);
        if dims.len() <= batch_axes || !(2..=3).contains(&spatial) {
            invalid!("The input must have 2 or 3 spatial dimensions but got {}", spatial as isize);
        }
        if spatial + 2 != rank {
            invalid!("Sliding window strides field must specify {} dimensions", spatial + 2);
        }
        if filter.num_elements() == 0 {
            invalid!("filter must not have zero elements (i.e. all dimensions must be non-zero)");
        }
        if filter.shape().rank() == rank && dims[dims.len() - 1] != filter.shape()[rank - 2] {
            invalid!(
                "Input depth must be equal to filter depth: {} vs {}",
                dims[dims.len() - 1],
                filter.shape()[rank - 2]
            );
        }
        let (batch, inner) = dims.split_at(batch_axes);
        let joined = Shape::new(&[&[batch.iter().product()], inner].concat())?;
        let out = part.run(ctx, vec![input.reshaped(joined)?, filter.clone()])?;
        let shape = Shape::new(&[batch, &out.shape()[1..]].concat())?;
        let out = out.reshaped(shape)?;
        ctx.set_output(0, out);
        Ok(())
    })
}
