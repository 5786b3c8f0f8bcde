//! The methods of WorkerService: each decodes the request, calls one method of the worker and encodes the
//! answer.

use crate::collective::{self, COLLECTIVES_KEY, answer_standing};
use crate::serve::recv_tensor;
use crate::transport::{FABRIC_KEY, INVITATION_KEY, INVITATION_REQUEST_KEY};
use crate::worker::{Worker, blocking};
use proto::convert::{devices_to_proto, worker as convert};
use proto::pb::*;
use proto::remote::{ENDED_KEY, MASTER_KEY};
use proto::service::WorkerService;
use proto::step_ids::SequenceEnd;
use proto::{Status, deadline, grpc};
use std::sync::Arc;
use std::time::Instant;
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Request, Response};

type Reply<T> = Result<Response<T>, tonic::Status>;

/// The implementation of WorkerService.
#[derive(Clone, Debug)]
pub(crate) struct Handler {
    pub(crate) worker: Arc<Worker>,
}

impl Handler {
    pub(crate) fn new(worker: Arc<Worker>) -> Handler {
        Handler { worker }
    }

    /// Checks that the session exists if `created`, the request's field `create_worker_session_called`, is
    /// set.
    fn check_session(&self, handle: &str, created: bool) -> Result<(), Status> {
        if created { self.worker.sessions.get_created(handle).map(drop) } else { Ok(()) }
    }

    async fn run(&self, request: Request<RunGraphRequest>) -> Result<RunGraphResponse, Status> {
        let deadline = deadline::of_answer(&request);
        self.run_message(request.into_inner(), deadline).await
    }

    /// Runs a task's part of a step, for a request that came over gRPC or over a link.
    pub(crate) async fn run_message(
        &self,
        request: RunGraphRequest,
        deadline: Option<Instant>,
    ) -> Result<RunGraphResponse, Status> {
        self.worker.accept_run(request.request_id, request.step_id)?;
        self.check_session(&request.session_handle, request.create_worker_session_called)?;
        let run = convert::run_graph_from_proto(request, deadline)?;
        Ok(convert::outcome_to_proto(self.worker.run_graph(run).await?))
    }
}

fn unimplemented<T>(method: &str) -> Reply<T> {
    Err(tonic::Status::unimplemented(method))
}

#[tonic::async_trait]
impl WorkerService for Handler {
    async fn get_status(&self, request: Request<GetStatusRequest>) -> Reply<GetStatusResponse> {
        let device_attributes = devices_to_proto(&self.worker.devices());
        let mut response = Response::new(GetStatusResponse { device_attributes });
        let invitation = request
            .metadata()
            .get(INVITATION_REQUEST_KEY)
            .and_then(|_| self.worker.link_table.invitation()?.parse().ok());
        if request.metadata().contains_key(COLLECTIVES_KEY) {
            response.metadata_mut().insert(COLLECTIVES_KEY, MetadataValue::from_static("1"));
        }
        answer_standing(&self.worker, request.metadata(), response.metadata_mut());
        if let Some(invitation) = invitation {
            response.metadata_mut().insert(INVITATION_KEY, invitation);
            if let Some(kind) = self.worker.link_table.fabric_kind() {
                response.metadata_mut().insert(FABRIC_KEY, MetadataValue::from_static(kind));
            }
        }
        Ok(response)
    }

    async fn create_worker_session(
        &self,
        request: Request<CreateWorkerSessionRequest>,
    ) -> Reply<CreateWorkerSessionResponse> {
        let session = convert::create_session_from_proto(request.into_inner(), None)?;
        self.worker.create_session(&session).await?;
        Ok(Response::new(CreateWorkerSessionResponse {}))
    }

    async fn delete_worker_session(
        &self,
        request: Request<DeleteWorkerSessionRequest>,
    ) -> Reply<DeleteWorkerSessionResponse> {
        self.worker.delete_session(&request.get_ref().session_handle);
        Ok(Response::new(DeleteWorkerSessionResponse {}))
    }

    async fn register_graph(&self, request: Request<RegisterGraphRequest>) -> Reply<RegisterGraphResponse> {
        let request = request.into_inner();
        self.check_session(&request.session_handle, request.create_worker_session_called)?;
        let part = blocking(move || convert::register_graph_from_proto(request, None)).await?;
        let graph_handle = self.worker.register_graph(part).await?.to_string();
        Ok(Response::new(RegisterGraphResponse { graph_handle }))
    }

