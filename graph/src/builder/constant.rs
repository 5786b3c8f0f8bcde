//! Builders of sources of values.

use super::Scope;
use crate::dtype::{DType, Element};
use crate::error::Error;
use crate::graph::Output;
use crate::shape::{PartialShape, Shape};
use crate::tensor::Tensor;

impl Scope {
    /// A constant: a scalar, an array, an array of arrays, a string, or any tensor.
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

    /// A constant vector.
    pub fn constant_vector<T: Element>(&self, values: &[T]) -> Output {
        match Tensor::vector(values) {
            Ok(value) => self.constant(value),
            Err(error) => self.failed(error),
        }
    }

    /// A constant under a name.
    pub fn named_constant(&self, name: &str, value: impl Into<Tensor>) -> Output {
        let value = value.into();
        self.op("Const").name(name).attr("dtype", value.dtype()).attr("value", value).output()
    }

    /// A value that is fed in each step.
    pub fn placeholder(&self, name: &str, dtype: DType, shape: impl Into<PartialShape>) -> Output {
        self.op("Placeholder").name(name).attr("dtype", dtype).attr("shape", shape.into()).output()
    }

    /// `default`, unless something else is fed.
    pub fn placeholder_with_default(
        &self,
        name: &str,
        default: Output,
        shape: impl Into<PartialShape>,
    ) -> Output {
        self.op("PlaceholderWithDefault").name(name).input(default).attr("shape", shape.into()).output()
    }

    /// A constant of zeros.
    pub fn zeros(&self, dtype: DType, shape: &[usize]) -> Output {
        match Shape::new(shape).and_then(|shape| Tensor::zeros(dtype, shape)) {
            Ok(value) => self.constant(value),
            Err(error) => self.failed(error),
        }
    }

    /// Zeros, or empty strings, in the shape and type of `x`.
    pub fn zeros_like(&self, x: Output) -> Output {
        self.op("ZerosLike").input(x).output()
    }

    /// Ones in the shape and type of `x`.
    pub fn ones_like(&self, x: Output) -> Output {
        self.op("OnesLike").input(x).output()
    }

    /// A tensor of the sizes in the vector `dims`, every element the scalar `value`.
    pub fn fill(&self, dims: Output, value: Output) -> Output {
        self.op("Fill").input(dims).input(value).output()
    }

    /// From `start` in steps of `delta`, as long as `limit` is not reached: scalars of one type.
    pub fn range(&self, start: Output, limit: Output, delta: Output) -> Output {
        self.op("Range").input(start).input(limit).input(delta).output()
    }

    /// `num` values at equal distances, from `start` to `stop` inclusive.
    pub fn linspace(&self, start: Output, stop: Output, num: Output) -> Output {
        self.op("LinSpace").input(start).input(stop).input(num).output()
    }

    /// A new axis of size `depth`, the last for -1, with `on` where its index is the element of `indices`.
    pub fn one_hot(&self, indices: Output, depth: i32, on: Output, off: Output, axis: i64) -> Output {
        let depth = self.constant(depth);
        self.op("OneHot").input(indices).input(depth).input(on).input(off).attr("axis", axis).output()
    }

    /// The value of an output, where it is a constant, or follows from known shapes.
    pub fn value(&self, output: Output) -> Option<Tensor> {
        self.read(|graph, shapes| shapes.value(graph, output)).flatten()
    }

    /// Keeps the error and stands in for an output.
    pub(crate) fn failed(&self, error: Error) -> Output {
        self.fail(error);
        Output::new(crate::graph::NodeId::new(super::NOWHERE as usize), 0)
    }
}
