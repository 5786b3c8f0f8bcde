//! Conversions between the leader's requests and the messages of TensorFlow's protocol.

use super::communicators::{Enter, enter_of};
use super::member::{BUCKET_KEY, RANK_KEY, RENEWAL_KEY, SESSION_KEY, SHARED_KEY, STEP_KEY, TIMEOUT_KEY};
use super::register::{Agree, Agreement, Join, Met, Terms};
use proto::convert::{device_from_proto, devices_to_proto, shape_from_proto};
use proto::{Status, pb};
use std::collections::BTreeSet;
use std::time::{Duration, Instant};
use tonic::metadata::MetadataValue;

/// Returns the request to enter an epoch of a communicator in a call of CompleteGroup; `None` for another request.
///
/// # Errors
/// `InvalidArgument` for a malformed request.
pub(crate) fn enter_request_of(
    call: &tonic::Request<pb::CompleteGroupRequest>,
) -> Result<Option<Enter>, Status> {
    enter_of(call, session_of(call).into(), call.metadata().contains_key(RANK_KEY), step_id_of(call))
}

fn session_of<T>(call: &tonic::Request<T>) -> &str {
    call.metadata().get(SESSION_KEY).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// Returns the request to join a group in a call of CompleteGroup.
///
/// # Errors
/// `InvalidArgument` for a call without a device, or a group without members.
pub(crate) fn join_of(call: &tonic::Request<pb::CompleteGroupRequest>) -> Result<Join, Status> {
    let session = session_of(call);
    let rank = call.metadata().get(RANK_KEY).and_then(|rank| rank.to_str().ok()?.parse().ok());
    let message = call.get_ref();
    let device = message.device_attributes.clone();
    let device = device.ok_or_else(|| Status::invalid("CompleteGroup has no device_attributes"))?;
    let group_size = usize::try_from(message.group_size).ok().filter(|&size| size > 0);
    let group_size = group_size
        .ok_or_else(|| Status::invalid(format!("group_size is {}, not positive", message.group_size)))?;
    Ok(Join {
        session: session.into(),
        group_key: message.group_key,
        group_size,
        device: device_from_proto(device)?,
        rank,
        step_id: step_id_of(call),
    })
}

/// Returns the time by which a member needs the answer to a call; `None` if the header has none.
pub(crate) fn deadline_of<T>(call: &tonic::Request<T>) -> Option<Instant> {
    let left = call.metadata().get(TIMEOUT_KEY)?.to_str().ok()?.parse().ok()?;
    Instant::now().checked_add(Duration::from_millis(left))
}

/// Returns the id of the member's step in the header of a call; 0 if the header has none.
fn step_id_of<T>(call: &tonic::Request<T>) -> i64 {
    call.metadata().get(STEP_KEY).and_then(|id| id.to_str().ok()?.parse().ok()).unwrap_or_default()
}

/// Returns the answer to CompleteGroup for a complete group.
pub(crate) fn complete_group_response(
    group_key: i32,
    group_size: i32,
    device_type: String,
    Met { members, is_shared }: &Met,
) -> tonic::Response<pb::CompleteGroupResponse> {
    let tasks: BTreeSet<_> = members.iter().map(|member| member.name.task_name()).collect();
    let mut response = tonic::Response::new(pb::CompleteGroupResponse {
        group_key,
        group_size,
        device_type,
        num_tasks: tasks.len() as i32,
        communicator_key: Vec::new(),
        device_attributes: devices_to_proto(members),
    });
    if *is_shared {
        response.metadata_mut().insert(SHARED_KEY, MetadataValue::from_static("1"));
    }
    response
}

/// Returns a member's terms in a call of CompleteInstance.
///
/// # Errors
/// `InvalidArgument` for a malformed shape.
pub(crate) fn agree_of(call: tonic::Request<pb::CompleteInstanceRequest>) -> Result<Agree, Status> {
    let step_id = step_id_of(&call);
    let renewal = call.metadata().get(RENEWAL_KEY).and_then(|number| number.to_str().ok()?.parse().ok());
    let is_communicator = call.metadata().contains_key(RANK_KEY);
    let bucket = call.metadata().get(BUCKET_KEY).and_then(|digest| digest.to_str().ok()?.parse().ok());
    let message = call.into_inner();
    let (node, functions) = message.name.split_once(": ").unwrap_or((&message.name, ""));
    // TensorFlow writes `ReduceV2(Add,Id)` for some ops and `Reduce(Add,Id)` for others.
    let functions = functions.split_once('(').map_or("", |(_, functions)| functions.trim_end_matches(')'));
    Ok(Agree {
        group_key: message.group_key,
        is_communicator,
        instance_key: message.instance_key,
        node: node.to_owned(),
        terms: Terms {
            kind: message.r#type,
            dtype: message.data_type,
            shape: message.shape.as_ref().map(shape_from_proto).transpose()?,
            functions: functions.to_owned(),
        },
        device: message.device,
        is_source: message.is_source,
        step_id,
        renewal,
        bucket,
    })
}

/// Returns the answer to CompleteInstance.
pub(crate) fn complete_instance_response(
    instance_key: i32,
    agreement: Agreement,
) -> tonic::Response<pb::CompleteInstanceResponse> {
    let source_rank = agreement.source.and_then(|rank| i32::try_from(rank).ok()).unwrap_or(-1);
    let mut response = tonic::Response::new(pb::CompleteInstanceResponse { instance_key, source_rank });
    if agreement.is_bucketed {
        response.metadata_mut().insert(BUCKET_KEY, MetadataValue::from_static("1"));
    }
    response
}
