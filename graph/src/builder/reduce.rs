//! Builders of reductions. Negative axes count from the back.

use super::Scope;
use crate::dtype::DType;
use crate::graph::Output;
use crate::shape::Shape;
use crate::tensor::Tensor;

macro_rules! reductions {
    ($($(#[$doc:meta])* $name:ident = $op:literal;)*) => {
        impl Scope {
            $($(#[$doc])* pub fn $name(&self, x: Output, axes: &[i64], keep_dims: bool) -> Output {
                let axes = self.axes(axes);
                self.op($op).input(x).input(axes).attr("keep_dims", keep_dims).output()
            })*
        }
    };
}

reductions! {
    /// Returns the sum of `x` over `axes`.
    sum = "Sum";
    /// Returns the mean of `x` over `axes`.
    mean = "Mean";
    /// Returns the product of the elements of `x` over `axes`.
    prod = "Prod";
    /// Returns the largest element of `x` over `axes`.
    reduce_max = "Max";
    /// Returns the smallest element of `x` over `axes`.
    reduce_min = "Min";
    /// Returns the square root of the sum of the squares of `x` over `axes`.
    euclidean_norm = "EuclideanNorm";
    /// Returns whether all elements of the boolean tensor `x` over `axes` are true.
    all = "All";
    /// Returns whether any element of the boolean tensor `x` over `axes` is true.
    any = "Any";
}

impl Scope {
    /// Returns the index of the first largest element along `axis`, as `int64`.
    pub fn argmax(&self, x: Output, axis: i64) -> Output {
        let axis = self.axis(axis);
        self.op("ArgMax").input(x).input(axis).output()
    }

    /// Returns the index of the first smallest element along `axis`, as `int64`.
    pub fn argmin(&self, x: Output, axis: i64) -> Output {
        let axis = self.axis(axis);
        self.op("ArgMin").input(x).input(axis).output()
    }

    /// Returns the cumulative sums along `axis`.
    pub fn cumsum(&self, x: Output, axis: i64) -> Output {
        let axis = self.axis(axis);
        self.op("Cumsum").input(x).input(axis).output()
    }

    /// Returns the cumulative products along `axis`.
    pub fn cumprod(&self, x: Output, axis: i64) -> Output {
        let axis = self.axis(axis);
        self.op("Cumprod").input(x).input(axis).output()
    }

    fn axis(&self, axis: i64) -> Output {
        self.indices(&[axis], Shape::scalar())
    }

    fn axes(&self, axes: &[i64]) -> Output {
        match Shape::new(&[axes.len()]) {
            Ok(shape) => self.indices(axes, shape),
            Err(error) => {
                self.fail(error);
                self.axis(0)
            }
        }
    }

    /// Adds an integer constant: of type `int32`, or of type `int64` if a value does not fit `int32`.
    fn indices(&self, values: &[i64], shape: Shape) -> Output {
        let narrow: Option<Vec<i32>> = values.iter().map(|&v| v.try_into().ok()).collect();
        let (tensor, dtype) = match narrow {
            Some(narrow) => (Tensor::from_slice(&narrow, shape), DType::Int32),
            None => (Tensor::from_slice(values, shape), DType::Int64),
        };
        let tensor = tensor.unwrap_or_else(|error| {
            self.fail(error);
            Tensor::scalar(0i32)
        });
        self.op("Const").attr("value", tensor).attr("dtype", dtype).output()
    }
}
