//! The client of a worker in another process.

use crate::channel::{Peer, RetryPolicy};
use crate::convert::{devices_from_proto, worker as convert};
use crate::grpc::MAX_MESSAGE_SIZE;
use crate::link::{Call, CreateWorkerSession, RegisterGraph, RunGraph, RunGraphOutcome, WorkerLink};
use crate::pb;
use crate::service::WorkerServiceClient;
use crate::status::Status;
use crate::step_ids::SequenceEnd;
use graph::{Code, DeviceAttributes, TaskName};
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Response};

/// Time limit of calls without a deadline, except steps, which may take any time.
const CONTROL_DEADLINE: Duration = Duration::from_secs(300);

/// Time limit of the Logging call, whose results are optional for the step that waits for it.
const LOGGING_DEADLINE: Duration = Duration::from_secs(5);

/// The header field of GetStepSequence by which a master of this implementation makes itself known.
pub const MASTER_KEY: &str = "anabranch-master";
/// The header field of GetStepSequence by which such a master ends a sequence: a [`SequenceEnd`].
pub const ENDED_KEY: &str = "anabranch-ended-bin";

/// Time limit of the call that ends a sequence of step ids.
const END_DEADLINE: Duration = Duration::from_secs(2);

type Client = WorkerServiceClient<Channel>;
type Reply<T> = Result<Response<T>, tonic::Status>;

/// A [`WorkerLink`] over gRPC.
#[derive(Debug)]
pub struct RemoteWorker {
    peer: Peer,
}

impl RemoteWorker {
    /// Creates the client of a worker at `address`, `host:port`, without connecting.
    ///
    /// # Errors
    /// `InvalidArgument` if the address is malformed.
    pub fn new(task: TaskName, address: &str, connect_deadline: Duration) -> Result<RemoteWorker, Status> {
        Ok(RemoteWorker { peer: Peer::new(task, address, connect_deadline, 1)? })
    }

    /// Returns the name of the worker's task.
    pub fn task(&self) -> &TaskName {
        self.peer.task()
    }

    /// Returns the address of the worker.
    pub fn address(&self) -> &str {
        self.peer.address()
    }

    async fn call<M, T, F>(
        &self,
        method: &str,
        retry: RetryPolicy,
        deadline: Option<Instant>,
        message: M,
        send: impl Fn(Client, Request<M>) -> F,
    ) -> Result<Response<T>, Status>
    where
        M: Clone,
        F: Future<Output = Reply<T>>,
    {
        let on = |channel| {
            let client = Client::new(channel)
                .max_decoding_message_size(MAX_MESSAGE_SIZE)
                .max_encoding_message_size(MAX_MESSAGE_SIZE);
            let mut request = Request::new(message.clone());
            if let Some(deadline) = deadline {
                request.set_timeout(deadline.saturating_duration_since(Instant::now()));
            }
            send(client, request)
        };
        self.peer.call(method, retry, deadline, on).await
    }
}

/// Returns the deadline of a control call, by default [`CONTROL_DEADLINE`] from the current time.
fn control(deadline: Option<Instant>) -> Option<Instant> {
    Some(deadline.unwrap_or_else(|| Instant::now() + CONTROL_DEADLINE))
}

