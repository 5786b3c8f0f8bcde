//! A master in another process.

use crate::error::{Error, Result};
use async_trait::async_trait;
use graph::{Code, Tensor};
use proto::convert::DefaultAttrs;
use proto::link::{
    CreateSession, CreatedSession, ExtendSession, ListedDevices, MasterLink, RunStep, RunStepOutcome,
};
use proto::service::MasterServiceClient;
use proto::{Status, convert, pb};
use std::fmt;
use std::time::{Duration, Instant};
use tonic::transport::Channel;

/// How long connecting to a master may take where the caller sets no deadline.
const CONNECT_DEADLINE: Duration = Duration::from_secs(30);

/// The client's end of MasterService.
pub struct RemoteMaster {
    address: String,
    client: MasterServiceClient<Channel>,
}

impl RemoteMaster {
    /// The master at `grpc://host:port`; connects at the first call.
    pub fn new(target: &str) -> Result<RemoteMaster> {
        let wrong = || Error::Target { target: target.to_owned() };
        let address = target.strip_prefix("grpc://").ok_or_else(wrong)?;
        let endpoint = proto::channel::endpoint(address).ok_or_else(wrong)?;
        let _in_runtime = crate::runtime::handle()?.enter();
        let channel = endpoint.connect_timeout(CONNECT_DEADLINE).connect_lazy();
        let client = MasterServiceClient::new(channel)
            .max_decoding_message_size(i32::MAX as usize)
            .max_encoding_message_size(i32::MAX as usize);
        Ok(RemoteMaster { address: address.to_owned(), client })
    }

    /// What a failed call means to the caller, with the master's address where it could not be reached.
    fn status(&self, status: tonic::Status) -> Status {
        let mut status = Status::from(status);
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

/// Calls an RPC until it is answered by anything but "not reachable", or the deadline has passed.
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
            graph_def: Some(convert::graph_to_proto(&create.graph, DefaultAttrs::Keep)?),
            config: Some(create.config),
            target: create.target,
        };
        let deadline = create.deadline.unwrap_or_else(|| Instant::now() + CONNECT_DEADLINE);
        let call = || {
            let (mut client, message) = (self.client.clone(), message.clone());
            async move { client.create_session(request(message, create.deadline)).await }
        };
        let response = until_reachable(deadline, call).await.map_err(|s| self.status(s))?.into_inner();
        Ok(CreatedSession { session: response.session_handle.into(), graph_version: response.graph_version })
    }

    async fn extend_session(&self, extend: ExtendSession) -> Result<i64, Status> {
        let message = pb::ExtendSessionRequest {
            session_handle: extend.session.to_string(),
            graph_def: Some(extend.nodes),
            current_graph_version: extend.graph_version,
        };
        let response = self.client.clone().extend_session(message).await.map_err(|s| self.status(s))?;
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
            request_id: (rand::random::<u64>() >> 1) as i64 | 1,
            ..Default::default()
        };
        let response = self
            .client
            .clone()
            .run_step(request(message, step.deadline))
            .await
            .map_err(|s| self.status(s))?;
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

    async fn close_session(&self, session: &str) -> Result<(), Status> {
        let message = pb::CloseSessionRequest { session_handle: session.to_owned() };
        self.client.clone().close_session(message).await.map_err(|s| self.status(s))?;
        Ok(())
    }

    async fn list_devices(&self, session: Option<&str>) -> Result<ListedDevices, Status> {
        let message = pb::ListDevicesRequest { session_handle: session.unwrap_or_default().to_owned() };
        let response =
            self.client.clone().list_devices(message).await.map_err(|s| self.status(s))?.into_inner();
        let decode = |all: Vec<pb::DeviceAttributes>| {
            all.into_iter().map(convert::device_from_proto).collect::<Result<Vec<_>, _>>()
        };
        Ok(ListedDevices { local: decode(response.local_device)?, remote: decode(response.remote_device)? })
    }

    async fn reset(&self, container: Vec<String>, device_filters: Vec<String>) -> Result<(), Status> {
        let message = pb::ResetRequest { container, device_filters };
        self.client.clone().reset(message).await.map_err(|s| self.status(s))?;
        Ok(())
    }
}

/// The protocol wants each fetch once.
fn unique(fetches: &[String]) -> Vec<String> {
    let mut seen = std::collections::BTreeSet::new();
    fetches.iter().filter(|f| seen.insert(f.as_str())).cloned().collect()
}

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
