//! The requests of members, and the answer to a member of a complete group.

use graph::{DeviceAttributes, Shape};
use std::sync::Arc;

/// A device's request to join a group.
#[derive(Clone, Debug)]
pub(crate) struct Join {
    /// The handle of the member's own session.
    pub(crate) session: Arc<str>,
    pub(crate) group_key: i32,
    pub(crate) group_size: usize,
    pub(crate) device: DeviceAttributes,
    /// The member's rank in the group of a communicator; `None` in a group whose members are ranked by their names.
    pub(crate) rank: Option<usize>,
    /// The id of the member's step; 0 if it is unknown.
    pub(crate) step_id: i64,
}

/// The key of a group, and whether it is the group of a communicator: each kind has keys of its own.
pub(crate) type GroupKey = (i32, bool);

/// The members of a complete group in the order of their ranks: the ranks that they request in the group of a
/// communicator, else the order of their full names.
pub(crate) type Members = Arc<[DeviceAttributes]>;

/// The answer to a member that joins: the complete group.
#[derive(Clone, Debug)]
pub(crate) struct Met {
    pub(crate) members: Members,
    /// True if the members belong to several sessions.
    pub(crate) is_shared: bool,
}

/// The properties of an instance that must be equal on all members.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Terms {
    /// The number by which TensorFlow's protocol denotes the operation.
    pub(crate) kind: i32,
    /// The number by which TensorFlow's protocol denotes the dtype.
    pub(crate) dtype: i32,
    /// The shape of the members' outputs for a gather, of their inputs otherwise.
    pub(crate) shape: Option<Shape>,
    /// The functions of a reduction, such as `Add,Div`, and the assignment of a communicator's members to subgroups;
    /// empty if they are unknown.
    pub(crate) functions: String,
}

/// The answer to a member's request to agree on an instance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreement {
    /// The rank of a broadcast's source.
    pub(crate) source: Option<usize>,
    /// True if the instance is in a bucket of the same digest on all members.
    pub(crate) is_bucketed: bool,
}

/// A member's request to agree on an instance.
#[derive(Clone, Debug)]
pub(crate) struct Agree {
    pub(crate) group_key: i32,
    pub(crate) is_communicator: bool,
    pub(crate) instance_key: i32,
    pub(crate) device: String,
    /// The name of the member's node, as error messages name it.
    pub(crate) node: String,
    pub(crate) terms: Terms,
    pub(crate) is_source: bool,
    /// The id of the member's step; 0 if it is unknown.
    pub(crate) step_id: i64,
    /// Set if the members repeat their agreement on an instance: a number that identifies the iteration within the step
    /// and is the same on all members.
    pub(crate) renewal: Option<u64>,
    /// The digest of the bucket in which the member has the instance.
    pub(crate) bucket: Option<i64>,
}

/// The kind of a broadcast in TensorFlow's protocol.
pub(crate) const BROADCAST: i32 = 1;

impl Join {
    pub(crate) fn key(&self) -> GroupKey {
        (self.group_key, self.rank.is_some())
    }
}
