//! Builders of convolutions over images `[batch, rows, columns, channels]`. Other formats, dilations and explicit
//! paddings are set as attributes through [`Scope::op`].

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Convolves images with `filter`, `[rows, columns, input channels, output channels]`. `strides` holds one value
    /// for rows and one for columns; `padding` is `SAME` or `VALID`.
    pub fn conv2d(&self, images: Output, filter: Output, strides: [i64; 2], padding: &str) -> Output {
        let strides = vec![1, strides[0], strides[1], 1];
        self.op("Conv2D")
            .input(images)
            .input(filter)
            .attr("strides", strides)
            .attr("padding", padding)
            .output()
    }
}
