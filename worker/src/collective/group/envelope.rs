//! The messages between the members of a group.

use graph::Tensor;
use proto::convert::tensor_to_proto;
use proto::pb;

/// Largest number of bytes of a tensor that is part of its message; a larger tensor is sent after its message, and can
/// be passed in shared memory.
const MAX_WITHIN: usize = 8 << 10;

/// A message from one member to another. Messages between two members are numbered, and handled in that order.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Envelope {
    #[prost(enumeration = "Kind", tag = "1")]
    pub(super) kind: i32,
    /// The number of the call; for a tensor outside collectives, the tensor's number among those from the sender to the
    /// receiver.
    #[prost(uint64, tag = "2")]
    pub(super) number: u64,
    /// The sender's description of the call, such as `all_reduce(sum) of float [2,3]`; for a failure, its message.
    #[prost(string, tag = "3")]
    pub(super) text: String,
    /// The phase of the call's schedule, as text.
    #[prost(string, tag = "4")]
    pub(super) part: String,
    #[prost(message, optional, tag = "5")]
    pub(super) tensor: Option<pb::TensorProto>,
    /// True if the tensor is sent after this message.
    #[prost(bool, tag = "6")]
    pub(super) is_followed: bool,
    /// The error code of a failure.
    #[prost(int32, tag = "7")]
    pub(super) code: i32,
}

/// The kind of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
pub(super) enum Kind {
    Unknown = 0,
    /// Elements of a call.
    Elements = 1,
    /// A tensor outside collectives.
    Direct = 2,
    /// The sender waits for the receiver in the call with this number and description.
    Probe = 3,
    /// The call has failed on the sender.
    Failure = 4,
    /// The sender leaves the group, and sends no further messages except acknowledgements.
    Leaving = 5,
    /// The sender has received all messages of the leaving receiver.
    Acknowledged = 6,
    /// The sender's program has received tensors outside collectives: `number` bytes since the group began, as the
    /// tensors' weights count them.
    Taken = 7,
}

impl Envelope {
    pub(super) fn new(kind: Kind, number: u64) -> Envelope {
        Envelope { kind: kind.into(), number, ..Default::default() }
    }

    /// Adds a tensor to the message. Returns the message, and the tensor if it must be sent after the message.
    pub(super) fn with_tensor(self, tensor: Tensor) -> (Envelope, Option<Tensor>) {
        match tensor.num_bytes() <= MAX_WITHIN {
            true => (Envelope { tensor: Some(tensor_to_proto(&tensor)), ..self }, None),
            false => (Envelope { is_followed: true, ..self }, Some(tensor)),
        }
    }
}
