//! The ids of steps, and the end of a sequence of ids that several masters share.

use crate::status::Status;
use graph::Code;
use std::sync::Arc;
use tonic::metadata::{Binary, MetadataValue};

/// The mask of the bits of a step id: 57, as in step ids of TensorFlow's masters.
const MASK: u64 = (1 << 57) - 1;

/// Largest length of a failure's message in the header of a call, characters.
const MAX_MESSAGE: usize = 2 << 10;

/// Returns a random step id.
pub fn random_step_id() -> i64 {
    (rand::random::<u64>() & MASK) as i64
}

/// Returns the id of the step after a step in its sequence.
pub fn next_step_id(step_id: i64) -> i64 {
    (step_id.wrapping_add(1) as u64 & MASK) as i64
}

/// The end of a sequence of step ids: a master's step has failed, or its session ends.
#[derive(Clone, Debug, PartialEq)]
pub struct SequenceEnd {
    /// The handle of the master's session.
    pub session: Arc<str>,
    pub graph_key: i64,
    /// The id of the step that has failed, or of the step that the session would have run next.
    pub step_id: i64,
    /// The failure of the step; `None` if the session ends.
    pub failure: Option<Status>,
}

impl SequenceEnd {
    /// Encodes the end as the value of a call's header field.
    pub fn to_header(&self) -> MetadataValue<Binary> {
        let SequenceEnd { session, graph_key, step_id, failure } = self;
        let (code, message) = failure.as_ref().map_or((0, ""), |f| (f.code.number(), f.message.as_str()));
        let message: String = message.chars().take(MAX_MESSAGE).collect();
        let text = format!("{graph_key} {step_id} {session} {code} {message}");
        MetadataValue::from_bytes(text.as_bytes())
    }

    /// Decodes the value of a call's header field; `None` if it is malformed.
    pub fn from_header(header: &MetadataValue<Binary>) -> Option<SequenceEnd> {
        let bytes = header.to_bytes().ok()?;
        let mut parts = std::str::from_utf8(&bytes).ok()?.splitn(5, ' ');
        let (graph_key, step_id) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let (session, code) = (parts.next()?.into(), parts.next()?.parse().ok()?);
        let failure = (code != 0).then(|| Status::new(Code::from_number(code), parts.next().unwrap_or("")));
        Some(SequenceEnd { session, graph_key, step_id, failure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_sequence_passes_through_a_header() {
        let failed = Status::new(Code::NotFound, "no such file: ü");
        for failure in [None, Some(failed)] {
            let end = SequenceEnd { session: "abc".into(), graph_key: -7, step_id: 9, failure };
            assert_eq!(SequenceEnd::from_header(&end.to_header()), Some(end));
        }
        assert_eq!(SequenceEnd::from_header(&MetadataValue::from_bytes(b"1 x")), None);
    }

    #[test]
    fn the_step_after_the_last_id_has_the_first() {
        assert_eq!(next_step_id(MASK as i64), 0);
        assert_eq!(next_step_id(4), 5);
    }
}
