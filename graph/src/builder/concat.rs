//! Builders of joins and splits.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Joins tensors along an axis they have; negative axes count from the back.
    pub fn concat(&self, values: &[Output], axis: i32) -> Output {
        match values {
            [one] => *one,
            _ => self.concat_along(values, self.constant(axis)),
        }
    }

    /// As [`Scope::concat`], the axis an integer scalar in the graph.
    pub fn concat_along(&self, values: &[Output], axis: Output) -> Output {
        match values {
            [one] => *one,
            _ => self.op("ConcatV2").input(values).input(axis).output(),
        }
    }

    /// Joins tensors of one shape along a new axis.
    pub fn pack(&self, values: &[Output], axis: i64) -> Output {
        self.op("Pack").input(values).attr("axis", axis).output()
    }

    /// The slices along an axis, which is dropped.
    pub fn unpack(&self, value: Output, num: usize, axis: i64) -> Vec<Output> {
        self.op("Unpack").input(value).attr("num", num as i64).attr("axis", axis).outputs()
    }

    /// Cuts an axis into parts of equal size.
    pub fn split(&self, value: Output, num: usize, axis: i32) -> Vec<Output> {
        let axis = self.constant(axis);
        self.op("Split").input(axis).input(value).attr("num_split", num as i64).outputs()
    }

    /// Cuts an axis into parts of these sizes, of which one may be -1: whatever is left.
    pub fn split_sizes(&self, value: Output, sizes: &[i64], axis: i32) -> Vec<Output> {
        let (num, sizes, axis) = (sizes.len(), self.constant_vector(sizes), self.constant(axis));
        let call = self.op("SplitV").input(value).input(sizes).input(axis);
        call.attr("num_split", num as i64).outputs()
    }
}
