//! The handlers of MasterService's calls: each decodes the request, calls the master, and encodes the
//! response.

use crate::master::Master;
use crate::session::on_blocking_thread;
use graph::{Code, Graph, Tensor};
use proto::grpc;
use proto::link::{
    CreateSession, ExtendSession, MakeCallable, MasterLink, PartialRunSetup, RunCallable, RunStep,
    RunStepOutcome,
};
use proto::service::MasterService;
use proto::{Status, convert, deadline, pb};
use std::sync::Arc;
use std::time::Instant;
use tonic::{Request, Response};

/// The handler of calls to one master; clones share the master.
#[derive(Clone, Debug)]
pub(crate) struct Handler {
    pub(crate) master: Arc<Master>,
}

type Answer<T> = Result<Response<T>, tonic::Status>;

#[tonic::async_trait]
impl MasterService for Handler {
    async fn create_session(
        &self,
        request: Request<pb::CreateSessionRequest>,
    ) -> Answer<pb::CreateSessionResponse> {
        let deadline = deadline::of_answer(&request);
        let request = request.into_inner();
        let graph_def = request.graph_def;
        let graph = on_blocking_thread(|| {
            Ok(convert::extend_graph(Graph::new(), graph_def, &mut convert::Budget::default())?)
        })
        .await?;
        let config = request.config.unwrap_or_default();
        let create = CreateSession { graph, config, target: request.target, deadline };
        let created = self.master.create_session(create).await?;
        Ok(Response::new(pb::CreateSessionResponse {
            session_handle: created.session.to_string(),
            graph_version: created.graph_version,
        }))
    }

    async fn extend_session(
        &self,
        request: Request<pb::ExtendSessionRequest>,
    ) -> Answer<pb::ExtendSessionResponse> {
        let request = request.into_inner();
        let extend = ExtendSession {
            session: request.session_handle.into(),
            nodes: request.graph_def,
            graph_version: request.current_graph_version,
        };
        let new_graph_version = self.master.extend_session(extend).await?;
        Ok(Response::new(pb::ExtendSessionResponse { new_graph_version }))
    }

    async fn run_step(&self, request: Request<pb::RunStepRequest>) -> Answer<pb::RunStepResponse> {
        let deadline = deadline::of_answer(&request);
        Ok(Response::new(grpc::sized(self.answer_step(request.into_inner(), deadline).await?)?))
    }

    async fn close_session(
        &self,
        request: Request<pb::CloseSessionRequest>,
    ) -> Answer<pb::CloseSessionResponse> {
        self.master.close_session(&request.into_inner().session_handle).await?;
        Ok(Response::new(pb::CloseSessionResponse {}))
    }

    async fn list_devices(
        &self,
        request: Request<pb::ListDevicesRequest>,
    ) -> Answer<pb::ListDevicesResponse> {
        let handle = request.into_inner().session_handle;
        let listed = self.master.list_devices(Some(handle.as_str()).filter(|h| !h.is_empty())).await?;
        Ok(Response::new(pb::ListDevicesResponse {
            local_device: listed.local.iter().map(convert::device_to_proto).collect(),
            remote_device: listed.remote.iter().map(convert::device_to_proto).collect(),
        }))
    }

    async fn reset(&self, request: Request<pb::ResetRequest>) -> Answer<pb::ResetResponse> {
        let request = request.into_inner();
        self.master.reset(request.container, request.device_filters).await?;
        Ok(Response::new(pb::ResetResponse {}))
    }

    async fn partial_run_setup(
        &self,
        request: Request<pb::PartialRunSetupRequest>,
    ) -> Answer<pb::PartialRunSetupResponse> {
        let request = request.into_inner();
        self.master.check_request_id("PartialRunSetup (Master)", request.request_id)?;
        let setup = PartialRunSetup {
            session: request.session_handle.into(),
            feeds: request.feed,
            fetches: request.fetch,
            targets: request.target,
        };
        let partial_run_handle = self.master.partial_run_setup(setup).await?.to_string();
        Ok(Response::new(pb::PartialRunSetupResponse { partial_run_handle }))
    }

    async fn make_callable(
        &self,
        request: Request<pb::MakeCallableRequest>,
    ) -> Answer<pb::MakeCallableResponse> {
        let request = request.into_inner();
        self.master.check_request_id("MakeCallable (Master)", request.request_id)?;
        let options = request.options.unwrap_or_default();
        let make = MakeCallable { session: request.session_handle.into(), options };
        let handle = self.master.make_callable(make).await?;
        Ok(Response::new(pb::MakeCallableResponse { handle }))
    }