    async fn deregister_graph(
        &self,
        request: Request<DeregisterGraphRequest>,
    ) -> Reply<DeregisterGraphResponse> {
        let request = request.into_inner();
        self.check_session(&request.session_handle, request.create_worker_session_called)?;
        let session = convert::session(request.session_handle, request.create_worker_session_called);
        self.worker.deregister_graph(&session, &request.graph_handle)?;
        Ok(Response::new(DeregisterGraphResponse {}))
    }

    async fn run_graph(&self, request: Request<RunGraphRequest>) -> Reply<RunGraphResponse> {
        let in_body = request.get_ref().store_errors_in_response_body;
        match self.run(request).await {
            Ok(response) => Ok(Response::new(grpc::sized(response)?)),
            Err(status) if in_body => {
                let mut metadata = MetadataMap::new();
                status.write_metadata(&mut metadata);
                let mut response = Response::new(convert::failure_to_proto(status));
                *response.metadata_mut() = metadata;
                Ok(response)
            }
            Err(status) => Err(status.into()),
        }
    }

    async fn cleanup_graph(&self, request: Request<CleanupGraphRequest>) -> Reply<CleanupGraphResponse> {
        self.worker.steps.cleanup(request.get_ref().step_id);
        Ok(Response::new(CleanupGraphResponse {}))
    }

    async fn cleanup_all(&self, request: Request<CleanupAllRequest>) -> Reply<CleanupAllResponse> {
        self.worker.cleanup_all(&request.get_ref().container).await?;
        Ok(Response::new(CleanupAllResponse {}))
    }

    /// Answers compressed RecvTensor requests; `WorkerRpc` answers uncompressed requests without copying the
    /// tensor.
    async fn recv_tensor(&self, request: Request<RecvTensorRequest>) -> Reply<RecvTensorResponse> {
        let reply = recv_tensor(&self.worker, request.into_inner()).await?;
        Ok(Response::new(reply.to_proto()))
    }

    async fn mark_recv_finished(
        &self,
        _: Request<MarkRecvFinishedRequest>,
    ) -> Reply<MarkRecvFinishedResponse> {
        // This worker retains no replies until their acknowledgement, so it has no reply to drop.
        Ok(Response::new(MarkRecvFinishedResponse {}))
    }

    async fn logging(&self, request: Request<LoggingRequest>) -> Reply<LoggingResponse> {
        let step = self.worker.transfers.control(request.get_ref());
        Ok(Response::new(LoggingResponse { step }))
    }

    async fn tracing(&self, _: Request<TracingRequest>) -> Reply<TracingResponse> {
        unimplemented("Tracing")
    }

    async fn recv_buf(&self, request: Request<RecvBufRequest>) -> Reply<RecvBufResponse> {
        let response = collective::recv_buf(&self.worker, request.into_inner()).await?;
        Ok(Response::new(response))
    }

    async fn complete_group(&self, request: Request<CompleteGroupRequest>) -> Reply<CompleteGroupResponse> {
        if let Some(request) = collective::assembly_request_of(&request)? {
            return Ok(collective::assembly_response_of(&self.worker.leader.assemblies.call(request).await?));
        }
        let deadline = collective::deadline_of(&request);
        if let Some(enter) = collective::enter_request_of(&request)? {
            let entered = self.worker.leader.enter(enter, self.worker.task(), deadline).await?;
            return Ok(collective::entered_response(request.get_ref(), entered));
        }
        let join = collective::join_of(&request)?;
        let CompleteGroupRequest { group_key, group_size, device_type, .. } = request.into_inner();
        let met = self.worker.leader.join(join, deadline).await?;
        Ok(collective::complete_group_response(group_key, group_size, device_type, &met))
    }

    async fn complete_instance(
        &self,
        request: Request<CompleteInstanceRequest>,
    ) -> Reply<CompleteInstanceResponse> {
        let deadline = collective::deadline_of(&request);
        let agree = collective::agree_of(request)?;
        let instance_key = agree.instance_key;
        let agreement = self.worker.leader.agree(agree, deadline).await?;
        Ok(collective::complete_instance_response(instance_key, agreement))
    }

    async fn get_step_sequence(
        &self,
        request: Request<GetStepSequenceRequest>,
    ) -> Reply<GetStepSequenceResponse> {
        let header = request.metadata();
        let is_foreign = !header.contains_key(MASTER_KEY);
        if let Some(end) = header.get_bin(ENDED_KEY).and_then(SequenceEnd::from_header) {
            collective::end_sequence(&self.worker, &end);
        }
        let next = |&graph_key: &i64| StepSequence {
            graph_key,
            next_step_id: self.worker.leader.next_step_id(graph_key, is_foreign),
        };
        let step_sequence = request.get_ref().graph_key.iter().map(next).collect();
        Ok(Response::new(GetStepSequenceResponse { step_sequence }))
    }
}
