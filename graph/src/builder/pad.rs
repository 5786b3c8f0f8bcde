//! Builders of padding.

use super::Scope;
use crate::graph::Output;
use crate::shape::Shape;
use crate::tensor::Tensor;

impl Scope {
    /// Pads `x` with zeros: `paddings[i]` holds the numbers of zeros before and after the elements of axis `i`.
    pub fn pad(&self, x: Output, paddings: &[[i64; 2]]) -> Output {
        let paddings = self.paddings(paddings);
        self.op("Pad").input(x).input(paddings).output()
    }

    /// Like [`Scope::pad`], with a scalar value instead of zeros.
    pub fn pad_with(&self, x: Output, paddings: &[[i64; 2]], value: Output) -> Output {
        let paddings = self.paddings(paddings);
        self.op("PadV2").input(x).input(paddings).input(value).output()
    }

    fn paddings(&self, paddings: &[[i64; 2]]) -> Output {
        let shape = Shape::new(&[paddings.len(), 2]);
        match shape.and_then(|shape| Tensor::from_slice(paddings.as_flattened(), shape)) {
            Ok(value) => self.constant(value),
            Err(error) => self.failed(error),
        }
    }
}
