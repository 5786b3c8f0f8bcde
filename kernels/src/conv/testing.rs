//! Helpers for the tests of convolutions.

use device::Result;
use graph::ops::conv::{Conv, ConvSizes};
use graph::{DType, Node, ops};

/// Returns the sizes of a two-dimensional convolution with padding "SAME".
pub(super) fn sizes(input: [usize; 4], filter: [usize; 4], stride: i64) -> Result<ConvSizes> {
    let op = ops::lookup("Conv2D").ok_or_else(|| device::Error::internal("no such op"))?;
    let node = Node::new("case", op)
        .with_attr("T", DType::Float)
        .with_attr("strides", vec![1, stride, stride, 1])
        .with_attr("padding", "SAME");
    Ok(Conv::of_images(&node)?.sizes(&input, &filter)?)
}

/// Returns `len` irregular numbers between -5 and 6.
pub(super) fn noise(len: usize) -> Vec<f32> {
    (0..len).map(|i| (i * 7919 % 1013) as f32 / 97.0 - 5.0).collect()
}
