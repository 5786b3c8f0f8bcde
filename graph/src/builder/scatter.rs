//! Builders of updates of rows or slices of a variable or a tensor.

use super::Scope;
use crate::graph::{NodeId, Output};

macro_rules! scatter {
    ($($(#[$doc:meta])* $name:ident = $op:literal, $resource:ident = $resource_op:literal;)*) => {
        impl Scope {
            $(
                $(#[$doc])* pub fn $name(&self, variable: Output, indices: Output, updates: Output) -> Output {
                    self.op($op).input(variable).input(indices).input(updates).output()
                }

                $(#[$doc])*
                /// The variable is given by its resource handle.
                pub fn $resource(&self, handle: Output, indices: Output, updates: Output) -> NodeId {
                    self.op($resource_op).input(handle).input(indices).input(updates).node()
                }
            )*
        }
    };
}

scatter! {
    /// Adds `updates` to the rows at `indices`; duplicate indices add up.
    scatter_add = "ScatterAdd", resource_scatter_add = "ResourceScatterAdd";
    /// Subtracts `updates` from the rows at `indices`.
    scatter_sub = "ScatterSub", resource_scatter_sub = "ResourceScatterSub";
    /// Multiplies the rows at `indices` by `updates`.
    scatter_mul = "ScatterMul", resource_scatter_mul = "ResourceScatterMul";
    /// Divides the rows at `indices` by `updates`.
    scatter_div = "ScatterDiv", resource_scatter_div = "ResourceScatterDiv";
    /// Sets the rows at `indices` to the element-wise minimum with `updates`.
    scatter_min = "ScatterMin", resource_scatter_min = "ResourceScatterMin";
    /// Sets the rows at `indices` to the element-wise maximum with `updates`.
    scatter_max = "ScatterMax", resource_scatter_max = "ResourceScatterMax";
    /// Replaces the rows at `indices` by `updates`; for duplicate indices the last update wins.
    scatter_update = "ScatterUpdate", resource_scatter_update = "ResourceScatterUpdate";
    /// Replaces the slices at `indices` by `updates`; the last axis of `indices` indexes the variable's first axes.
    scatter_nd_update = "ScatterNdUpdate", resource_scatter_nd_update = "ResourceScatterNdUpdate";
    /// Adds `updates` to the slices at `indices`.
    scatter_nd_add = "ScatterNdAdd", resource_scatter_nd_add = "ResourceScatterNdAdd";
    /// Subtracts `updates` from the slices at `indices`.
    scatter_nd_sub = "ScatterNdSub", resource_scatter_nd_sub = "ResourceScatterNdSub";
    /// Sets the slices at `indices` to the element-wise maximum with `updates`.
    scatter_nd_max = "ScatterNdMax", resource_scatter_nd_max = "ResourceScatterNdMax";
    /// Sets the slices at `indices` to the element-wise minimum with `updates`.
    scatter_nd_min = "ScatterNdMin", resource_scatter_nd_min = "ResourceScatterNdMin";
}

impl Scope {
    /// Returns a copy of `tensor` in which `updates` replaces the slices at `indices`; the last axis of `indices`
    /// indexes the first axes of `tensor`.
    pub fn tensor_scatter_update(&self, tensor: Output, indices: Output, updates: Output) -> Output {
        self.op("TensorScatterUpdate").input(tensor).input(indices).input(updates).output()
    }

    /// Returns the tensor with `updates` added to the slices at `indices`.
    pub fn tensor_scatter_add(&self, tensor: Output, indices: Output, updates: Output) -> Output {
        self.op("TensorScatterAdd").input(tensor).input(indices).input(updates).output()
    }
}
