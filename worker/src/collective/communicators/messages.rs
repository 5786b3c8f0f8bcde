//! Conversions between a member's request to enter an epoch and CompleteGroup's messages. A leader of TensorFlow is not
//! called; a leader of an earlier version answers without the header.

use super::epochs::{Enter, Entered};
use graph::Code;
use proto::convert::device_from_proto;
use proto::{Status, pb};
use std::sync::Arc;
use tonic::metadata::{MetadataMap, MetadataValue};

/// The header field with the epoch after which a member enters the next one, and, in the answer, with the epoch that it
/// has entered.
const EPOCH_KEY: &str = "anabranch-epoch";

/// The header field with the name of the physical device behind a member's device.
const IDENTITY_KEY: &str = "anabranch-identity-bin";

/// The header fields with a key that the member has created, and with the key's epoch.
const OFFER_KEY: &str = "anabranch-key-bin";
const OFFER_EPOCH_KEY: &str = "anabranch-key-epoch";

/// The header field with the reason why the group cannot have a communicator, in a leader's answer.
const REFUSED_KEY: &str = "anabranch-refused-bin";

/// Writes the fields that CompleteGroup's message does not have into its header.
pub(crate) fn write_header(enter: &Enter, header: &mut MetadataMap) {
    header.insert(EPOCH_KEY, enter.after.into());
    header.insert_bin(IDENTITY_KEY, MetadataValue::from_bytes(enter.identity.as_bytes()));
    if let Some((epoch, key)) = &enter.offer {
        header.insert(OFFER_EPOCH_KEY, (*epoch).into());
        header.insert_bin(OFFER_KEY, MetadataValue::from_bytes(key));
    }
}

/// Returns the request to enter an epoch in a call of CompleteGroup; `None` for a request to join a group. The other
/// arguments are the member's session, whether the group belongs to a communicator, and the step id.
///
/// # Errors
/// `InvalidArgument` for a malformed request.
pub(crate) fn enter_of(
    call: &tonic::Request<pb::CompleteGroupRequest>,
    session: Arc<str>,
    has_rank: bool,
    step_id: i64,
) -> Result<Option<Enter>, Status> {
    let (header, message) = (call.metadata(), call.get_ref());
    let Some(after) = number(header, EPOCH_KEY)? else { return Ok(None) };
    let device = message.device_attributes.clone();
    let device = device.ok_or_else(|| Status::invalid("CompleteGroup has no device_attributes"))?;
    let size = usize::try_from(message.group_size).ok().filter(|&size| size > 0);
    let offer = match number(header, OFFER_EPOCH_KEY)? {
        Some(epoch) => Some((epoch, bytes(header, OFFER_KEY)?.unwrap_or_default())),
        None => None,
    };
    let identity = bytes(header, IDENTITY_KEY)?.unwrap_or_default();
    Ok(Some(Enter {
        session,
        group: (message.group_key, has_rank),
        size: size.ok_or_else(|| Status::invalid(format!("group_size is {}", message.group_size)))?,
        device: device_from_proto(device)?.name,
        identity: String::from_utf8(identity).map_err(|_| malformed(IDENTITY_KEY))?,
        after,
        offer,
        step_id,
    }))
}

/// Returns the leader's answer.
pub(crate) fn entered_response(
    call: &pb::CompleteGroupRequest,
    entered: Entered,
) -> tonic::Response<pb::CompleteGroupResponse> {
    let (epoch, key, reason) = match entered {
        Entered::Key { epoch, key } => (Some(epoch), key, None),
        Entered::Create { epoch } => (Some(epoch), Vec::new(), None),
        Entered::Refused(reason) => (None, Vec::new(), Some(reason)),
    };
    let mut response = tonic::Response::new(pb::CompleteGroupResponse {
        group_key: call.group_key,
        group_size: call.group_size,
        device_type: call.device_type.clone(),
        communicator_key: key,
        ..Default::default()
    });
    let header = response.metadata_mut();
    if let Some(epoch) = epoch {
        header.insert(EPOCH_KEY, epoch.into());
    }
    if let Some(reason) = reason {
        header.insert_bin(REFUSED_KEY, MetadataValue::from_bytes(reason.as_bytes()));
    }
    response
}

