//! The place of a collective in a bucket. The pass [`assign_buckets`](crate::passes::assign_buckets) writes it into the
//! attributes of the node; the worker on which the node runs reads it.

use crate::attr::{AttrList, AttrValue};
use crate::node::Node;

/// The place of a collective's node in its bucket: a set of collectives of one device that are carried out by one
/// exchange.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketPlace {
    /// The hash of the instance keys of the bucket's nodes, in the order of the nodes. The members of a group exchange
    /// a bucket as a whole if their buckets have equal digests.
    pub digest: i64,
    /// The index of the node in the bucket, less than `count`.
    pub index: usize,
    /// The number of nodes in the bucket, at least 2.
    pub count: usize,
}

/// The name of the attribute that holds the place; TensorFlow's servers ignore attributes whose names begin with an
/// underscore.
const BUCKET: &str = "_bucket";

impl BucketPlace {
    /// Reads the place from a node's attributes; `None` if the node is in no bucket.
    pub fn of(node: &Node) -> Option<BucketPlace> {
        let Some(AttrValue::List(AttrList::Int(values))) = node.attrs.get(BUCKET) else { return None };
        let &[digest, index, count] = values.as_slice() else { return None };
        let (index, count) = (usize::try_from(index).ok()?, usize::try_from(count).ok()?);
        (index < count).then_some(BucketPlace { digest, index, count })
    }

    /// Writes the place into a node's attributes.
    pub fn note(&self, node: &mut Node) {
        node.attrs.set(BUCKET, vec![self.digest, self.index as i64, self.count as i64]);
    }

    /// Removes the place from a node's attributes. Returns whether the node was in a bucket.
    pub fn remove(node: &mut Node) -> bool {
        let was_in_bucket = BucketPlace::of(node).is_some();
        node.attrs.remove(BUCKET);
        was_in_bucket
    }
}
