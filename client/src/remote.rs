//! The client of a master in another process.

use crate::error::{Error, Result};
use async_trait::async_trait;
use graph::{Code, Tensor};
use proto::channel::CONNECT_DEADLINE;
use proto::convert::DefaultAttrs;
use proto::grpc::MAX_MESSAGE_SIZE;
use proto::link::{
    CreateSession, CreatedSession, ExtendSession, ListedDevices, MakeCallable, MasterLink, PartialRunSetup,
    RunCallable, RunCallableOutcome, RunStep, RunStepOutcome,
};
use proto::remote::request_id;
use proto::service::MasterServiceClient;
use proto::{Status, convert, pb};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// Time limit of calls that run no step.
const CONTROL_DEADLINE: Duration = Duration::from_secs(60);

/// A cancellation that arrives at most this long before a call's deadline counts as a timeout, because the
/// transport enforces the deadline too and may be slightly early.
const LATE_MARGIN: Duration = Duration::from_millis(20);

/// The client of a MasterService.
pub struct RemoteMaster {
    address: String,
    client: MasterServiceClient<Channel>,
}

impl RemoteMaster {
    /// Creates the client of the master at `grpc://host:port`. It connects at the first call.
    pub fn new(target: &str) -> Result<RemoteMaster> {
        let wrong = || Error::Target { target: target.to_owned() };
        let address = target.strip_prefix("grpc://").ok_or_else(wrong)?;
        let endpoint = proto::channel::endpoint(address).ok_or_else(wrong)?;
        let _in_runtime = crate::runtime::handle()?.enter();
        let endpoint = endpoint.connect_timeout(CONNECT_DEADLINE);
        let channel = proto::channel::connect_lazily(&endpoint);
        let client = MasterServiceClient::new(channel)
            .max_decoding_message_size(MAX_MESSAGE_SIZE)
            .max_encoding_message_size(MAX_MESSAGE_SIZE);
        Ok(RemoteMaster { address: address.to_owned(), client })
    }

    /// Converts the status of a failed call. If the master was unreachable or late, the status names its
    /// address.
    fn status(&self, status: tonic::Status, deadline: Option<Instant>) -> Status {
        // A status with an error source is not the master's response: this process created it because the
        // connection broke.
        let cause = std::error::Error::source(&status).map(proto::channel::innermost);
        let mut status = Status::from(status);
        let is_late = deadline.is_some_and(|d| Instant::now() + LATE_MARGIN >= d);
        if status.code == Code::Cancelled && is_late {
            let text = format!("the master at {} did not answer by the call's deadline", self.address);
            return Status::new(Code::DeadlineExceeded, text);
        }
        if let Some(cause) = cause {
            return Status::new(Code::Unavailable, format!("the master at {}: {cause}", self.address));
        }
        if status.code == Code::Unavailable {
            status.message = format!("the master at {}: {}", self.address, status.message);
        }
        status
    }
}

fn request<T>(message: T, deadline: Option<Instant>) -> tonic::Request<T> {
    let mut request = tonic::Request::new(message);
    if let Some(deadline) = deadline {
        request.set_timeout(deadline.saturating_duration_since(Instant::now()));
    }
    request
}

