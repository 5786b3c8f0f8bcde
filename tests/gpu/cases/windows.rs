//! Inputs for ops of windows over images and volumes: pools and convolutions, in each order of axes.

use super::{Fallible, Random};
use graph::ops::conv::Conv;
use graph::ops::pool::Pool;
use graph::{DType, Node, Shape, Tensor};

/// Sizes of an input in a node's format: images or volumes.
fn input(node: &Node, channels: usize) -> Fallible<Vec<usize>> {
    Ok(match node.attr::<String>("data_format")?.as_str() {
        "NCDHW" => vec![2, channels, 4, 5, 3],
        "NDHWC" => vec![2, 4, 5, 3, channels],
        "NCHW" => vec![2, channels, 7, 6],
        _ => vec![2, 7, 6, channels],
    })
}

/// A shape as an input.
fn sizes(shape: &[usize]) -> Fallible<Tensor> {
    let sizes: Vec<i32> = shape.iter().map(|&size| size as i32).collect();
    Ok(Tensor::vector(&sizes)?)
}

pub(super) fn inputs(
    node: &Node,
    types: &[DType],
    random: &mut Random,
) -> Fallible<Option<Vec<Vec<Tensor>>>> {
    let set = match node.op.name() {
        name if name.starts_with("MaxPool") || name.starts_with("AvgPool") => {
            // Channels that cross memory one by one, and by eights.
            let sets = [3, 8].map(|channels| pool(node, types, &input(node, channels)?, random));
            return Ok(Some(sets.into_iter().collect::<Fallible<_>>()?));
        }
        name if name.starts_with("Conv2D") => {
            let (input, conv) = (input(node, 3)?, Conv::of_images(node)?);
            let mut set = |filter: [usize; 4]| {
                let output = conv.output_shape(&conv.sizes(&input, &filter)?)?;
                convolution(node, random, [&input, &filter, &output])
            };
            // Of one pixel too: without strides and padding that is a product.
            return Ok(Some(vec![set([3, 2, 3, 4])?, set([1, 1, 3, 4])?]));
        }
        name if name.starts_with("Conv3D") => {
            let (input, filter) = (input(node, 3)?, [2, 3, 2, 3, 4]);
            let conv = Conv::of_volumes(node)?;
            let output = conv.output_shape(&conv.sizes(&input, &filter)?)?;
            convolution(node, random, [&input, &filter, &output])?
        }
        name if name.starts_with("DepthwiseConv2dNative") => {
            // Strides over rows and columns are one.
            let (input, filter) = (input(node, 3)?, [3, 2, 3, 2]);
            let conv = Conv::of_images(node)?;
            let output = conv.output_shape(&conv.depthwise_sizes(&input, &filter)?)?;
            convolution(node, random, [&input, &filter, &output])?
        }
        _ => return Ok(None),
    };
    Ok(Some(vec![set]))
}

fn pool(node: &Node, types: &[DType], input: &[usize], random: &mut Random) -> Fallible<Vec<Tensor>> {
    let t = types.last().copied().unwrap_or(DType::Float);
    let name = node.op.name();
    let pool = if name.contains("3D") { Pool::of_volumes(node)? } else { Pool::of(node)? };
    let output: Shape = pool.output_shape(&pool.sizes(input)?)?;
    let mut of = |dims: &[usize]| random.tensor(t, dims);
    Ok(match name {
        "MaxPool3DGrad" => {
            // What counts is equal to the pooled.
            let x = of(input)?;
            let attrs = ["ksize", "strides"].map(|name| Ok((name, node.attr::<Vec<i64>>(name)?.into())));
            let texts = ["padding", "data_format"].map(|name| Ok((name, node.attr::<String>(name)?.into())));
            let mut attrs = attrs.into_iter().chain(texts).collect::<Fallible<Vec<_>>>()?;
            attrs.push(("T", t.into()));
            let pooled = executor::testing::run_op("MaxPool3D", std::slice::from_ref(&x), &attrs)?.remove(0);
            vec![x, pooled, of(&output)?]
        }
        "AvgPool3DGrad" => vec![sizes(input)?, of(&output)?],
        "MaxPoolGrad" => {
            let (pooled, dy) = (of(&output)?, of(&output)?);
            // Few numbers: several under a window are its largest.
            let x = random.tensor(DType::Int64, input)?;
            vec![random.cast(&x, t)?, pooled, dy]
        }
        "AvgPoolGrad" => vec![sizes(input)?, of(&output)?],
        _ => vec![of(input)?],
    })
}

/// What a convolution, or the gradient of its input or filter, takes.
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
