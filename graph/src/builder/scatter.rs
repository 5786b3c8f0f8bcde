//! Builders of updates of some rows, or some slices, of a variable or a tensor.

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
                /// The variable is behind a handle.
                pub fn $resource(&self, handle: Output, indices: Output, updates: Output) -> NodeId {
                    self.op($resource_op).input(handle).input(indices).input(updates).node()
                }
            )*
        }
    };
}

scatter! {
    /// Adds `updates` to the rows at `indices`; an index that comes twice counts twice.
    scatter_add = "ScatterAdd", resource_scatter_add = "ResourceScatterAdd";
    /// Subtracts `updates` from the rows at `indices`.
    scatter_sub = "ScatterSub", resource_scatter_sub = "ResourceScatterSub";
    /// Multiplies the rows at `indices` by `updates`.
    scatter_mul = "ScatterMul", resource_scatter_mul = "ResourceScatterMul";
    /// Divides the rows at `indices` by `updates`.
    scatter_div = "ScatterDiv", resource_scatter_div = "ResourceScatterDiv";
    /// The smaller of the rows at `indices` and `updates`, element by element.
    scatter_min = "ScatterMin", resource_scatter_min = "ResourceScatterMin";
    /// The larger of the rows at `indices` and `updates`, element by element.
    scatter_max = "ScatterMax", resource_scatter_max = "ResourceScatterMax";
    /// Replaces the rows at `indices`; of an index that comes twice the last update stays.
    scatter_update = "ScatterUpdate", resource_scatter_update = "ResourceScatterUpdate";
    /// Replaces the slices at `indices`, whose last axis picks from the variable's first axes.
    scatter_nd_update = "ScatterNdUpdate", resource_scatter_nd_update = "ResourceScatterNdUpdate";
    /// Adds to the slices at `indices`.
    scatter_nd_add = "ScatterNdAdd", resource_scatter_nd_add = "ResourceScatterNdAdd";
    /// Subtracts from the slices at `indices`.
    scatter_nd_sub = "ScatterNdSub", resource_scatter_nd_sub = "ResourceScatterNdSub";
    /// The larger of the slices at `indices` and `updates`, element by element.
    scatter_nd_max = "ScatterNdMax", resource_scatter_nd_max = "ResourceScatterNdMax";
    /// The smaller of the slices at `indices` and `updates`, element by element.
    scatter_nd_min = "ScatterNdMin", resource_scatter_nd_min = "ResourceScatterNdMin";
}

impl Scope {
    /// A tensor with the slices at `indices`, whose last axis picks from its first axes, replaced.
    pub fn tensor_scatter_update(&self, tensor: Output, indices: Output, updates: Output) -> Output {
        self.op("TensorScatterUpdate").input(tensor).input(indices).input(updates).output()
    }

    /// A tensor with `updates` added to the slices at `indices`.
    pub fn tensor_scatter_add(&self, tensor: Output, indices: Output, updates: Output) -> Output {
        self.op("TensorScatterAdd").input(tensor).input(indices).input(updates).output()
    }
}
