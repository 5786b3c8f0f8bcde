//! Inputs for ops with windows over images and volumes: pooling and convolution, in each data format.

use super::super::op_nodes::in_format;
use super::{Fallible, Random};
use graph::ops::conv::Conv;
use graph::ops::morphology::Dilation;
use graph::ops::pool::Pool;
use graph::{DType, Node, Shape, Tensor};

/// Returns the shape of an input with `channels` channels in the node's data format.
fn input(node: &Node, channels: usize) -> Fallible<Vec<usize>> {
    Ok(match node.attr::<String>("data_format").unwrap_or_default().as_str() {
        "NCDHW" => vec![2, channels, 4, 5, 3],
        "NDHWC" => vec![2, 4, 5, 3, channels],
        "NCHW" => vec![2, channels, 7, 6],
        _ => vec![2, 7, 6, channels],
    })
}

/// Returns a shape as a vector of `int32`, an input of gradient ops.
fn sizes(shape: &[usize]) -> Fallible<Tensor> {
    let sizes: Vec<i32> = shape.iter().map(|&size| size as i32).collect();
    Ok(Tensor::vector(&sizes)?)
}

pub(super) fn inputs(node: &Node, random: &mut Random) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    let set = match node.op.name() {
        name if name.starts_with("MaxPool") || name.starts_with("AvgPool") => {
            return pools(node, random).map(Some);
        }
        name if name.starts_with("Conv2D") => {
            let (input, conv) = (input(node, 3)?, Conv::of_images(node)?);
            let mut set = |filter: [usize; 4]| {
                let output = conv.output_shape(&conv.sizes(&input, &filter)?)?;
                convolution(node, random, [&input, &filter, &output])
            };
            // The second filter is 1x1: without strides and padding, the convolution with it is a matrix product.
            return Ok(Some(vec![set([3, 2, 3, 4])?, set([1, 1, 3, 4])?]));
        }
        name if name.starts_with("Conv3D") => {
            let (input, filter) = (input(node, 3)?, [2, 3, 2, 3, 4]);
            let conv = Conv::of_volumes(node)?;
            let output = conv.output_shape(&conv.sizes(&input, &filter)?)?;
            convolution(node, random, [&input, &filter, &output])?
        }
        name if name.starts_with("Dilation2D") => {
            let (input, filter) = (input(node, 3)?, [3, 2, 3]);
            let dilation = Dilation::of(node)?;
            let [rows, columns] = [0, 1].map(|axis| dilation.axis(axis, input[axis + 1], filter[axis]));
            let output = [input[0], rows?.output, columns?.output, input[3]];
            let t = node.attr("T")?;
            let mut set = vec![random.tensor(t, &input)?, random.tensor(t, &filter)?];
            if name.contains("Backprop") {
                set.push(random.tensor(t, &output)?);
            }
            set
        }
        name if name.starts_with("DepthwiseConv2dNative") => {
            // The op requires equal strides over rows and columns.
            let (input, filter) = (input(node, 3)?, [3, 2, 3, 2]);
            let conv = Conv::of_images(node)?;
            let output = conv.output_shape(&conv.depthwise_sizes(&input, &filter)?)?;
            convolution(node, random, [&input, &filter, &output])?
        }
        _ => return Ok(None),
    };
    Ok(Some(vec![set]))
}

/// Returns sets of inputs of a pooling op, whose window sizes and strides are attributes of the node or, for V2 ops,
/// inputs.
fn pools(node: &Node, random: &mut Random) -> Fallible<Vec<Vec<Tensor>>> {
    let is_by_inputs = node.op.name().ends_with("V2");
    let windows = if is_by_inputs {
        let format: String = node.attr("data_format")?;
        [[[3, 2], [2, 1]], [[2, 2], [3, 3]]].map(|sizes| sizes.map(|size| in_format(size, &format))).to_vec()
    } else {
        vec![[node.attr("ksize")?, node.attr("strides")?]]
    };
    let mut all = Vec::new();
    for [ksize, strides] in &windows {
        // One number of channels is a multiple of the elements that a GPU thread loads at once, the other is not.
        for channels in [3, 8] {
            let mut inputs = pool(node, [ksize, strides], &input(node, channels)?, random)?;
            if is_by_inputs {
                for sizes in [ksize, strides] {
                    inputs.push(Tensor::vector(&sizes.iter().map(|&size| size as i32).collect::<Vec<_>>())?);
                }
            }
            all.push(inputs);
        }
    }
    Ok(all)
}

/// Returns inputs of a pooling op with the window sizes `ksize` and the strides `strides`.
fn pool(
    node: &Node,
    [ksize, strides]: [&Vec<i64>; 2],
    input: &[usize],
    random: &mut Random,
) -> Fallible<Vec<Tensor>> {
    let (name, t) = (node.op.name(), node.attr::<DType>("T")?);
    let is_of_volumes = name.contains("3D");
    let pool = if is_of_volumes { Pool::of_volumes(node)? } else { Pool::with(node, ksize, strides)? };
    let output: Shape = pool.output_shape(&pool.sizes(input)?)?;
    // Runs the pooling op `op` on `x`, with the node's window sizes, strides and padding.
    let pooled = |op: &str, x: &Tensor| -> Fallible<Vec<Tensor>> {
        let mut attrs =
            vec![("T", t.into()), ("ksize", ksize.clone().into()), ("strides", strides.clone().into())];
        attrs.push(("padding", node.attr::<String>("padding")?.into()));
        for name in ["Targmax", "data_format", "include_batch_in_index"] {
            attrs.extend(node.attrs.get(name).map(|value| (name, value.clone())));
        }
        Ok(kernels::testing::run_op(op, std::slice::from_ref(x), &attrs)?)
    };
    // The elements are small integers, so that several elements in a window equal its maximum.
    let x = random.tensor(DType::Int64, input)?;
    let x = random.cast(&x, t)?;
    let mut of = |dims: &[usize]| random.tensor(t, dims);
    Ok(match name {
        "MaxPool3DGrad" => {
            // The op passes the gradient to the elements that equal the pooled value, so the values must be pooled
            // from `x`.
            let x = of(input)?;
            let pooled = pooled("MaxPool3D", &x)?.remove(0);
            vec![x, pooled, of(&output)?]
        }
        "MaxPoolGradWithArgmax" => {
            let places = pooled("MaxPoolWithArgmax", &x)?.remove(1);
            vec![x, of(&output)?, places]
        }
        "MaxPoolGrad" | "MaxPoolGradV2" => vec![x, of(&output)?, of(&output)?],
        "AvgPoolGrad" | "AvgPool3DGrad" => vec![sizes(input)?, of(&output)?],
        name if name.contains("GradGrad") => {
            let pooled = pooled(if is_of_volumes { "MaxPool3D" } else { "MaxPool" }, &x)?.remove(0);
            vec![x, pooled, of(input)?]
        }
        "MaxPoolWithArgmax" => vec![x],
        _ => vec![of(input)?],
    })
}

/// Returns inputs of a convolution, or of the gradient of its input or filter.
fn convolution(node: &Node, random: &mut Random, shapes: [&[usize]; 3]) -> Fallible<Vec<Tensor>> {
    let [input, filter, output] = shapes;
    let t = node.attr("T")?;
    let mut of = |dims: &[usize]| random.tensor(t, dims);
    Ok(match node.op.name() {
        name if name.contains("Input") => vec![sizes(input)?, of(filter)?, of(output)?],
        name if name.contains("Filter") => vec![of(input)?, sizes(filter)?, of(output)?],
        _ => vec![of(input)?, of(filter)?],
    })
}
