//! Builders of picking and placing by index.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// The slices of `params` along an axis that `indices` name.
    pub fn gather(&self, params: Output, indices: Output, axis: i32) -> Output {
        let axis = self.constant(axis);
        self.op("GatherV2").input(params).input(indices).input(axis).output()
    }

    /// The elements or slices of `params` that the vectors along the last axis of `indices` name.
    pub fn gather_nd(&self, params: Output, indices: Output) -> Output {
        self.op("GatherNd").input(params).input(indices).output()
    }

    /// Zeros of this shape, with `updates` added in the places that `indices` name.
    pub fn scatter_nd(&self, indices: Output, updates: Output, shape: Output) -> Output {
        self.op("ScatterNd").input(indices).input(updates).input(shape).output()
    }
}
