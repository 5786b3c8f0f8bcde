//! Builders of slices.

use super::Scope;
use crate::graph::Output;

/// One index of a strided slice, like an index between the brackets of `x[...]` in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SliceIndex {
    /// One element; the indexed axis is removed from the result.
    At(i64),
    /// A range `(begin, end, step)`, excluding the end. Without a begin or an end, the range starts at the first
    /// element of the axis or includes the last one, in the direction of the step.
    Range(Option<i64>, Option<i64>, i64),
    /// A new axis of size 1.
    NewAxis,
    /// All axes that no other index of the slice covers.
    Ellipsis,
}

impl SliceIndex {
    /// All elements of an axis.
    pub const ALL: SliceIndex = SliceIndex::Range(None, None, 1);
}

impl Scope {
    /// Returns `size[i]` elements of each axis `i`, from `begin[i]`; size -1 means all remaining elements.
    pub fn slice(&self, x: Output, begin: &[i64], size: &[i64]) -> Output {
        let (begin, size) = (self.constant_vector(begin), self.constant_vector(size));
        self.op("Slice").input(x).input(begin).input(size).output()
    }

    /// Returns the elements that `picks` selects; the first entry of `picks` applies to the first axis.
    pub fn strided_slice(&self, x: Output, picks: &[SliceIndex]) -> Output {
        let mut masks = [0i64; 5];
        let (mut begin, mut end, mut strides) = (Vec::new(), Vec::new(), Vec::new());
        for (i, pick) in picks.iter().enumerate() {
            let bit = 1i64.checked_shl(i as u32).unwrap_or(0);
            let (from, to, step) = match *pick {
                SliceIndex::At(at) => {
                    masks[4] |= bit;
                    (at, at.wrapping_add(1), 1)
                }
                SliceIndex::Range(from, to, step) => {
                    masks[0] |= if from.is_none() { bit } else { 0 };
                    masks[1] |= if to.is_none() { bit } else { 0 };
                    (from.unwrap_or(0), to.unwrap_or(0), step)
                }
                SliceIndex::Ellipsis => {
                    masks[2] |= bit;
                    (0, 0, 1)
                }
                SliceIndex::NewAxis => {
                    masks[3] |= bit;
                    (0, 0, 1)
                }
            };
            begin.push(from);
            end.push(to);
            strides.push(step);
        }
        let narrow = |v: &[i64]| v.iter().map(|&i| i32::try_from(i).ok()).collect::<Option<Vec<_>>>();
        let (begin, end, strides) = match (narrow(&begin), narrow(&end), narrow(&strides)) {
            (Some(b), Some(e), Some(s)) => {
                (self.constant_vector(&b), self.constant_vector(&e), self.constant_vector(&s))
            }
            _ => (self.constant_vector(&begin), self.constant_vector(&end), self.constant_vector(&strides)),
        };
        let call = self.op("StridedSlice").input(x).input(begin).input(end).input(strides);
        let call = call.attr("begin_mask", masks[0]).attr("end_mask", masks[1]);
        let call = call.attr("ellipsis_mask", masks[2]).attr("new_axis_mask", masks[3]);
        call.attr("shrink_axis_mask", masks[4]).output()
    }
}
