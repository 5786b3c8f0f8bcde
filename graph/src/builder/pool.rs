//! Builders of pooling over images `[batch, rows, columns, channels]`.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Returns the maximum of each window. `ksize` (the window's size) and `strides` are `[rows, columns]`; `padding`
    /// is `SAME` or `VALID`.
    pub fn max_pool(&self, images: Output, ksize: [i64; 2], strides: [i64; 2], padding: &str) -> Output {
        self.pool("MaxPool", images, ksize, strides, padding)
    }

    /// Returns the mean of each window; the parameters are those of [`Scope::max_pool`].
    pub fn avg_pool(&self, images: Output, ksize: [i64; 2], strides: [i64; 2], padding: &str) -> Output {
        self.pool("AvgPool", images, ksize, strides, padding)
    }

    fn pool(&self, op: &str, images: Output, ksize: [i64; 2], strides: [i64; 2], padding: &str) -> Output {
        let of_images = |[rows, columns]: [i64; 2]| vec![1, rows, columns, 1];
        self.op(op)
            .input(images)
            .attr("ksize", of_images(ksize))
            .attr("strides", of_images(strides))
            .attr("padding", padding)
            .output()
    }
}