/// Returns the answer of a leader.
///
/// # Errors
/// `InvalidArgument` for a malformed answer.
pub(crate) fn entered_of(response: tonic::Response<pb::CompleteGroupResponse>) -> Result<Entered, Status> {
    if let Some(reason) = bytes(response.metadata(), REFUSED_KEY)? {
        return Ok(Entered::Refused(String::from_utf8_lossy(&reason).into_owned()));
    }
    match number(response.metadata(), EPOCH_KEY)? {
        None => Ok(Entered::Refused("the leader of the group knows no communicators".into())),
        Some(epoch) => match response.into_inner().communicator_key {
            key if key.is_empty() => Ok(Entered::Create { epoch }),
            key => Ok(Entered::Key { epoch, key }),
        },
    }
}

fn number(header: &MetadataMap, key: &str) -> Result<Option<u64>, Status> {
    let Some(value) = header.get(key) else { return Ok(None) };
    let number = value.to_str().ok().and_then(|text| text.parse().ok());
    number.map(Some).ok_or_else(|| malformed(key))
}

fn bytes(header: &MetadataMap, key: &str) -> Result<Option<Vec<u8>>, Status> {
    let Some(value) = header.get_bin(key) else { return Ok(None) };
    value.to_bytes().map(|bytes| Some(bytes.to_vec())).map_err(|_| malformed(key))
}

fn malformed(key: &str) -> Status {
    Status::new(Code::InvalidArgument, format!("the header field {key} is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use graph::{DeviceAttributes, DeviceName, TaskName};
    use proto::convert::device_to_proto;

    fn call(enter: &Enter) -> tonic::Request<pb::CompleteGroupRequest> {
        let attributes = DeviceAttributes {
            name: enter.device.clone(),
            memory_limit: 1,
            incarnation: 1,
            physical_description: String::new(),
        };
        let mut call = tonic::Request::new(pb::CompleteGroupRequest {
            group_key: enter.group.0,
            group_size: enter.size as i32,
            device_type: "GPU".into(),
            device_attributes: Some(device_to_proto(&attributes)),
            ..Default::default()
        });
        write_header(enter, call.metadata_mut());
        call
    }

    #[test]
    fn requests_and_answers_survive_the_wire() -> Result<(), Status> {
        let enter = Enter {
            session: "s".into(),
            group: (3, false),
            size: 2,
            device: DeviceName::new(&TaskName::new("worker", 1), "GPU", 0),
            identity: "machine/0000:17:00.0".into(),
            after: 4,
            offer: Some((5, vec![0, 255, 7])),
            step_id: 9,
        };
        let sent = call(&enter);
        let read = enter_of(&sent, "s".into(), false, 9)?;
        assert_eq!(format!("{read:?}"), format!("{:?}", Some(enter)));
        for entered in [
            Entered::Key { epoch: 5, key: vec![0, 1] },
            Entered::Create { epoch: 6 },
            Entered::Refused("one GPU twice, \u{e9}".into()),
        ] {
            assert_eq!(entered_of(entered_response(sent.get_ref(), entered.clone()))?, entered);
        }
        Ok(())
    }

    #[test]
    fn a_request_to_join_is_none_to_enter() -> Result<(), Status> {
        let join = tonic::Request::new(pb::CompleteGroupRequest::default());
        assert!(enter_of(&join, "".into(), false, 0)?.is_none());
        let mut malformed = tonic::Request::new(pb::CompleteGroupRequest::default());
        malformed.metadata_mut().insert(EPOCH_KEY, MetadataValue::from_static("one"));
        assert!(enter_of(&malformed, "".into(), false, 0).is_err());
        Ok(())
    }

    #[test]
    fn a_leader_without_epochs_refuses() -> Result<(), Status> {
        let answer = entered_of(tonic::Response::new(pb::CompleteGroupResponse::default()))?;
        assert!(matches!(answer, Entered::Refused(reason) if reason.contains("knows no communicators")));
        Ok(())
    }
}
