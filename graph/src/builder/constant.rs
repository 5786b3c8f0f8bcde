//! Builders of constants, placeholders and generated values.

use super::Scope;
use crate::dtype::{DType, Element};
use crate::error::Error;
use crate::graph::Output;
use crate::shape::{PartialShape, Shape};
use crate::tensor::Tensor;

impl Scope {
    /// Adds a constant: a scalar, an array, an array of arrays, a string, or any tensor.
    pub fn constant<V>(&self, value: V) -> Output
    where
        V: TryInto<Tensor>,
        V::Error: Into<Error>,
    {
        match value.try_into() {
            Ok(value) => self.op("Const").attr("dtype", value.dtype()).attr("value", value).output(),
            Err(error) => self.failed(error.into()),
        }
    }

    /// Adds a constant vector.
    pub fn constant_vector<T: Element>(&self, values: &[T]) -> Output {
        match Tensor::vector(values) {
            Ok(value) => self.constant(value),
            Err(error) => self.failed(error),
        }
    }

    /// Adds a constant with a given name.
    pub fn named_constant(&self, name: &str, value: impl Into<Tensor>) -> Output {
        let value = value.into();
        self.op("Const").name(name).attr("dtype", value.dtype()).attr("value", value).output()
    }

    /// Adds a placeholder, which must be fed in each step.
    pub fn placeholder(&self, name: &str, dtype: DType, shape: impl Into<PartialShape>) -> Output {
        self.op("Placeholder").name(name).attr("dtype", dtype).attr("shape", shape.into()).output()
    }

    /// Adds a placeholder that has the value `default` unless it is fed.
    pub fn placeholder_with_default(
        &self,
        name: &str,
        default: Output,
        shape: impl Into<PartialShape>,
    ) -> Output {
        self.op("PlaceholderWithDefault").name(name).input(default).attr("shape", shape.into()).output()
    }

    /// Adds a constant of zeros.
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Output {
        match Shape::new(shape).and_then(|shape| Tensor::zeros(dtype, shape)) {
            Ok(value) => self.constant(value),
            Err(error) => self.failed(error),
        }
    }

    /// Returns zeros (or empty strings) with the shape and type of `x`.
    pub fn zeros_like(&self, x: Output) -> Output {
        self.op("ZerosLike").input(x).output()
    }

    /// Returns ones with the shape and type of `x`.
    pub fn ones_like(&self, x: Output) -> Output {
        self.op("OnesLike").input(x).output()
    }

    /// Returns a tensor with the shape in the vector `dims`, in which every element is the scalar `value`.
    pub fn fill(&self, dims: Output, value: Output) -> Output {
        self.op("Fill").input(dims).input(value).output()
    }

    /// Returns the values from `start` in steps of `delta`, excluding `limit`; all three are scalars of the same
    /// type.
    pub fn range(&self, start: Output, limit: Output, delta: Output) -> Output {
        self.op("Range").input(start).input(limit).input(delta).output()
    }

    /// Returns `num` evenly spaced values from `start` to `stop`, inclusive.
    pub fn linspace(&self, start: Output, stop: Output, num: Output) -> Output {
        self.op("LinSpace").input(start).input(stop).input(num).output()
    }

    /// Adds an axis of size `depth` at `axis` (last if -1), with `on` at the positions that `indices` holds and `off`
    /// elsewhere.
    pub fn one_hot(&self, indices: Output, depth: i32, on: Output, off: Output, axis: i64) -> Output {
        let depth = self.constant(depth);
        self.op("OneHot").input(indices).input(depth).input(on).input(off).attr("axis", axis).output()
    }

    /// Returns the value of an output, if it is a constant or follows from known shapes.
    pub fn value(&self, output: Output) -> Option<Tensor> {
        self.read(|graph, shapes| shapes.value(graph, output)).flatten()
    }

    /// Records the error and returns an invalid output, in place of the output of the node that could not be added.
    pub(crate) fn failed(&self, error: Error) -> Output {
        self.fail(error);
        Output::new(crate::graph::NodeId::new(super::MISSING_NODE as usize), 0)
    }
}
