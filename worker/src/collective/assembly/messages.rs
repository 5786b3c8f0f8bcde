//! The messages of assemblies: CompleteGroup with a header field of this implementation, in the request and in the answer.

use super::super::member::{SESSION_KEY, TIMEOUT_KEY};
use super::AssemblyRequest;
use device::collective::AssemblyPurpose;
use proto::{Status, pb};
use std::str::FromStr;
use std::time::{Duration, Instant};
use tonic::metadata::{MetadataMap, MetadataValue};

/// The header field of CompleteGroup by which a worker calls its job's assembly, and gets the answer. The value of a
/// request consists of the words `join WORKER EPOCH LEAST MOST HAS_VALUES`, `watch WORKER EPOCH KNOWN` or `finish
/// WORKER EPOCH STEP`, the value of an answer consists of numbers.
const ASSEMBLY_KEY: &str = "anabranch-assembly";

impl AssemblyRequest {
    /// Returns the call that carries the request.
    pub(in super::super) fn to_call(&self) -> tonic::Request<pb::CompleteGroupRequest> {
        let message =
            pb::CompleteGroupRequest { group_key: self.job_key, group_size: 1, ..Default::default() };
        let mut call = tonic::Request::new(message);
        let header = call.metadata_mut();
        let patience = u64::try_from(self.patience.as_millis()).unwrap_or(u64::MAX);
        header.insert(TIMEOUT_KEY, patience.into());
        let (worker, epoch) = (self.worker, self.epoch);
        insert(header, SESSION_KEY, &self.session);
        let words = match self.purpose {
            AssemblyPurpose::Join { least, most, has_values } => {
                format!("join {worker} {epoch} {least} {most} {has_values}")
            }
            AssemblyPurpose::Watch { known } => format!("watch {worker} {epoch} {known}"),
            AssemblyPurpose::Finish { step } => format!("finish {worker} {epoch} {step}"),
        };
        insert(header, ASSEMBLY_KEY, &words);
        call
    }
}

/// Returns the request to an assembly in a call of CompleteGroup; `None` if the call is that of a member of a group.
///
/// # Errors
/// `InvalidArgument` for a malformed field.
pub(crate) fn request_of(
    call: &tonic::Request<pb::CompleteGroupRequest>,
) -> Result<Option<AssemblyRequest>, Status> {
    let Some(words) = text(call.metadata(), ASSEMBLY_KEY) else { return Ok(None) };
    let mut words = words.split(' ');
    let kind = words.next().unwrap_or_default();
    let (worker, epoch) = (next(&mut words)?, next(&mut words)?);
    let purpose = match kind {
        "join" => AssemblyPurpose::Join {
            least: next(&mut words)?,
            most: next(&mut words)?,
            has_values: next(&mut words)?,
        },
        "watch" => AssemblyPurpose::Watch { known: next(&mut words)? },
        "finish" => AssemblyPurpose::Finish { step: next(&mut words)? },
        _ => return Err(Status::invalid(format!("{ASSEMBLY_KEY} begins with {kind:?}"))),
    };
    let patience = text(call.metadata(), TIMEOUT_KEY).and_then(|patience| patience.parse().ok());
    let patience = Duration::from_millis(patience.unwrap_or_default());
    if Instant::now().checked_add(patience).is_none() {
        return Err(Status::invalid(format!("{TIMEOUT_KEY} is {patience:?}")));
    }
    let session = text(call.metadata(), SESSION_KEY).unwrap_or_default().into();
    Ok(Some(AssemblyRequest { session, job_key: call.get_ref().group_key, worker, epoch, purpose, patience }))
}

/// Returns the response with the numbers of an answer.
pub(crate) fn response_of(answer: &[i64]) -> tonic::Response<pb::CompleteGroupResponse> {
    let mut response = tonic::Response::new(pb::CompleteGroupResponse::default());
    let numbers: Vec<String> = answer.iter().map(i64::to_string).collect();
    insert(response.metadata_mut(), ASSEMBLY_KEY, &numbers.join(" "));
    response
}

/// Returns the numbers of an answer.
///
/// # Errors
/// `Internal` for a malformed field; `Unimplemented` without one.
pub(in super::super) fn answer_of(
    response: &tonic::Response<pb::CompleteGroupResponse>,
) -> Result<Vec<i64>, Status> {
    let numbers = text(response.metadata(), ASSEMBLY_KEY).ok_or_else(|| {
        let text = "the leader of collectives has no assemblies; give all servers the same version";
        Status::new(graph::Code::Unimplemented, text)
    })?;
    let malformed = |_| Status::new(graph::Code::Internal, format!("an assembly answered {numbers:?}"));
    numbers.split_ascii_whitespace().map(str::parse).collect::<Result<_, _>>().map_err(malformed)
}

fn insert(header: &mut MetadataMap, key: &'static str, text: &str) {
    if let Ok(value) = MetadataValue::try_from(text) {
        header.insert(key, value);
    }
}

fn text<'a>(header: &'a MetadataMap, key: &str) -> Option<&'a str> {
    header.get(key).and_then(|value| value.to_str().ok())
}

/// Returns the next word of a request as a value.
fn next<'a, T: FromStr>(words: &mut impl Iterator<Item = &'a str>) -> Result<T, Status> {
    let word = words.next().unwrap_or_default();
    word.parse().map_err(|_| Status::invalid(format!("{ASSEMBLY_KEY} has the word {word:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(purpose: AssemblyPurpose) -> AssemblyRequest {
        let patience = Duration::from_millis(5250);
        AssemblyRequest { session: "s".into(), job_key: -7, worker: 3, epoch: 1 << 40, purpose, patience }
    }

    #[test]
    fn requests_and_answers_are_read_as_they_were_written() -> Result<(), Status> {
        let join = AssemblyPurpose::Join { least: 2, most: 4, has_values: true };
        for purpose in [join, AssemblyPurpose::Watch { known: 1 }, AssemblyPurpose::Finish { step: 40 }] {
            let request = request(purpose);
            assert_eq!(request_of(&request.to_call())?, Some(request));
        }
        let of_member = tonic::Request::new(pb::CompleteGroupRequest::default());
        assert_eq!(request_of(&of_member)?, None);
        assert_eq!(answer_of(&response_of(&[5, 0, 2]))?, [5, 0, 2]);
        assert!(answer_of(&response_of(&[]))?.is_empty());
        Ok(())
    }

    #[test]
    fn malformed_requests_and_answers_are_refused() {
        for words in ["leave 1 2", "join 1 2 3", "watch -1 2 3", "watch 1 2 x", "finish 1 2"] {
            let mut call = tonic::Request::new(pb::CompleteGroupRequest::default());
            insert(call.metadata_mut(), ASSEMBLY_KEY, words);
            assert!(request_of(&call).is_err(), "{words}");
        }
        let plain = tonic::Response::new(pb::CompleteGroupResponse::default());
        assert!(answer_of(&plain).is_err_and(|status| status.code == graph::Code::Unimplemented));
    }
}
