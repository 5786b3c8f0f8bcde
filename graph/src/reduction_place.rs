//! The place of a reduction in the order in which its GPU starts reductions. The pass
//! [`place_reductions`](crate::passes::place_reductions) writes the place into the attributes of the node; the worker
//! on which the node runs reads it.

use crate::attr::{AttrList, AttrValue};
use crate::node::Node;

/// The place of a reduction in the order of its device, and in the order of its group on that device. A library such as
/// NCCL matches the calls of a communicator by their order, so all members must start their reductions in the same
/// order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReductionPlace {
    /// The hash of the instance keys of the group's reductions on the device, in order. Members whose digests are equal
    /// start the same reductions in the same order.
    pub digest: i64,
    /// The index of the reduction among those of its group on the device, less than `count`.
    pub index: usize,
    /// The number of reductions of the group on the device, at least 1.
    pub count: usize,
    /// The index of the reduction among those of all groups on the device.
    pub position: usize,
}

/// The name of the attribute that holds the place; TensorFlow's servers ignore attributes whose names begin with an
/// underscore.
const ORDER: &str = "_reduction_order";

impl ReductionPlace {
    /// Reads the place from a node's attributes; `None` if the node has none.
    pub fn of(node: &Node) -> Option<ReductionPlace> {
        let Some(AttrValue::List(AttrList::Int(values))) = node.attrs.get(ORDER) else { return None };
        let &[digest, index, count, position] = values.as_slice() else { return None };
        let (index, count) = (usize::try_from(index).ok()?, usize::try_from(count).ok()?);
        let position = usize::try_from(position).ok()?;
        (index < count).then_some(ReductionPlace { digest, index, count, position })
    }

    /// Writes the place into a node's attributes.
    pub fn note(&self, node: &mut Node) {
        let numbers = [self.index, self.count, self.position].map(|number| number as i64);
        node.attrs.set(ORDER, [&[self.digest], &numbers[..]].concat());
    }

    /// Removes the place from a node's attributes. Returns whether the node had one.
    pub fn remove(node: &mut Node) -> bool {
        let had_place = ReductionPlace::of(node).is_some();
        node.attrs.remove(ORDER);
        had_place
    }
}
