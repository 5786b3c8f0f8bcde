//! Builders of gathering and scattering by index.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Returns the slices of `params` along an axis at `indices`.
    pub fn gather(&self, params: Output, indices: Output, axis: i32) -> Output {
        let axis = self.constant(axis);
        self.op("GatherV2").input(params).input(indices).input(axis).output()
    }

    /// Returns the elements or slices of `params` at the index vectors along the last axis of `indices`.
    pub fn gather_nd(&self, params: Output, indices: Output) -> Output {
        self.op("GatherNd").input(params).input(indices).output()
    }

    /// Returns zeros of this shape, with `updates` added at `indices`.
    pub fn scatter_nd(&self, indices: Output, updates: Output, shape: Output) -> Output {
        self.op("ScatterNd").input(indices).input(updates).input(shape).output()
    }
}
