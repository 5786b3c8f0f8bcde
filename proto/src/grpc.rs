//! What gRPC needs to know beside the messages: their largest size, and where the structure of a failure goes
//! that travels in a response's body.

use crate::pb::distributed_runtime::GrpcPayloadContainer;
use crate::status::{DERIVED_STATUS, Status, WORKER_POSSIBLY_RESTARTED};
use graph::Code;
use prost::Message;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};

/// Metadata with the payloads of a failure in a body, in the form of the trailer `grpc-status-details-bin`:
/// the messages have no place for them.
const BODY_PAYLOADS: &str = "anabranch-status-bin";

/// Largest message either way, bytes: the format's own limit.
pub const MAX_MESSAGE_SIZE: usize = i32::MAX as usize;

/// Bytes of gRPC's own head of a message: whether it is compressed, and its length.
pub const PREFIX: usize = 5;

/// A message with tensors, if it can be one.
///
/// # Errors
/// As [`checked_len`].
pub fn sized<M: Message>(message: M) -> Result<M, Status> {
    checked_len(&message)?;
    Ok(message)
}

/// The length of a message, bytes.
///
/// # Errors
/// `Internal`, in the peer's words, beyond the format's limit.
pub fn checked_len(message: &impl Message) -> Result<usize, Status> {
    match message.encoded_len() {
        len @ ..=MAX_MESSAGE_SIZE => Ok(len),
        _ => Err(Status::new(Code::Internal, "Protobuf is too large to be serialized")),
    }
}

impl Status {
    /// Leaves what [`Status::read_metadata`] reads, when code and text travel in a body.
    pub fn write_metadata(&self, metadata: &mut MetadataMap) {
        let mut container = GrpcPayloadContainer::default();
        for (url, present) in [(DERIVED_STATUS, self.derived), (WORKER_POSSIBLY_RESTARTED, self.restarted)] {
            if present {
                container.payloads.insert(url.to_owned(), Default::default());
            }
        }
        if !container.payloads.is_empty() {
            metadata.insert_bin(BODY_PAYLOADS, BinaryMetadataValue::from_bytes(&container.encode_to_vec()));
        }
    }

    /// Adds what came beside a failure in a body. Without anything, a cancellation is a consequence.
    pub fn read_metadata(mut self, metadata: &MetadataMap) -> Status {
        match metadata.get_bin(BODY_PAYLOADS).and_then(|value| value.to_bytes().ok()) {
            Some(bytes) => {
                let payloads = GrpcPayloadContainer::decode(bytes).unwrap_or_default().payloads;
                self.derived |= payloads.contains_key(DERIVED_STATUS);
                self.restarted |= payloads.contains_key(WORKER_POSSIBLY_RESTARTED);
            }
            None => self.derived |= self.code == Code::Cancelled,
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structure_crosses_beside_a_body() {
        for status in [
            Status::invalid("x"),
            Status::new(Code::Aborted, "gone").restarted(),
            Status::new(Code::Internal, "later").derived(),
            Status::new(Code::Cancelled, "both").derived().restarted(),
        ] {
            let mut metadata = MetadataMap::new();
            status.write_metadata(&mut metadata);
            let plain = Status::new(status.code, status.message.clone());
            assert_eq!(plain.read_metadata(&metadata), status);
        }
        assert!(Status::new(Code::Cancelled, "").read_metadata(&MetadataMap::new()).derived);
    }
}
