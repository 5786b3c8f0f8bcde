//! Conversions of the requests and responses between masters and workers.

use super::{
    Budget, DefaultAttrs, graph_from_bytes, graph_to_bytes, named_tensor_from_proto, named_tensor_to_proto,
};
use crate::epoch::Epoch;
use crate::link::{CreateWorkerSession, Extent, RegisterGraph, RunGraph, RunGraphOutcome};
use crate::pb;
use crate::status::Status;
use graph::{Code, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

/// Converts a CreateWorkerSession request to its message.
pub fn create_session_to_proto(session: CreateWorkerSession) -> pb::CreateWorkerSessionRequest {
    let mut server_def = session.server_def;
    if let Some(epoch) = session.epoch {
        epoch.write(server_def.default_session_config.get_or_insert_default());
    }
    pb::CreateWorkerSessionRequest {
        session_handle: session.session.to_string(),
        server_def: Some(server_def),
        isolate_session_state: session.isolate_session_state,
        cluster_device_attributes: super::devices_to_proto(&session.cluster_devices),
        master_task: session.master_task,
        master_incarnation: session.master_incarnation as i64,
    }
}

/// Converts the message of a CreateWorkerSession request.
pub fn create_session_from_proto(
    request: pb::CreateWorkerSessionRequest,
    deadline: Option<Instant>,
) -> Result<CreateWorkerSession, Status> {
    let server_def = request.server_def.unwrap_or_default();
    Ok(CreateWorkerSession {
        session: request.session_handle.into(),
        epoch: server_def.default_session_config.as_ref().and_then(Epoch::of),
        server_def,
        isolate_session_state: request.isolate_session_state,
        cluster_devices: super::devices_from_proto(request.cluster_device_attributes)?,
        master_task: request.master_task,
        master_incarnation: request.master_incarnation as u64,
        deadline,
    })
}

/// Converts a RegisterGraph request to its message. An empty session handle is the session shared by all
/// masters that do not create one.
pub fn register_graph_to_proto(part: &RegisterGraph) -> Result<pb::RegisterGraphRequest, Status> {
    Ok(pb::RegisterGraphRequest {
        session_handle: part.session.to_string(),
        graph_def: graph_to_bytes(&part.graph, DefaultAttrs::Strip)?,
        graph_options: part.graph_options.clone(),
        debug_options: part.debug_options.clone(),
        create_worker_session_called: !part.session.is_empty(),
        collective_graph_key: part.collective_graph_key,
        config_proto: part.config.clone(),
        ..Default::default()
    })
}

/// Converts the message of a RegisterGraph request.
pub fn register_graph_from_proto(
    request: pb::RegisterGraphRequest,
    deadline: Option<Instant>,
) -> Result<RegisterGraph, Status> {
    Ok(RegisterGraph {
        session: session(request.session_handle, request.create_worker_session_called),
        graph: graph_from_bytes(request.graph_def, &mut Budget::default())?,
        graph_options: request.graph_options,
        config: request.config_proto,
        debug_options: request.debug_options,
        collective_graph_key: request.collective_graph_key,
        deadline,
    })
}

/// Converts a RunGraph request to its message.
pub fn run_graph_to_proto(run: &RunGraph, request_id: i64) -> pb::RunGraphRequest {
    let send = run.send.iter().map(|(key, tensor)| named_tensor_to_proto(key, tensor));
    pb::RunGraphRequest {
        graph_handle: run.graph.to_string(),
        step_id: run.step_id,
        send: send.collect(),
        recv_key: run.recv.iter().map(ToString::to_string).collect(),
        exec_opts: Some(run.options),
        session_handle: run.session.to_string(),
        store_errors_in_response_body: true,
        create_worker_session_called: !run.session.is_empty(),
        request_id,
        is_partial: run.extent != Extent::Whole,
        is_last_partial_run: run.extent == Extent::LastPart,
    }
}

/// Converts the message of a RunGraph request.
///
/// # Errors
/// The errors of invalid tensors.
pub fn run_graph_from_proto(
    request: pb::RunGraphRequest,
    deadline: Option<Instant>,
) -> Result<RunGraph, Status> {
    Ok(RunGraph {
        extent: match (request.is_partial, request.is_last_partial_run) {
            (false, _) => Extent::Whole,
            (true, false) => Extent::Part,
            (true, true) => Extent::LastPart,
        },
        session: session(request.session_handle, request.create_worker_session_called),
        graph: request.graph_handle.into(),
        step_id: request.step_id,
        send: named_tensors(request.send)?,
        recv: request.recv_key.into_iter().map(Into::into).collect(),
        options: request.exec_opts.unwrap_or_default(),
        deadline,
    })
}

/// Converts the outcome of a run to the response message.
pub fn outcome_to_proto(outcome: RunGraphOutcome) -> pb::RunGraphResponse {
    let recv = outcome.recv.iter().map(|(key, tensor)| named_tensor_to_proto(key, tensor));
    pb::RunGraphResponse {
        recv: recv.collect(),
        step_stats: outcome.step_stats,
        partition_graph: outcome.partition_graphs,
        cost_graph: outcome.cost_graph,
        ..Default::default()
    }
}

/// Converts the response to a run that requested `keys`. The values are returned in the order of `keys`,
/// because the order of the response is unspecified.
///
/// # Errors
/// `Internal` if a key is missing.
pub fn outcome_from_proto(
    response: pb::RunGraphResponse,
    keys: &[Arc<str>],
) -> Result<RunGraphOutcome, Status> {
    let mut found: BTreeMap<Arc<str>, Tensor> = named_tensors(response.recv)?.into_iter().collect();
    let mut take = |key: &Arc<str>| {
        found.remove(key).map(|tensor| (key.clone(), tensor)).ok_or_else(|| {
            Status::new(Code::Internal, format!("RunGraph answered without the value of {key}"))
        })
    };
    Ok(RunGraphOutcome {
        recv: keys.iter().map(&mut take).collect::<Result<_, _>>()?,
        step_stats: response.step_stats,
        partition_graphs: response.partition_graph,
        cost_graph: response.cost_graph,
    })
}

/// Converts the failure of a run to a response whose body carries it.
pub fn failure_to_proto(status: Status) -> pb::RunGraphResponse {
    let (status_code, status_error_message) = super::failure_in_body(status);
    pb::RunGraphResponse { status_code, status_error_message, ..Default::default() }
}

/// Returns the session handle, which is empty for masters that do not create a session.
pub fn session(handle: String, create_worker_session_called: bool) -> Arc<str> {
    if create_worker_session_called { handle.into() } else { "".into() }
}

fn named_tensors(named: Vec<pb::NamedTensorProto>) -> Result<Vec<(Arc<str>, Tensor)>, Status> {
    let mut budget = Budget::default();
    named
        .into_iter()
        .map(|named| {
            let (key, tensor) = named_tensor_from_proto(named, &mut budget)?;
            Ok((key.into(), tensor))
        })
        .collect()
}