    async fn run_callable(
        &self,
        request: Request<pb::RunCallableRequest>,
    ) -> Answer<pb::RunCallableResponse> {
        let deadline = deadline::of_answer(&request);
        Ok(Response::new(grpc::sized(self.answer_callable(request.into_inner(), deadline).await?)?))
    }

    async fn release_callable(
        &self,
        request: Request<pb::ReleaseCallableRequest>,
    ) -> Answer<pb::ReleaseCallableResponse> {
        let request = request.into_inner();
        self.master.release_callable(&request.session_handle, request.handle).await?;
        Ok(Response::new(pb::ReleaseCallableResponse {}))
    }
}

impl Handler {
    /// Runs a RunStep request and returns its response, which contains the error if the request sets
    /// `store_errors_in_response_body`.
    pub(crate) async fn answer_step(
        &self,
        request: pb::RunStepRequest,
        deadline: Option<Instant>,
    ) -> Result<pb::RunStepResponse, Status> {
        let in_body = request.store_errors_in_response_body;
        match self.run(request, deadline).await {
            Ok(outcome) => Ok(run_step_response(outcome)),
            Err(status) if in_body => {
                let (status_code, status_error_message) = convert::failure_in_body(status);
                Ok(pb::RunStepResponse { status_code, status_error_message, ..Default::default() })
            }
            Err(status) => Err(status),
        }
    }

    /// Decodes a request and runs its step.
    async fn run(
        &self,
        request: pb::RunStepRequest,
        deadline: Option<Instant>,
    ) -> Result<RunStepOutcome, Status> {
        self.master.check_request_id("RunStep (Master)", request.request_id)?;
        let handle = request.partial_run_handle;
        let step = RunStep {
            session: request.session_handle.into(),
            feeds: feeds(request.feed)?,
            fetches: request.fetch,
            targets: request.target,
            options: request.options.unwrap_or_default(),
            partial_run: if handle.is_empty() { None } else { Some(handle.into()) },
            deadline,
        };
        self.master.run_step(step).await
    }

    /// Runs a RunCallable request and returns its response.
    pub(crate) async fn answer_callable(
        &self,
        request: pb::RunCallableRequest,
        deadline: Option<Instant>,
    ) -> Result<pb::RunCallableResponse, Status> {
        self.master.check_request_id("RunCallable (Master)", request.request_id)?;
        let feeds = request.feed.into_iter().map(convert::tensor_from_proto);
        let run = RunCallable {
            session: request.session_handle.into(),
            handle: request.handle,
            feeds: feeds.collect::<graph::Result<_>>().map_err(Status::from)?,
            deadline,
        };
        let outcome = self.master.run_callable(run).await.map_err(without_client_retry)?;
        let fetch = outcome.fetches.iter().map(convert::tensor_to_proto).collect();
        Ok(pb::RunCallableResponse { fetch, metadata: outcome.metadata })
    }
}

/// Replaces `Unavailable` by `Aborted`. After `Unavailable`, a client would repeat the call, and the server
/// would refuse the repeated call because its request id has been used; this second error would hide the
/// first one. After either code, a client opens a new session.
fn without_client_retry(status: Status) -> Status {
    match status.code {
        Code::Unavailable => Status { code: Code::Aborted, ..status },
        _ => status,
    }
}

/// Decodes the named tensors that a request feeds.
fn feeds(named: Vec<pb::NamedTensorProto>) -> Result<Vec<(String, Tensor)>, Status> {
    let decode = |named: pb::NamedTensorProto| {
        let tensor = convert::tensor_from_proto(named.tensor.unwrap_or_default())
            .map_err(|e| Status::new(e.code(), format!("feed '{}': {e}", named.name)))?;
        Ok((named.name, tensor))
    };
    named.into_iter().map(decode).collect()
}

/// Encodes the outcome of a step.
fn run_step_response(outcome: RunStepOutcome) -> pb::RunStepResponse {
    let encode = |(name, tensor): (String, Tensor)| pb::NamedTensorProto {
        name,
        tensor: Some(convert::tensor_to_proto(&tensor)),
    };
    pb::RunStepResponse {
        tensor: outcome.fetches.into_iter().map(encode).collect(),
        metadata: outcome.metadata,
        ..Default::default()
    }
}
