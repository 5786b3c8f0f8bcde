//! Builders of ops that return shapes, or change the shape of a tensor.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;
use crate::shape::PartialShape;

impl Scope {
    /// Returns the shape as an `int32` vector; a constant if the shape is known.
    pub fn shape_of(&self, x: Output) -> Output {
        self.shape_of_as(x, DType::Int32)
    }

    /// Returns the shape as a vector of `int32` or `int64`; a constant if the shape is known.
    pub fn shape_of_as(&self, x: Output, dtype: DType) -> Output {
        if let Some(shape) = self.shape(x).as_shape()
            && let Some(value) = crate::infer::integers(dtype, shape.iter().map(|&d| d as i64))
        {
            return self.constant(value);
        }
        self.op("Shape").input(x).attr("out_type", dtype).output()
    }

    /// Returns the number of elements, as `int32`.
    pub fn size_of(&self, x: Output) -> Output {
        self.op("Size").input(x).output()
    }

    /// Returns the number of axes, as `int32`.
    pub fn rank_of(&self, x: Output) -> Output {
        self.op("Rank").input(x).output()
    }

    /// Returns the same elements in another shape; one size may be -1, which is derived from the number of elements.
    pub fn reshape(&self, x: Output, shape: &[i64]) -> Output {
        let narrow: Result<Vec<i32>, _> = shape.iter().map(|&d| i32::try_from(d)).collect();
        let shape = match narrow {
            Ok(narrow) => self.constant_vector(&narrow),
            Err(_) => self.constant_vector(shape),
        };
        self.op("Reshape").input(x).input(shape).output()
    }

    /// Adds an axis of size 1 before `axis`; negative axes count from the back of the result.
    pub fn expand_dims(&self, x: Output, axis: i32) -> Output {
        let axis = self.constant(axis);
        self.op("ExpandDims").input(x).input(axis).output()
    }

    /// Removes the axes `axes`, which must have size 1; if `axes` is empty, removes all axes of size 1.
    pub fn squeeze(&self, x: Output, axes: &[i64]) -> Output {
        self.op("Squeeze").input(x).attr("squeeze_dims", axes.to_vec()).output()
    }

    /// Broadcasts `x` to a shape.
    pub fn broadcast_to(&self, x: Output, shape: Output) -> Output {
        self.op("BroadcastTo").input(x).input(shape).output()
    }

    /// Returns `x`; the step fails if it does not have this shape.
    pub fn ensure_shape(&self, x: Output, shape: impl Into<PartialShape>) -> Output {
        self.op("EnsureShape").input(x).attr("shape", shape.into()).output()
    }
}