/// Repeats a call while the master is unreachable, until the deadline.
async fn until_reachable<T, F: Future<Output = Result<T, tonic::Status>>>(
    deadline: Instant,
    mut call: impl FnMut() -> F,
) -> Result<T, tonic::Status> {
    let mut pause = Duration::from_millis(20);
    loop {
        match call().await {
            Err(status) if status.code() == tonic::Code::Unavailable && Instant::now() + pause < deadline => {
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
            answer => return answer,
        }
    }
}

#[async_trait]
impl MasterLink for RemoteMaster {
    async fn create_session(&self, create: CreateSession) -> Result<CreatedSession, Status> {
        let message = pb::CreateSessionRequest {
            graph_def: convert::graph_to_bytes(&create.graph, DefaultAttrs::Keep)?,
            config: Some(create.config),
            target: create.target,
        };
        let deadline = create.deadline.unwrap_or_else(|| Instant::now() + CONNECT_DEADLINE);
        let call = || {
            let (mut client, message) = (self.client.clone(), message.clone());
            async move { client.create_session(request(message, create.deadline)).await }
        };
        let response =
            until_reachable(deadline, call).await.map_err(|s| self.status(s, create.deadline))?.into_inner();
        Ok(CreatedSession { session: response.session_handle.into(), graph_version: response.graph_version })
    }

    async fn extend_session(&self, extend: ExtendSession) -> Result<i64, Status> {
        let message = pb::ExtendSessionRequest {
            session_handle: extend.session.to_string(),
            graph_def: extend.nodes,
            current_graph_version: extend.graph_version,
        };
        let response = self.client.clone().extend_session(message).await.map_err(|s| self.status(s, None))?;
        Ok(response.into_inner().new_graph_version)
    }

    async fn run_step(&self, step: RunStep) -> Result<RunStepOutcome, Status> {
        let encode = |(name, tensor): (String, Tensor)| pb::NamedTensorProto {
            name,
            tensor: Some(convert::tensor_to_proto(&tensor)),
        };
        let message = pb::RunStepRequest {
            session_handle: step.session.to_string(),
            feed: step.feeds.into_iter().map(encode).collect(),
            fetch: unique(&step.fetches),
            target: step.targets,
            options: Some(step.options),
            store_errors_in_response_body: true,
            partial_run_handle: step.partial_run.unwrap_or_default().to_string(),
            request_id: request_id(),
        };
        let response = self
            .client
            .clone()
            .run_step(request(message, step.deadline))
            .await
            .map_err(|s| self.status(s, step.deadline))?;
        let response = response.into_inner();
        if response.status_code != Code::Ok.number() {
            return Err(Status::new(Code::from_number(response.status_code), response.status_error_message));
        }
        let mut fetched = Vec::with_capacity(response.tensor.len());
        for named in response.tensor {
            fetched.push((named.name, convert::tensor_from_proto(named.tensor.unwrap_or_default())?));
        }
        Ok(RunStepOutcome { fetches: in_order(&step.fetches, fetched)?, metadata: response.metadata })
    }

    async fn partial_run_setup(&self, setup: PartialRunSetup) -> Result<Arc<str>, Status> {
        let message = pb::PartialRunSetupRequest {
            session_handle: setup.session.to_string(),
            feed: setup.feeds,
            fetch: setup.fetches,
            target: setup.targets,
            request_id: request_id(),
        };
        let answer = self.client.clone().partial_run_setup(message).await;
        Ok(answer.map_err(|s| self.status(s, None))?.into_inner().partial_run_handle.into())
    }

    async fn make_callable(&self, make: MakeCallable) -> Result<i64, Status> {
        let message = pb::MakeCallableRequest {
            session_handle: make.session.to_string(),
            options: Some(make.options),
            request_id: request_id(),
        };
        let answer = self.client.clone().make_callable(message).await;
        Ok(answer.map_err(|s| self.status(s, None))?.into_inner().handle)
    }

    async fn run_callable(&self, run: RunCallable) -> Result<RunCallableOutcome, Status> {
        let message = pb::RunCallableRequest {
            session_handle: run.session.to_string(),
            handle: run.handle,
            feed: run.feeds.iter().map(convert::tensor_to_proto).collect(),
            request_id: request_id(),
        };
        let answer = self.client.clone().run_callable(request(message, run.deadline)).await;
        let response = answer.map_err(|s| self.status(s, run.deadline))?.into_inner();
        let fetches = response.fetch.into_iter().map(convert::tensor_from_proto);
        let fetches = fetches.collect::<graph::Result<_>>().map_err(Status::from)?;
        Ok(RunCallableOutcome { fetches, metadata: response.metadata })
    }

    async fn release_callable(&self, session: &str, handle: i64) -> Result<(), Status> {
        let message = pb::ReleaseCallableRequest { session_handle: session.to_owned(), handle };
        let deadline = Some(Instant::now() + CONTROL_DEADLINE);
        let answer = self.client.clone().release_callable(request(message, deadline)).await;
        answer.map(drop).map_err(|s| self.status(s, deadline))
    }

    async fn close_session(&self, session: &str) -> Result<(), Status> {
        let message = pb::CloseSessionRequest { session_handle: session.to_owned() };
        let deadline = Some(Instant::now() + CONTROL_DEADLINE);
        let answer = self.client.clone().close_session(request(message, deadline)).await;
        answer.map_err(|s| self.status(s, deadline))?;
        Ok(())
    }

    async fn list_devices(&self, session: Option<&str>) -> Result<ListedDevices, Status> {
        let message = pb::ListDevicesRequest { session_handle: session.unwrap_or_default().to_owned() };
        let deadline = Some(Instant::now() + CONTROL_DEADLINE);
        let response = self.client.clone().list_devices(request(message, deadline)).await;
        let response = response.map_err(|s| self.status(s, deadline))?.into_inner();
        let decode = |all: Vec<pb::DeviceAttributes>| {
            all.into_iter().map(convert::device_from_proto).collect::<Result<Vec<_>, _>>()
        };
        Ok(ListedDevices { local: decode(response.local_device)?, remote: decode(response.remote_device)? })
    }

    async fn reset(&self, container: Vec<String>, device_filters: Vec<String>) -> Result<(), Status> {
        let message = pb::ResetRequest { container, device_filters };
        self.client.clone().reset(message).await.map_err(|s| self.status(s, None))?;
        Ok(())
    }
}

/// Returns the fetches without duplicates, because the protocol requires each fetch once.
fn unique(fetches: &[String]) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    fetches.iter().filter(|f| seen.insert(f.as_str())).cloned().collect()
}

/// Returns the fetched tensors in the order of `fetches`.
fn in_order(fetches: &[String], fetched: Vec<(String, Tensor)>) -> Result<Vec<(String, Tensor)>, Status> {
    let find = |name: &String| {
        let found = fetched.iter().find(|(n, _)| n == name);
        found.cloned().ok_or_else(|| {
            Status::new(Code::Internal, format!("the master's answer lacks the fetched tensor '{name}'"))
        })
    };
    fetches.iter().map(find).collect()
}

impl fmt::Debug for RemoteMaster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RemoteMaster({})", self.address)
    }
}