impl WorkerLink for RemoteWorker {
    fn status(&self, deadline: Option<Instant>) -> Call<'_, Vec<DeviceAttributes>> {
        Box::pin(async move {
            let request = pb::GetStatusRequest {};
            let send = |mut c: Client, r| async move { c.get_status(r).await };
            let reply =
                self.call("GetStatus", RetryPolicy::UntilThere, control(deadline), request, send).await?;
            Ok(devices_from_proto(reply.into_inner().device_attributes)?)
        })
    }

    fn create_session(&self, session: CreateWorkerSession) -> Call<'_, ()> {
        Box::pin(async move {
            let deadline = control(session.deadline);
            let request = convert::create_session_to_proto(session);
            let send = |mut c: Client, r| async move { c.create_worker_session(r).await };
            self.call("CreateWorkerSession", RetryPolicy::Harmless, deadline, request, send).await?;
            Ok(())
        })
    }

    fn delete_session<'a>(&'a self, session: &'a str, deadline: Option<Instant>) -> Call<'a, ()> {
        Box::pin(async move {
            let request = pb::DeleteWorkerSessionRequest { session_handle: session.to_owned() };
            let send = |mut c: Client, r| async move { c.delete_worker_session(r).await };
            self.call("DeleteWorkerSession", RetryPolicy::Harmless, control(deadline), request, send).await?;
            Ok(())
        })
    }

    fn register_graph(&self, part: RegisterGraph) -> Call<'_, Arc<str>> {
        Box::pin(async move {
            let deadline = control(part.deadline);
            // The graph may be large, so it is encoded off the runtime's threads, which serve other workers
            // meanwhile.
            let written = tokio::task::spawn_blocking(move || convert::register_graph_to_proto(&part)).await;
            let request = written.unwrap_or_else(|e| {
                Err(Status::new(Code::Internal, format!("writing a graph failed: {e}")))
            })?;
            let send = |mut c: Client, r| async move { c.register_graph(r).await };
            let reply = self.call("RegisterGraph", RetryPolicy::Never, deadline, request, send).await?;
            Ok(reply.into_inner().graph_handle.into())
        })
    }

    fn next_step_id(&self, graph_key: i64, deadline: Option<Instant>) -> Call<'_, i64> {
        Box::pin(async move {
            let request = pb::GetStepSequenceRequest { graph_key: vec![graph_key] };
            let send = |mut c: Client, mut r: Request<_>| {
                r.metadata_mut().insert(MASTER_KEY, MetadataValue::from_static("1"));
                async move { c.get_step_sequence(r).await }
            };
            let reply = self
                .call("GetStepSequence", RetryPolicy::UntilThere, control(deadline), request, send)
                .await?;
            let sequences = reply.into_inner().step_sequence;
            let own = sequences.iter().find(|sequence| sequence.graph_key == graph_key);
            own.map(|sequence| sequence.next_step_id).ok_or_else(|| {
                let text = format!("{} gave out no step id for graph key {graph_key}", self.task());
                Status::new(Code::Internal, text)
            })
        })
    }

    fn end_step_ids(&self, end: SequenceEnd) -> Call<'_, ()> {
        Box::pin(async move {
            let request = pb::GetStepSequenceRequest::default();
            let send = |mut c: Client, mut r: Request<_>| {
                r.metadata_mut().insert_bin(ENDED_KEY, end.to_header());
                async move { c.get_step_sequence(r).await }
            };
            let deadline = Some(Instant::now() + END_DEADLINE);
            self.call("GetStepSequence", RetryPolicy::Harmless, deadline, request, send).await?;
            Ok(())
        })
    }

    fn deregister_graph<'a>(&'a self, session: &'a str, graph: &'a str) -> Call<'a, ()> {
        Box::pin(async move {
            let request = pb::DeregisterGraphRequest {
                graph_handle: graph.to_owned(),
                session_handle: session.to_owned(),
                create_worker_session_called: !session.is_empty(),
            };
            let send = |mut c: Client, r| async move { c.deregister_graph(r).await };
            self.call("DeregisterGraph", RetryPolicy::Never, control(None), request, send).await?;
            Ok(())
        })
    }

    fn run_graph(&self, run: RunGraph) -> Call<'_, RunGraphOutcome> {
        Box::pin(async move {
            let request = convert::run_graph_to_proto(&run, request_id());
            let send = |mut c: Client, r| async move { c.run_graph(r).await };
            let reply = self.call("RunGraph", RetryPolicy::Never, run.deadline, request, send).await?;
            let (metadata, body, _) = reply.into_parts();
            if body.status_code != 0 {
                let status = Status::new(Code::from_number(body.status_code), body.status_error_message);
                return Err(status.read_metadata(&metadata));
            }
            convert::outcome_from_proto(body, &run.recv)
        })
    }

    fn cleanup_graph(&self, step_id: i64) -> Call<'_, ()> {
        Box::pin(async move {
            let request = pb::CleanupGraphRequest { step_id };
            let send = |mut c: Client, r| async move { c.cleanup_graph(r).await };
            self.call("CleanupGraph", RetryPolicy::Harmless, control(None), request, send).await?;
            Ok(())
        })
    }

    fn logging(&self, request: pb::LoggingRequest) -> Call<'_, Vec<pb::LabeledStepStats>> {
        Box::pin(async move {
            let deadline = Some(Instant::now() + LOGGING_DEADLINE);
            let send = |mut c: Client, r| async move { c.logging(r).await };
            Ok(self.call("Logging", RetryPolicy::Never, deadline, request, send).await?.into_inner().step)
        })
    }

    fn cleanup_all<'a>(&'a self, containers: &'a [String]) -> Call<'a, ()> {
        Box::pin(async move {
            let request = pb::CleanupAllRequest { container: containers.to_vec() };
            let send = |mut c: Client, r| async move { c.cleanup_all(r).await };
            self.call("CleanupAll", RetryPolicy::Harmless, control(None), request, send).await?;
            Ok(())
        })
    }
}

/// Returns a random request id other than zero, which would disable the check for repeated requests.
pub fn request_id() -> i64 {
    loop {
        let id: i64 = rand::random();
        if id != 0 {
            return id;
        }
    }
}
