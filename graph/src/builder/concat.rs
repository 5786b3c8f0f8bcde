//! Builders of concatenation and splits.

use super::Scope;
use crate::graph::Output;

impl Scope {
    /// Concatenates tensors along an existing axis; negative axes count from the back.
    pub fn concat(&self, values: &[Output], axis: i32) -> Output {
        match values {
            [one] => *one,
            _ => self.concat_along(values, self.constant(axis)),
        }
    }

    /// Like [`Scope::concat`], for an axis that is an integer scalar in the graph.
    pub fn concat_along(&self, values: &[Output], axis: Output) -> Output {
        match values {
            [one] => *one,
            _ => self.op("ConcatV2").input(values).input(axis).output(),
        }
    }

    /// Stacks tensors of the same shape along a new axis.
    pub fn pack(&self, values: &[Output], axis: i64) -> Output {
        self.op("Pack").input(values).attr("axis", axis).output()
    }

    /// Returns the `num` slices of `value` along an axis; the slices do not have that axis.
    pub fn unpack(&self, value: Output, num: usize, axis: i64) -> Vec<Output> {
        self.op("Unpack").input(value).attr("num", num as i64).attr("axis", axis).outputs()
    }

    /// Splits an axis into parts of equal size.
    pub fn split(&self, value: Output, num: usize, axis: i32) -> Vec<Output> {
        let axis = self.constant(axis);
        self.op("Split").input(axis).input(value).attr("num_split", num as i64).outputs()
    }

    /// Splits an axis into parts of these sizes; one of them may be -1, which means the remaining elements.
    pub fn split_sizes(&self, value: Output, sizes: &[i64], axis: i32) -> Vec<Output> {
        let (num, sizes, axis) = (sizes.len(), self.constant_vector(sizes), self.constant(axis));
        let call = self.op("SplitV").input(value).input(sizes).input(axis);
        call.attr("num_split", num as i64).outputs()
    }
}
