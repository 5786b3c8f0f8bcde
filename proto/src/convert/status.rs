//! Conversions of failures to gRPC statuses. The flags `derived` and `restarted` are in the trailer
//! `grpc-status-details-bin`, whose bytes are a map of payloads.

use crate::pb::distributed_runtime::GrpcPayloadContainer;
use crate::status::{DERIVED_STATUS, Status, WORKER_POSSIBLY_RESTARTED};
use bytes::Bytes;
use graph::Code;
use prost::Message;

/// Maximum bytes of a gRPC message, because trailers are limited; longer messages are truncated.
const MAX_MESSAGE: usize = 3072;
/// Maximum bytes of a failure's text in a response body. TensorFlow's clients take hours to search longer
/// texts.
const MAX_BODY_MESSAGE: usize = 16_000;
const TRUNCATED: &str = " ... [truncated]";

/// Returns the code and the text of a failure, for the body of a response.
pub fn failure_in_body(status: Status) -> (i32, String) {
    (status.code.number(), cut(status.message, MAX_BODY_MESSAGE))
}

fn cut(mut message: String, most: usize) -> String {
    if message.len() > most {
        let end = (0..=most).rev().find(|&i| message.is_char_boundary(i)).unwrap_or(0);
        message.truncate(end);
        message.push_str(TRUNCATED);
    }
    message
}

impl From<Status> for tonic::Status {
    fn from(status: Status) -> tonic::Status {
        let message = cut(status.message, MAX_MESSAGE);
        let mut payloads = GrpcPayloadContainer::default();
        for (set, url) in [(status.derived, DERIVED_STATUS), (status.restarted, WORKER_POSSIBLY_RESTARTED)] {
            if set {
                payloads.payloads.insert(url.to_owned(), Vec::new());
            }
        }
        let details =
            if payloads.payloads.is_empty() { Bytes::new() } else { payloads.encode_to_vec().into() };
        tonic::Status::with_details(tonic::Code::from(status.code.number()), message, details)
    }
}

impl From<tonic::Status> for Status {
    /// Converts a gRPC status. A cancelled call counts as a consequence of the failure that cancelled it.
    /// Payloads that cannot be decoded are ignored.
    fn from(status: tonic::Status) -> Status {
        let code = Code::from_number(status.code() as i32);
        let payloads = GrpcPayloadContainer::decode(status.details()).unwrap_or_default().payloads;
        Status {
            derived: code == Code::Cancelled || payloads.contains_key(DERIVED_STATUS),
            restarted: payloads.contains_key(WORKER_POSSIBLY_RESTARTED),
            code,
            message: status.message().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_flags_round_trip() {
        for number in 1..=16 {
            for (derived, restarted) in [(false, false), (true, false), (false, true), (true, true)] {
                let code = Code::from_number(number);
                let sent = Status { code, message: "it ü broke".into(), derived, restarted };
                let received = Status::from(tonic::Status::from(sent.clone()));
                let expected = Status { derived: derived || code == Code::Cancelled, ..sent };
                assert_eq!(received, expected);
            }
        }
    }

    #[test]
    fn long_messages_are_truncated_at_characters() {
        let sent = tonic::Status::from(Status::invalid("x".repeat(3072)));
        assert_eq!(sent.message().len(), 3072);
        let sent = tonic::Status::from(Status::invalid(format!("x{}", "ü".repeat(3000))));
        assert_eq!(sent.message().len(), 3071 + TRUNCATED.len());
        assert!(sent.message().ends_with("ü ... [truncated]"));
        let (code, text) = failure_in_body(Status::invalid("x".repeat(MAX_BODY_MESSAGE + 1)));
        assert_eq!((code, text.len()), (3, MAX_BODY_MESSAGE + TRUNCATED.len()));
        assert_eq!(failure_in_body(Status::invalid("short")).1, "short");
    }

    #[test]
    fn details_are_the_payload_map_and_malformed_details_are_ignored() {
        let sent = tonic::Status::from(Status::new(Code::Aborted, "gone").restarted());
        let url = WORKER_POSSIBLY_RESTARTED;
        let mut expected = vec![0x0a, url.len() as u8 + 2, 0x0a, url.len() as u8];
        expected.extend_from_slice(url.as_bytes());
        assert_eq!(sent.details(), expected);
        let malformed = tonic::Status::with_details(tonic::Code::Internal, "m", Bytes::from_static(&[7, 7]));
        assert_eq!(Status::from(malformed), Status::new(Code::Internal, "m"));
    }
}
