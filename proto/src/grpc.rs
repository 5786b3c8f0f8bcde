//! Limits of gRPC messages, and the metadata that carries the payloads of an error (derived, restarted) if the body of
//! a response holds only the error's code and text.

use crate::pb::distributed_runtime::GrpcPayloadContainer;
use crate::status::{DERIVED_STATUS, Status, WORKER_POSSIBLY_RESTARTED};
use graph::Code;
use prost::Message;
use tonic::metadata::{BinaryMetadataValue, MetadataMap};

/// The metadata key of the payloads of an error whose code and text are in a response's body. The value has the format
/// of the trailer `grpc-status-details-bin`. TensorFlow's response messages have no field for payloads.
const BODY_PAYLOADS: &str = "anabranch-status-bin";

/// Maximum message size in both directions, in bytes; the limit of the protobuf format.
pub const MAX_MESSAGE_SIZE: usize = i32::MAX as usize;

/// Bytes of the gRPC prefix of a message: the compression flag and the length.
pub const PREFIX: usize = 5;

/// Returns the message if it is within the size limit.
///
/// # Errors
/// The errors of [`checked_len`].
pub fn sized<M: Message>(message: M) -> Result<M, Status> {
    checked_len(&message)?;
    Ok(message)
}

/// Returns the length of a message in bytes.
///
/// # Errors
/// `Internal`, with TensorFlow's error text, if the length exceeds the limit of the protobuf format.
pub fn checked_len(message: &impl Message) -> Result<usize, Status> {
    match message.encoded_len() {
        len @ ..=MAX_MESSAGE_SIZE => Ok(len),
        _ => Err(Status::new(Code::Internal, "Protobuf is too large to be serialized")),
    }
}

impl Status {
    /// Writes the flags `derived` and `restarted` into metadata, for [`Status::read_metadata`].
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

    /// Returns a failure, received as code and text in a response's body, with its flags, read from the response's
    /// metadata. Without flags, a cancellation counts as derived.
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
    fn flags_round_trip_through_metadata() {
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
